"""What a pipeline did is seen through Spark's own progress, by whom it runs and by listeners."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener

from async_op import AsyncFunction
from async_op.spark import AsyncPipeline

FILES, ROWS = 3, 20


class Double(AsyncFunction):
    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        return [(2 * value["id"],)]


class Listener(StreamingQueryListener):
    """Looks an epoch up, by the number of the micro-batch that Spark tells of."""

    def __init__(self, pipeline: AsyncPipeline) -> None:
        self.pipeline = pipeline
        self.calls: dict[int, int] = {}
        self.ended = threading.Event()

    def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802 - Spark's name

    def onQueryIdle(self, event: Any) -> None: ...  # noqa: N802 - Spark's name

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        batch_id = event.progress.batchId
        self.calls |= {one.batch_id: one.calls for one in self.pipeline.progress() if one.batch_id == batch_id}

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        self.ended.set()


def test_an_epoch_stands_in_the_progress_of_its_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    for n in range(FILES):
        spark.range(n * ROWS, (n + 1) * ROWS).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    pipeline = AsyncPipeline(
        Double(),
        key_by="id",
        output_schema="twice bigint",
        snapshots=tmp_path / "snapshots",
        operator_id="double",
        barrier_timeout=None,
        parallelism=2,
    )
    stream = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    observed = stream.observe("input", F.count(F.lit(1)).alias("rows"), F.max("id").alias("newest"))
    listener = Listener(pipeline)
    spark.streams.addListener(listener)
    try:
        query = pipeline.start(
            observed,
            lambda batch, epoch: None,
            checkpoint_location=tmp_path / "checkpoint",
            trigger={"availableNow": True},
        )
        query.awaitTermination()
        assert listener.ended.wait(60)
    finally:
        spark.streams.removeListener(listener)
    recent = [one for one in query.recentProgress if one["numInputRows"]]
    metrics = [one["observedMetrics"]["keygroups"] for one in recent]
    assert [(one.batch_id, one.rows, one.calls, one.parallelism) for one in metrics] == [
        (n, ROWS, ROWS, 2) for n in range(FILES)
    ]
    assert [one.epoch for one in metrics] == [one.epoch for one in pipeline.progress()]
    assert [one["observedMetrics"]["input"].rows for one in recent] == [ROWS] * FILES
    assert query.lastProgress is not None
    assert listener.calls == dict.fromkeys(range(FILES), ROWS)
