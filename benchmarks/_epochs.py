"""Epochs of the streaming pipeline: their cost above a micro-batch that does nothing, and how it grows with state.

Micro-batches have 1,000 rows with keys drawn from all; the function keeps a dict per key and returns at once; two
subtasks, 128 key groups.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction
from async_op.spark import AsyncPipeline
from keygroups import ValueState, key_groups_of, range_of
from keygroups.state import MemoryBackend
from snapshots import SnapshotStore, SubtaskSnapshot

EPOCH_ROWS = 1000
EPOCHS = 12
WARM_UP_EPOCHS = 4
MAX_PARALLELISM = 128
VISITS = ValueState("visits")
SMALL, LARGE = 10_000, 1_000_000


class Count(AsyncFunction):
    """Keeps a small dict for each key."""

    states = (VISITS,)

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        visits = ctx.state(VISITS)
        count = visits.value()["count"] + 1
        visits.update({"count": count, "last": f"row {value['id']}"})
        return [(value["id"], count)]


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    name: str
    measured: float
    unit: str
    wanted: float | None = None


def write_state(uri: Path, keys: int) -> None:
    """Commit a snapshot that has a count for each key."""
    names = [f"user-{number}" for number in range(keys)]
    backends = [MemoryBackend([VISITS], range_of(index, 2, MAX_PARALLELISM)) for index in range(2)]
    for name, key_group in zip(names, key_groups_of(names, MAX_PARALLELISM).tolist(), strict=True):
        backends[key_group * 2 // MAX_PARALLELISM].tables["visits"].put(key_group, name, {"count": 1, "last": "row"})
    SnapshotStore(uri, "bench").write(
        SubtaskSnapshot(
            subtask_index=index,
            parallelism=2,
            max_parallelism=MAX_PARALLELISM,
            hash="xxhash64",
            states=backend.cut(),
        )
        for index, backend in enumerate(backends)
    )


def write_input(spark: SparkSession, folder: Path, keys: int) -> DataFrame:
    """Write one file an epoch; returns the stream of them."""
    for epoch in range(EPOCHS):
        rows = spark.range(epoch * EPOCH_ROWS, (epoch + 1) * EPOCH_ROWS, 1, 1)
        rows.selectExpr("id", f"concat('user-', pmod(xxhash64(id), {keys})) as user").write.mode("append").parquet(
            str(folder)
        )
    return spark.readStream.schema("id bigint, user string").option("maxFilesPerTrigger", 1).parquet(str(folder))


def batch_milliseconds(query: Any) -> list[float]:
    """Return the milliseconds of each micro-batch, as Spark counts them, after the first ones."""
    return [one["durationMs"]["addBatch"] for one in query.recentProgress][WARM_UP_EPOCHS:]


def empty_batches(stream: DataFrame, folder: Path) -> float:
    """Return the milliseconds of a micro-batch whose function does nothing."""
    writer = stream.writeStream.foreachBatch(lambda frame, epoch: None).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "empty")).start()
    query.awaitTermination()
    return statistics.median(batch_milliseconds(query))


def pipeline_batches(
    stream: DataFrame,
    folder: Path,
    at_epoch: Callable[[AsyncPipeline, int], None] = lambda pipeline, epoch: None,
    **options: Any,
) -> tuple[AsyncPipeline, Any]:
    """Run the pipeline over the stream, with a sink that reads nothing."""
    pipeline = AsyncPipeline(
        Count(),
        key_by="user",
        output_schema="id bigint, count bigint",
        snapshots=folder,
        operator_id="bench",
        parallelism=2,
        max_parallelism=MAX_PARALLELISM,
        **options,
    )
    query = pipeline.start(
        stream,
        lambda rows, epoch: at_epoch(pipeline, epoch),
        checkpoint_location=folder / "checkpoint",
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    return pipeline, query


def measure(spark: SparkSession, folder: Path) -> list[Figure]:
    """Run all cases once."""
    milliseconds = {}
    for keys in (SMALL, LARGE):
        stream = write_input(spark, folder / f"in-{keys}", keys)
        write_state(folder / str(keys), keys)
        _, query = pipeline_batches(stream, folder / str(keys))
        milliseconds[keys] = statistics.median(batch_milliseconds(query))
        print(keys, batch_milliseconds(query), file=sys.stderr)
    empty = empty_batches(stream, folder)
    write_state(folder / "rescaled", LARGE)
    pipeline, query = pipeline_batches(stream, folder / "rescaled", rescale)
    batches = batch_milliseconds(query)
    first = [
        after
        for before, after in zip(pipeline.progress()[:-1], pipeline.progress()[1:], strict=True)
        if before.parallelism != after.parallelism
    ]
    extra = [one.seconds * 1000 - statistics.median(batches) for one in first]
    return [
        Figure("an empty foreachBatch", empty, "ms"),
        Figure(f"an epoch above that, {SMALL:,} keys", milliseconds[SMALL] - empty, "ms", 700),
        Figure(f"an epoch, {LARGE:,} keys ÷ {SMALL:,}", milliseconds[LARGE] / milliseconds[SMALL], "", 1.3),
        Figure(f"rescale 2 → 3 → 2, {LARGE:,} keys: extra of the first epoch", max(extra), "ms", 1000),
    ]


def rescale(pipeline: AsyncPipeline, epoch: int) -> None:
    """Change the parallelism twice on the way."""
    pipeline.rescale(3 if epoch in range(EPOCHS // 2, EPOCHS - 2) else 2)


def epoch_figures(spark: SparkSession, repeats: int) -> list[dict[str, Any]]:
    """Run all cases so often; returns the median of each figure."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    runs = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(measure(spark, Path(folder)))
    return [
        {
            "case": same[0].name,
            "measured": round(statistics.median(one.measured for one in same), 3),
            "unit": same[0].unit,
            "wanted": same[0].wanted,
        }
        for same in zip(*runs, strict=True)
    ]
