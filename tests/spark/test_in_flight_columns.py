"""The rows in flight of a pipeline are columns of its snapshots, and get the columns that its input has gained."""

from __future__ import annotations

import sys
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from snapshots import Snapshot
from snapshots.spark import register
from tests.spark.test_pipeline import Count, Run, run

cloudpickle.register_pickle_by_value(sys.modules[__name__])

__all__ = ["run"]  # the fixture


class CountByCountry(Count):
    """Reads a column that the input of the first run does not have."""

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        assert value["country"] is None
        assert [*value] == ["id", "country", "user"]
        return await super().async_invoke(value, ctx)


def crashed(run: Run, **options: Any) -> Snapshot:
    """Return the snapshot of a run whose sink fails while calls are in flight."""
    run.write_input()
    run.fail_sink_at = 1
    with pytest.raises(Exception, match="the sink is down"):
        run.start(run.pipeline(**options)).awaitTermination()
    latest = run.store.latest()
    assert latest is not None
    assert latest.in_flight_count > 0
    return latest


def test_everybody_reads_rows_in_flight_as_columns(run: Run, spark: SparkSession) -> None:
    snapshot = crashed(run, mode="ordered")
    elements = snapshot.in_flight()
    row = pa.struct([("id", pa.int64()), ("user", pa.string())])
    assert (elements.schema.field("value").type, elements.schema.field("key").type) == (row, pa.string())
    outputs = pa.list_(pa.struct([*row, ("count", pa.int64())]))
    assert elements.schema.field("outputs").type == outputs
    assert elements.column("rest").null_count == elements.num_rows
    users = sorted(value["user"] for value in elements.column("value").to_pylist())
    assert users == sorted(elements.column("key").to_pylist())

    folder = f"{run.store.uri}/data/*/in_flight-*.parquet"
    assert duckdb.sql(f"SELECT value.user FROM '{folder}' ORDER BY 1").fetchall() == [(user,) for user in users]
    register(spark)
    frame = spark.read.format("keygroups").option("what", "in_flight").load(run.store.uri)
    assert sorted(one.user for one in frame.select("value.user").collect()) == users


def test_rows_in_flight_have_the_columns_that_the_input_has_gained_as_null(run: Run) -> None:
    crashed(run)
    run.schema = "id bigint, country string, user string"
    run.function = CountByCountry(run.log, run.gate)
    run.run()
    run.assert_exact()
