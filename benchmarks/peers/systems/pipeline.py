"""keygroups as a streaming pipeline on Spark, with state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from async_op import AsyncFunction
from async_op.spark import AsyncPipeline
from benchmarks.peers.cases import Case, KeyedCount, Rescale, state_of
from benchmarks.peers.spark_kit import ALL_AT_ONCE, COUNT, EVENT, PARTITIONS, Collected, SparkPeer, write_some_keys
from keygroups import ValueState
from snapshots import SnapshotStore

SEEN = ValueState("seen", pa.int64(), default=0)
TEXT = ValueState("text", pa.string())
OPERATOR = "peers"


class Count(AsyncFunction):
    """Counts the events of each key."""

    states = (SEEN,)

    async def async_invoke(self, value: Any, ctx: Any) -> Iterable[tuple[int, int]]:
        seen = ctx.state(SEEN)
        count = seen.value() + 1
        seen.update(count)
        return [(ctx.key, count)]


class Remembered(AsyncFunction):
    """Returns the number at the end of each key's text, which stays the greatest one seen."""

    states = (TEXT,)

    async def async_invoke(self, value: Any, ctx: Any) -> Iterable[tuple[int, int]]:
        text = ctx.state(TEXT)
        greatest = max(text.value(), value["state"])
        text.update(greatest)
        return [(ctx.key, int(greatest))]


class Pipeline(SparkPeer):
    """`AsyncPipeline` with two subtasks."""

    title = "keygroups, `AsyncPipeline`"
    cases = ("count", "small-batches", "rescale")
    packages = ("keygroups", *SparkPeer.packages)
    lacks = ""

    def prepare(self, case: Case, folder: Path) -> Callable[[], Iterable[int]]:
        if isinstance(case, KeyedCount):
            events = self.events(case, folder)
            return lambda: run(Count(), events, folder, PARTITIONS)
        assert isinstance(case, Rescale)
        return self._rescale(case, folder)

    def _rescale(self, case: Rescale, folder: Path) -> Callable[[], Iterable[int]]:
        rows = ((key, state_of(key)) for key in range(case.rows))
        SnapshotStore(folder / "snapshots", OPERATOR).bootstrap({TEXT: rows}, parallelism=PARTITIONS)
        write_some_keys(case, folder, 0)
        run(Remembered(), self.files(folder, EVENT), folder, PARTITIONS)
        write_some_keys(case, folder, 1)
        return lambda: run(Remembered(), self.files(folder, EVENT), folder, PARTITIONS + 1)


def run(function: AsyncFunction, events: DataFrame, folder: Path, parallelism: int) -> Iterator[int]:
    """Run a pipeline over all its input; returns what came out."""
    pipeline = AsyncPipeline(
        function,
        key_by="key",
        output_schema=COUNT,
        snapshots=folder / "snapshots",
        operator_id=OPERATOR,
        parallelism=parallelism,
    )
    sink = Collected()
    query = pipeline.start(events, sink, checkpoint_location=folder / "checkpoint", trigger=ALL_AT_ONCE)
    query.awaitTermination()
    return sink.values()


PEER = Pipeline()
