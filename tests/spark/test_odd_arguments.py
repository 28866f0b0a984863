"""Odd things passed at Spark's doors; `tests/doors/test_odd_arguments.py` has the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncDataStream
from async_op.spark import AsyncPipeline, AutoscalePolicy, Retention, split_dead_letters
from tests.doors.odd import check_odd

pytestmark = pytest.mark.spark


async def call(row: Any) -> Any:
    return row


PIPELINE: dict[str, Any] = {
    "function": call,
    "key_by": "user",
    "output_schema": "user string",
    "snapshots": "s",
    "operator_id": "odd",
    "mode": "unordered",
    "barrier_timeout": 1.0,
    "on_error": "fail",
    "state_backend": "memory",
    "capacity": 5,
    "retention": Retention(),
    "hash": "xxhash64",
    "resident": True,
    **dict.fromkeys(("parallelism", "max_parallelism", "order_by", "dead_letters", "storage_options", "autoscale")),
    **dict.fromkeys(("event_time", "idempotency_namespace", "wait_strategies", "timeout", "retry", "resilience")),
}


def pipeline() -> AsyncPipeline:
    return AsyncPipeline(**PIPELINE)


def doors(frame: DataFrame) -> list[tuple[Callable[..., Any], dict[str, Any]]]:
    wait = {"output_schema": "user string", "on_error": "fail", "capacity": 5, "timeout": None, "retry": None}
    never = {"stream_df": frame, "sink": print, "checkpoint_location": "c"}  # it is not streaming, so nothing starts
    return [
        (AsyncPipeline, PIPELINE),
        (AutoscalePolicy, {"min": 1, "max": 2, "target_batch_duration": 1.0, "dry_run": False}),
        (AsyncDataStream.unordered_wait, wait | {"stream": frame, "function": call}),
        (split_dead_letters, {"frame": None}),
        (lambda **given: pipeline().explain(**given), {"df": None}),
        (lambda **given: pipeline().start(**never | given), {"stream_df": None}),
        (lambda **given: pipeline().run(**{"df": None, "sink": print, "run_id": "odd"} | given), {"df": None}),
    ]


@pytest.mark.filterwarnings("ignore")
def test_an_odd_argument_works_or_is_an_error_with_a_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for door, given in doors(spark.createDataFrame([("ann",)], "user string")):
        for name in given:
            check_odd(door, given, name)

    assert list(tmp_path.iterdir()) == []
    assert spark.streams.active == []
