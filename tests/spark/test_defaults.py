"""A pipeline with no options beyond those that it needs: what a newcomer meets first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op.spark import AsyncPipeline
from tests.spark.runs import Gate

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

ROWS = 10


def test_an_epoch_waits_for_no_call_for_long_and_the_end_of_the_input_for_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.range(ROWS).write.parquet(str(tmp_path / "in"))
    gate = Gate(tmp_path / "sinks")
    delivered: list[int] = []

    async def after_a_delivery(row: dict[str, Any]) -> tuple[int]:
        if row["id"] % 2:
            await gate.passed(1)
        return (row["id"],)

    def sink(batch: DataFrame, epoch: int) -> None:
        delivered.extend(row["id"] for row in batch.collect())
        gate.count()

    pipeline = AsyncPipeline(
        after_a_delivery,
        key_by="id",
        output_schema="id bigint",
        snapshots=tmp_path / "snapshots",
        operator_id="slow",
        parallelism=2,
        timeout=300.0,  # if an epoch waited for these calls, they would wait for its sink for ever
    )
    stream = spark.readStream.schema("id bigint").parquet(str(tmp_path / "in"))
    pipeline.start(
        stream, sink, checkpoint_location=tmp_path / "checkpoint", trigger={"availableNow": True}
    ).awaitTermination()

    first, *_, last = pipeline.progress()
    assert first.in_flight >= ROWS // 2
    assert last.in_flight == 0
    assert sorted(delivered) == list(range(ROWS))
