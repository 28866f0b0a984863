"""The stateless transform in a streaming query."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncBatchFunction, AsyncDataStream, AsyncFunction
from async_op.functions.base import Function
from async_op.spark import split_dead_letters
from tests.quick import first_is_quick

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = "id bigint, twice bigint"
FILES = 3
ROWS = 40


class Double(AsyncFunction):
    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        await asyncio.sleep(0.001 * (value["id"] % 5))
        return [(value["id"], 2 * value["id"])]


class DoubleAll(AsyncBatchFunction):
    arrow = True

    async def async_invoke_batch(self, batch: Any, ctx: Any) -> pa.RecordBatch:
        return batch.append_column("twice", pc.multiply(batch.column("id"), 2))


class FailAt50(AsyncFunction):
    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        if value["id"] == 50:
            raise ValueError("the service said no")
        return [(value["id"], 0)]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> DataFrame:
    for n in range(FILES):
        spark.range(n * ROWS, (n + 1) * ROWS, 1, 1).write.mode("append").parquet(str(tmp_path / "in"))
    return spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))


@pytest.mark.parametrize("function", [Double(), DoubleAll()], ids=["rows", "arrow"])
@pytest.mark.parametrize("mode", first_is_quick(["ordered", "unordered"]))
def test_available_now_processes_what_is_there(
    spark: SparkSession, stream: DataFrame, tmp_path: Path, function: Function, mode: str
) -> None:
    outputs = getattr(AsyncDataStream, f"{mode}_wait")(stream, function, output_schema=SCHEMA)
    assert outputs.isStreaming
    query = (
        outputs.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"), format="parquet")
    )
    query.awaitTermination()
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [ROWS] * FILES
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(tuple(row) for row in rows) == [(n, 2 * n) for n in range(FILES * ROWS)]


def test_a_running_query_takes_what_comes(spark: SparkSession) -> None:
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 50).option("numPartitions", 2).load()
    outputs = AsyncDataStream.unordered_wait(ticks.selectExpr("value as id"), Double(), output_schema=SCHEMA)
    query = outputs.writeStream.format("memory").queryName("doubled").start()
    try:
        for _ in range(60):
            if spark.table("doubled").count() >= 100 or query.awaitTermination(1):
                break
        rows = sorted(tuple(row) for row in spark.table("doubled").collect())
    finally:
        query.stop()
    assert len(rows) >= 100
    assert rows == [(n, 2 * n) for n in range(len(rows))]


def test_dead_letters_are_split_in_foreach_batch(stream: DataFrame, tmp_path: Path) -> None:
    outputs, letters = [], []

    def write(batch: DataFrame, batch_id: int) -> None:
        kept = batch.persist()
        good, bad = split_dead_letters(kept)
        outputs.extend(row.id for row in good.collect())
        letters.extend(row.value for row in bad.collect())
        kept.unpersist()

    enriched = AsyncDataStream.ordered_wait(
        stream, FailAt50(), output_schema=SCHEMA, on_error="dead_letter", dead_letters="column"
    )
    writer = enriched.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(outputs) == [n for n in range(FILES * ROWS) if n != 50]
    assert letters == ['{"id": 50}']


def test_a_failing_row_is_named_by_the_query(stream: DataFrame, tmp_path: Path) -> None:
    outputs = AsyncDataStream.ordered_wait(stream, FailAt50(), output_schema=SCHEMA)
    writer = outputs.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException, match=r"attempt 1 of element \{'id': 50\}.*the service said no"):
        writer.trigger(availableNow=True).start().awaitTermination()
