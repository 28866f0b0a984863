"""Plain functions on Spark: an output is a row, whether it is returned or yielded."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from async_op import AsyncDataStream, AsyncFunction, LooksLikeMilliseconds, RateLimit, function
from async_op.spark import AsyncPipeline
from keygroups import ConfigError, ValueState
from tests.spark.runs import PipelineRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = ValueState("count", pa.int64(), default=0)
SCHEMA = "id bigint, twice bigint"


async def double(value: Any) -> Any:
    return value["id"], 2 * value["id"]


def double_on_a_thread(value: Any) -> Any:
    return {"id": value["id"], "twice": 2 * value["id"]}


async def double_yielded(value: Any) -> Any:
    yield value["id"], 2 * value["id"]


def scaled(factor: int, value: Any) -> Any:
    yield value["id"], factor * value["id"]


KINDS = [
    double,
    double_on_a_thread,
    double_yielded,
    functools.partial(scaled, 2),
    function(on="loop")(double_on_a_thread),
    lambda value: (value["id"], 2 * value["id"]),
]


@pytest.mark.parametrize("given", KINDS, ids=range(len(KINDS)))
def test_a_plain_function_returns_or_yields_rows(spark: SparkSession, given: Callable[..., Any]) -> None:
    outputs = AsyncDataStream.ordered_wait(
        spark.range(0, 100, 1, 1), given, output_schema=SCHEMA, timeout=timedelta(minutes=1)
    )

    assert [tuple(row) for row in outputs.collect()] == [(n, 2 * n) for n in range(100)]


@function(states=(COUNT,))
async def counted(value: Any, ctx: Any) -> Any:
    count = ctx.state(COUNT)
    count.update(count.value() + 1)
    return value["id"], count.value()


def test_a_pipeline_keeps_the_state_of_a_plain_function(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"key_by": "user", "output_schema": "id bigint, count bigint", "operator_id": "counted"}
    run = PipelineRun(spark, tmp_path, counted, "id bigint, user string", **settings)
    run.write_file(spark.range(10).selectExpr("id", "cast(id % 2 as string) as user"))
    run.run()

    assert sorted(row for epoch in run.delivered.values() for row in epoch) == [(n, n // 2 + 1) for n in range(10)]


def test_it_sent_to_a_worker_is_the_same() -> None:
    again = cloudpickle.loads(cloudpickle.dumps(counted))

    assert (again.states, again.__name__) == ((COUNT,), "counted")


OPTIONS: dict[str, Any] = {"key_by": "id", "output_schema": SCHEMA, "operator_id": "plain", "parallelism": 1}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"function": AsyncFunction}, "function"),
    ({"function": 5}, "function"),
    ({"retry": 3}, "retry"),
    ({"timeout": "5s"}, "timeout"),
    ({"barrier_timeout": "1s"}, "barrier_timeout"),
    ({"barrier_timeout": -1}, "barrier_timeout"),
    ({"capacity": "10"}, "capacity"),
    ({"mode": "sorted"}, "mode"),
    ({"on_error": "ignore"}, "on_error"),
    ({"resilience": RateLimit(5)}, "resilience"),
    ({"parallelism": 0}, "parallelism"),
    ({"parallelism": "2"}, "parallelism"),
]


@pytest.mark.parametrize(("wrong", "name"), REFUSED, ids=range(len(REFUSED)))
def test_a_pipeline_refuses_what_can_never_work_where_it_is_made(
    spark: SparkSession, tmp_path: Path, wrong: dict[str, Any], name: str
) -> None:
    options = {"function": counted, "snapshots": tmp_path} | OPTIONS | wrong

    with pytest.raises(ConfigError) as refused:
        AsyncPipeline(options.pop("function"), **options)

    assert refused.value.name == name


def test_a_pipeline_warns_of_milliseconds(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.warns(LooksLikeMilliseconds, match="barrier_timeout=5000"):
        AsyncPipeline(counted, snapshots=tmp_path, barrier_timeout=5000, **OPTIONS)
