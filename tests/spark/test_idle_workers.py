"""Spark may kill Python workers that are silent for a while; one that waits for slow calls is not silent."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from async_op import AsyncDataStream, AsyncFunction
from async_op.spark import AsyncPipeline

cloudpickle.register_pickle_by_value(sys.modules[__name__])

IDLE_TIMEOUT_SECONDS = 10
LONG_SECONDS = 2 * IDLE_TIMEOUT_SECONDS


class Long(AsyncFunction):
    """Outlasts the timeout, whatever else the machine does."""

    def __init__(self, seconds: float = LONG_SECONDS) -> None:
        self.seconds = seconds

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        await asyncio.sleep(self.seconds)
        return [(value["id"],)]


@pytest.fixture
def impatient(spark: SparkSession, reused_workers: None) -> Iterator[SparkSession]:
    # New workers are silent while they start and import, so both are there before: two tasks that run side by side.
    warm = spark.range(0, 4, 1, 2)
    assert AsyncDataStream.unordered_wait(warm, Long(2.0), output_schema="id bigint").count() == 4
    settings = {"idleTimeoutSeconds": IDLE_TIMEOUT_SECONDS, "killOnIdleTimeout": True}
    for name, value in settings.items():
        spark.conf.set(f"spark.sql.execution.pyspark.udf.{name}", str(value).lower())
    yield spark
    for name in settings:
        spark.conf.unset(f"spark.sql.execution.pyspark.udf.{name}")


@pytest.mark.thorough
def test_a_silent_worker_is_killed(impatient: SparkSession) -> None:
    """What the other tests show would mean nothing otherwise."""

    def sleep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(LONG_SECONDS)
            yield batch

    with pytest.raises(Exception, match=r"[Ii]dle|crashed|timeout"):
        impatient.range(4).mapInArrow(sleep, "id bigint").collect()


@pytest.mark.thorough
def test_a_transform_that_waits_for_calls_is_not_silent(impatient: SparkSession) -> None:
    outputs = AsyncDataStream.unordered_wait(impatient.range(4), Long(), output_schema="id bigint")
    assert sorted(row["id"] for row in outputs.collect()) == [0, 1, 2, 3]


@pytest.mark.thorough
def test_an_epoch_that_waits_for_calls_is_not_silent(impatient: SparkSession, tmp_path: Path) -> None:
    impatient.range(4).write.parquet(str(tmp_path / "in"))
    found: list[int] = []
    pipeline = AsyncPipeline(
        Long(),
        key_by="id",
        output_schema="id bigint",
        snapshots=tmp_path / "snapshots",
        operator_id="long",
        barrier_timeout=None,
        parallelism=2,
    )
    pipeline.start(
        impatient.readStream.schema("id bigint").parquet(str(tmp_path / "in")),
        lambda batch, epoch: found.extend(row["id"] for row in batch.collect()),
        checkpoint_location=tmp_path / "checkpoint",
        trigger={"availableNow": True},
    ).awaitTermination()
    assert sorted(found) == [0, 1, 2, 3]
