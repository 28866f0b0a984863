"""Runs of a pipeline over files in a folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from async_op import AsyncFunction
from async_op.spark import AsyncPipeline
from snapshots import SnapshotStore


class PipelineRun:
    """A pipeline over files in a folder, which may be started several times as if in several processes.

    `schema` is that of the files, which a subclass writes; `settings` are the pipeline's.
    """

    def __init__(
        self, spark: SparkSession, folder: Path, function: AsyncFunction, schema: str, **settings: Any
    ) -> None:
        self.spark = spark
        self.folder = folder
        self.function = function
        self.schema = schema
        self.settings = settings
        self.delivered: dict[int, list[tuple[Any, ...]]] = {}
        self.deliveries = Counter[int]()
        self.fail_sink_at: int | None = None

    def write_file(self, frame: DataFrame) -> None:
        frame.coalesce(1).write.mode("append").parquet(str(self.folder / "in"))

    def stream(self, **options: Any) -> DataFrame:
        return self.spark.readStream.schema(self.schema).options(**options).parquet(str(self.folder / "in"))

    def sink(self, batch: DataFrame, epoch: int) -> None:
        self.deliveries[epoch] += 1
        rows = sorted((tuple(row) for row in batch.collect()), key=str)
        assert self.delivered.setdefault(epoch, rows) == rows
        if epoch == self.fail_sink_at:
            self.fail_sink_at = None
            raise OSError("the sink is down")

    def pipeline(self, **options: Any) -> AsyncPipeline:
        common = {"snapshots": self.folder / "snapshots", "parallelism": 2, "max_parallelism": 128, "order_by": "id"}
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
