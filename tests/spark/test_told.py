"""What a user is told when something is wrong with a pipeline on a classic session."""

from __future__ import annotations

import logging
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction, ElementFailed
from async_op.spark import AsyncPipeline, split_dead_letters

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark


async def same(value: Any) -> Any:
    return value


async def typo(value: Any) -> Any:
    return {"id": valeu["id"]}  # noqa: F821 - the user's line


class Opens(AsyncFunction):
    async def open(self, runtime: Any) -> None:
        self.key = runtime.token  # the user's line

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        return [value]


class World:
    """A pipeline over a file in a folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        spark.range(3).coalesce(1).write.parquet(str(folder / "in"))

    def pipeline(self, function: Any = same, **options: Any) -> AsyncPipeline:
        common = {"output_schema": "id bigint", "operator_id": "look", "parallelism": 2, "resident": False}
        return AsyncPipeline(function, snapshots=self.folder / "snapshots", **(common | options))

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema("id bigint").parquet(str(self.folder / "in"))

    def start(self, pipeline: AsyncPipeline, sink: Any = None, **options: Any) -> Any:
        where = {"checkpoint_location": self.folder / "checkpoint", "trigger": {"availableNow": True}}
        return pipeline.start(self.stream(), sink or (lambda batch, epoch: batch.collect()), **(where | options))


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Any:
    yield World(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "in tasks"])
def test_a_typo_in_the_function_is_shown_with_its_line_once_and_shortly_by_spark(
    world: World, caplog: pytest.LogCaptureFixture, resident: bool
) -> None:
    query = world.start(world.pipeline(typo, resident=resident))
    with pytest.raises(ElementFailed) as raised:
        query.awaitTermination()
    shown = "".join(traceback.format_exception(raised.value))
    assert "NameError: name 'valeu' is not defined" in shown
    assert "# noqa: F821 - the user's line" in shown
    assert "async_op/spark/epoch" not in shown
    assert len(shown.splitlines()) < 20
    assert query.exception() is raised.value
    logged = [one for one in caplog.records if one.levelno >= logging.ERROR and one.name.startswith("async_op.spark")]
    assert ["the user's line" in one.getMessage() for one in logged] == [True]

    with pytest.raises(StreamingQueryException) as of_spark:
        query.query.awaitTermination()
    told = str(of_spark.value)
    assert "EpochFailed" in told
    assert "NameError: name 'valeu' is not defined" in told
    assert "async_op/spark/epoch" not in told
    assert "the user's line" not in told


def test_what_a_sink_raises_is_raised_with_its_line_by_all_that_ask(world: World) -> None:
    def sink(batch: DataFrame, epoch: int) -> None:
        raise OSError("the disk is full")  # the user's line

    query = world.start(world.pipeline(), sink)
    with pytest.raises(OSError, match="the disk is full") as raised:
        query.awaitTermination()
    assert query.exception() is raised.value
    assert "# the user's line" in "".join(traceback.format_exception(raised.value))


def test_a_dead_letter_shows_the_line(world: World) -> None:
    letters: list[Any] = []

    def sink(batch: DataFrame, epoch: int) -> None:
        letters.extend(split_dead_letters(batch)[1].collect())

    world.start(world.pipeline(typo, on_error="dead_letter", dead_letters="column"), sink).awaitTermination()
    assert ["the user's line" in one.error_traceback for one in letters] == [True] * 3


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "in tasks"])
def test_an_error_in_open_shows_the_line(world: World, resident: bool) -> None:
    query = world.start(world.pipeline(Opens(), resident=resident))
    with pytest.raises(Exception, match=r"(?s)AttributeError|token") as raised:
        query.awaitTermination()
    assert "self.key = runtime.token  # the user's line" in "".join(traceback.format_exception(raised.value))
