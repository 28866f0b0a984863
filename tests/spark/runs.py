"""Runs of a pipeline over files in a folder."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from async_op import AsyncFunction
from async_op.spark import AsyncPipeline
from async_op.spark.epoch import fleet
from snapshots import SnapshotStore

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def hide_local_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver find no hosts on its machine, as if all of them were on others."""
    monkeypatch.setattr(fleet, "hosts_of", lambda *_: {})
    monkeypatch.setattr(fleet, "blocking_in", lambda *_: [])


@dataclass
class Gate:
    """Holds calls until the sink has been called so often: they outlast an epoch, however busy the machine is.

    The file grows by a byte with each call of the sink, so every process sees it. No call waits for more than
    `sinks_max` of them; without a barrier, an epoch would wait for its calls, and they for its sink.
    """

    path: Path
    sinks_max: int = 1000

    def count(self, sinks: int = 1) -> None:
        """Note calls of the sink."""
        with self.path.open("ab") as file:
            file.write(bytes(sinks))

    def open(self) -> None:
        """Let all calls pass."""
        self.count(self.sinks_max)

    async def passed(self, sinks: int) -> None:
        while self.counted() < min(sinks, self.sinks_max):
            await asyncio.sleep(0.01)

    def counted(self) -> int:
        """Return how often the sink has been called."""
        return self.path.stat().st_size if self.path.exists() else 0


def pipeline_of_ids(function: Any, folder: Path, operator_id: str) -> AsyncPipeline:
    """Return a pipeline over rows with an id, whose calls may wait for its sink."""
    return AsyncPipeline(
        function,
        key_by="id",
        output_schema="id bigint",
        snapshots=folder / "snapshots",
        operator_id=operator_id,
        parallelism=2,
        timeout=300.0,  # if an epoch waited for calls that wait for its sink, it would never end
    )


class PipelineRun:
    """A pipeline over files in a folder, which may be started several times as if in several processes.

    `schema` is that of the files, which a subclass writes; `settings` are the pipeline's. Its sink lets calls pass a
    gate.
    """

    def __init__(
        self, spark: SparkSession, folder: Path, function: AsyncFunction, schema: str, **settings: Any
    ) -> None:
        self.spark = spark
        self.folder = folder
        self.function = function
        self.schema = schema
        self.settings = settings
        self.gate = Gate(folder / "sinks")
        self.delivered: dict[int, list[tuple[Any, ...]]] = {}
        self.deliveries = Counter[int]()
        self.fail_sink_at: int | None = None

    def write_file(self, frame: DataFrame) -> None:
        frame.coalesce(1).write.mode("append").parquet(str(self.folder / "in"))

    def stream(self, **options: Any) -> DataFrame:
        return self.spark.readStream.schema(self.schema).options(**options).parquet(str(self.folder / "in"))

    def sink(self, batch: DataFrame, epoch: int) -> None:
        self.gate.count()
        self.deliveries[epoch] += 1
        rows = sorted((tuple(row) for row in batch.collect()), key=str)
        assert self.delivered.setdefault(epoch, rows) == rows
        if epoch == self.fail_sink_at:
            self.fail_sink_at = None
            raise OSError("the sink is down")

    def pipeline(self, **options: Any) -> AsyncPipeline:
        common = {"snapshots": self.folder / "snapshots", "parallelism": 2, "max_parallelism": 128, "order_by": "id"}
        common |= {"barrier_timeout": None}  # so that the outputs of each epoch are known
        return AsyncPipeline(self.function, **(common | self.settings | options))

    def start(self, pipeline: AsyncPipeline) -> StreamingQuery:
        return pipeline.start(
            self.stream(maxFilesPerTrigger=1),
            self.sink,
            checkpoint_location=self.folder / "checkpoint",
            trigger={"availableNow": True},
        )

    def run(self, **options: Any) -> AsyncPipeline:
        pipeline = self.pipeline(**options)
        self.start(pipeline).awaitTermination()
        return pipeline

    def stop(self) -> None:
        for query in self.spark.streams.active:
            query.stop()

    @property
    def store(self) -> SnapshotStore:
        return SnapshotStore(self.folder / "snapshots", self.settings["operator_id"])
