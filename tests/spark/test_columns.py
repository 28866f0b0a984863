"""Columns that no function can get or return are refused before anything is claimed, at each door of Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from async_op import AsyncDataStream
from async_op.spark import AsyncPipeline
from keygroups import ConfigError

pytestmark = pytest.mark.spark


async def number(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": len(row)}


def transform(frame: DataFrame, folder: Path, output_schema: str) -> None:
    AsyncDataStream.unordered_wait(frame, number, output_schema=output_schema)


def pipeline(frame: DataFrame, folder: Path, output_schema: str) -> None:
    made = AsyncPipeline(number, output_schema=output_schema, snapshots=folder, operator_id="number")
    made.run(frame, print, run_id="first")


DOORS = pytest.mark.parametrize("door", [transform, pipeline])
Door = Callable[[DataFrame, Path, str], None]


@DOORS
@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT 1 AS a, 2 AS a", r"input=\['a', 'a'\]: it has 'a' twice"),
        ("SELECT 1 AS a, 2 AS A", r"input=\['a', 'A'\]: it has 'A' twice"),
        ("SELECT named_struct('a', 1, 'a', 2) AS pair", "input=.*: it has 'a' twice"),
        ("SELECT make_interval(1) AS age", "input='age interval': no function can get that"),
        ("SELECT array() AS tags", "input='tags array<void>': no function can get that"),
    ],
)
def test_an_input_whose_values_would_be_lost_is_refused(
    spark: SparkSession, tmp_path: Path, query: str, said: str, door: Door
) -> None:
    with pytest.raises(ConfigError, match=said):
        door(spark.sql(query), tmp_path, "n bigint")
    assert not any(tmp_path.rglob("manifests/*"))


@DOORS
def test_rows_without_columns_are_refused_because_spark_sends_none(
    spark: SparkSession, tmp_path: Path, door: Door
) -> None:
    with pytest.raises(ConfigError, match="its rows have no columns"):
        door(spark.range(3).select(), tmp_path, "n bigint")


@DOORS
@pytest.mark.parametrize("output_schema", ["n char(2)", "n varchar(2)", "n array<interval>", ""])
def test_outputs_that_python_cannot_return_are_refused(
    spark: SparkSession, tmp_path: Path, output_schema: str, door: Door
) -> None:
    with pytest.raises(ConfigError, match=r"output_schema=.*: (no function can return that|name the columns)"):
        door(spark.range(1), tmp_path, output_schema)


def test_fields_of_a_struct_may_differ_by_their_case(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(1).select(F.expr("named_struct('a', 1, 'A', 2) AS pair"))

    outputs = AsyncDataStream.unordered_wait(frame, lambda row: {"n": row["pair"]["A"]}, output_schema="n bigint")

    assert [row.n for row in outputs.collect()] == [2]
