"""Tables as the sink of a pipeline on Spark: batch by batch, and each epoch once."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from async_op.connectors import UnwritableValue
from async_op.connectors.epoch_rows import FrameRows
from tests.async_op.connectors.tables.targets import Delta, Iceberg, Postgres, Target
from tests.postgres_server import postgres_url
from tests.quick import in_turn

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server():
    with postgres_url() as url:
        yield url


@pytest.fixture(params=in_turn(["delta", "iceberg", "postgres"]))
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    match request.param:
        case "delta":
            return Delta(tmp_path)
        case "iceberg":
            return Iceberg(tmp_path)
        case _:
            return Postgres(request.getfixturevalue("server"))


def test_a_batch_is_written_once(spark: SparkSession, target: Target) -> None:
    frame = spark.range(30).selectExpr("id as n", "concat('name ', id) as name").repartition(3)
    empty = frame.where("n < 0")
    for sink in (target.sink(), pickle.loads(pickle.dumps(target.sink()))):
        sink(empty, 1)
        sink(frame, 2)
        sink(frame, 2)
        sink(frame.where("n < 3"), 3)

    assert target.numbers() == sorted([*range(30), 0, 1, 2])
    assert {row["name"] for row in target.rows()} == {f"name {n}" for n in range(30)}


def test_a_column_that_the_table_does_not_have_is_named(spark: SparkSession, target: Target) -> None:
    sink = target.sink()
    sink(spark.range(1).selectExpr("id as n", "'x' as name"), 1)
    with pytest.raises(UnwritableValue, match="column 'other', output 0.*there is no"):
        sink(spark.range(1).selectExpr("id as n", "1 as other"), 2)

    assert target.numbers() == [0]


def test_rows_come_in_batches_of_bounded_size(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    try:
        rows = FrameRows(spark.range(0, 100, 1, 2).withColumnRenamed("id", "the.id"))
        sizes = [batch.num_rows for batch in rows.batches(pa.schema([("the.id", pa.int64())]))]
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    assert sum(sizes) == 100
    assert max(sizes) <= 10


def test_times_arrive_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    target = Delta(tmp_path)
    at = datetime(2020, 1, 2, 3, 4, 5, 6, UTC)
    target.sink()(spark.createDataFrame([(1, at)], "n long, at timestamp"), 1)

    assert target.rows() == [{"n": 1, "at": at}]
    assert deltalake.DeltaTable(str(tmp_path / "delta")).transaction_version("job") == 1
