"""The names of output columns: what Spark could never write is refused, and an epoch without a way in has a way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncDataStream
from async_op.spark import AsyncPipeline
from async_op.spark.rows import schemas
from keygroups import ConfigError
from tests.quick import first_is_quick
from tests.spark.runs import PipelineRun
from tests.spark.test_sink_interruptions import Wait

pytestmark = pytest.mark.spark

TWICE = [
    ("user string, user string", "user"),
    ("user string, USER string", "USER"),
    ("id bigint, at struct<a: int, A: int>", "A"),
    ("id bigint, at array<struct<a: int, a: int>>", "a"),
    ("id bigint, at map<string, struct<a: int, A: int>>", "A"),
]


async def same(row: dict[str, Any]) -> dict[str, Any]:
    return row


def pipeline(schema: str, folder: Path, **options: Any) -> AsyncPipeline:
    return AsyncPipeline(same, output_schema=schema, snapshots=folder, operator_id="same", parallelism=1, **options)


@pytest.mark.parametrize(("schema", "name"), TWICE)
def test_a_name_that_comes_twice_is_refused(spark: SparkSession, tmp_path: Path, schema: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"output_schema=.* has '{name}' twice"):
        pipeline(schema, tmp_path)
    with pytest.raises(ConfigError, match="twice"):
        AsyncDataStream.unordered_wait(spark.range(1), same, output_schema=schema)


def test_a_column_like_that_of_dead_letters_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="twice"):
        pipeline("Dead_Letter string", tmp_path, on_error="dead_letter", dead_letters="column")


def test_names_that_differ_in_case_are_two_for_a_session_that_tells_them_apart(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After a query, Spark's active session is the query's copy of it.
    monkeypatch.setattr(SparkSession, "active", classmethod(lambda _: spark))
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        pipeline("user string, USER string", tmp_path)
        with pytest.raises(ConfigError):
            pipeline("user string, user string", tmp_path)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.parametrize("way", first_is_quick(["changed", "left out"]))
def test_an_epoch_that_no_sink_can_take_is_changed_or_left_out_by_a_sink(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    run = PipelineRun(spark, tmp_path, Pair(tmp_path), "id bigint", operator_id="pair", output_schema="a int, A int")
    run.write_file(spark.range(1))
    with monkeypatch.context() as patch:
        patch.setattr(schemas, "check_names", lambda _: None)
        table = tmp_path / "table"
        run.sink = lambda batch, epoch: batch.write.parquet(f"{table}/{epoch}")  # type: ignore[method-assign]
        with pytest.raises(Exception, match="COLUMN_ALREADY_EXISTS"):
            run.run()
    monkeypatch.undo()
    run.settings["output_schema"] = "a int, b int"
    with pytest.raises(Exception, match="COLUMN_ALREADY_EXISTS"):
        run.run()

    def mended(batch: DataFrame, epoch: int) -> None:
        if epoch == 1 and way == "left out":
            return
        batch.toDF("a", "b").write.parquet(f"{table}/{epoch}")

    run.sink = mended  # type: ignore[method-assign]
    run.write_file(spark.range(1, 2))
    run.run()
    found = [tuple(row) for row in spark.read.parquet(f"{table}/*").collect()]
    assert sorted(found) == ([(0, 0), (1, 1)] if way == "changed" else [(1, 1)])


class Pair(Wait):
    """Returns the id of each row twice."""

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        return [(value["id"], value["id"])]
