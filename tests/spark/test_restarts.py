"""A query that has failed is started again by the policy of jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import RestartPolicy
from async_op.spark import AsyncPipeline, run_with_restarts
from async_op.spark.epoch.delivery import IntoSink
from keygroups import ConfigError
from snapshots import SnapshotStore, WriterFenced

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Ended:
    """A query that has ended before it was waited for."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.is_stopped = False

    def awaitTermination(self) -> None:  # noqa: N802 - StreamingQuery's name
        if self.error is not None:
            raise self.error


def test_a_query_that_fails_is_started_again_after_growing_delays() -> None:
    queries = [Ended(OSError("away")), Ended(OSError("away")), Ended()]
    pauses: list[float] = []
    starts: list[float] = []

    def start() -> Ended:
        starts.append(sum(pauses))
        return queries.pop(0)

    run_with_restarts(start, RestartPolicy(3, 2.0, 60.0), sleep=pauses.append)
    assert starts == [0.0, 2.0, 6.0]
    assert queries == []


def test_a_start_that_runs_to_the_end_itself_has_no_query_to_wait_for() -> None:
    failures = [OSError("away")]
    pauses: list[float] = []

    def run() -> None:
        if failures:
            raise failures.pop()

    run_with_restarts(run, RestartPolicy(3, 2.0, 60.0), sleep=pauses.append)
    assert sum(pauses) == 2.0


async def later() -> None:
    raise AssertionError("it is never awaited")


def test_a_start_that_is_never_awaited_is_refused() -> None:
    with pytest.raises(ConfigError, match="start='<coroutine>': it returns something that is not awaited here"):
        run_with_restarts(lambda: later(), RestartPolicy(1))  # type: ignore[arg-type, return-value]


def test_a_sink_that_is_never_awaited_is_refused() -> None:
    ref: Any = SimpleNamespace(epoch=1)
    frame: Any = None
    with pytest.raises(ConfigError, match="sink='<coroutine>': it returns something that is not awaited here"):
        IntoSink(lambda frame, epoch: later())(frame, ref)


def test_a_failure_after_a_stop_is_raised_without_a_restart() -> None:
    query = Ended(OSError("away"))
    query.is_stopped = True
    with pytest.raises(OSError, match="away"):
        run_with_restarts(lambda: query, RestartPolicy(), sleep=pytest.fail)


def test_a_stop_during_the_delay_ends_it_with_the_failure() -> None:
    queries = [Ended(OSError("away"))]
    query = queries[0]
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        query.is_stopped = len(pauses) == 2

    with pytest.raises(OSError, match="away"):
        run_with_restarts(queries.pop, RestartPolicy(initial_delay=60.0), sleep=sleep)
    assert sum(pauses) < 1.0


def test_a_start_that_fails_counts_like_a_query() -> None:
    def start() -> Ended:
        raise OSError("no driver")

    pauses: list[float] = []
    with pytest.raises(OSError, match="no driver"):
        run_with_restarts(start, RestartPolicy(2, 1.0, 1.0), sleep=pauses.append)
    assert sum(pauses) == 2.0


def test_a_fenced_query_is_not_started_again() -> None:
    with pytest.raises(WriterFenced):
        run_with_restarts(lambda: Ended(WriterFenced("memory://a", 2, 3)), RestartPolicy(), sleep=pytest.fail)


@pytest.mark.parametrize("wrong", [{"start": Ended(), "restart": RestartPolicy()}, {"start": Ended, "restart": 3}])
def test_a_wrong_argument_is_refused_before_a_start(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        run_with_restarts(**wrong)


async def double(row: dict[str, Any]) -> tuple[int]:
    return (2 * row["n"],)


@pytest.mark.spark
def test_a_pipeline_continues_from_its_newest_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(5).withColumnRenamed("id", "n").write.parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema("n bigint").parquet(str(tmp_path / "in"))
    pipeline = AsyncPipeline(
        double,
        key_by="n",
        parallelism=2,
        output_schema="m bigint",
        snapshots=str(tmp_path / "state"),
        operator_id="double",
    )
    given: list[tuple[int, list[int]]] = []

    def sink(batch: DataFrame, epoch: int) -> None:
        given.append((epoch, sorted(row.m for row in batch.collect())))
        if len(given) < 3:
            raise OSError("the target is away")

    run_with_restarts(
        lambda: pipeline.start(
            frame, sink, checkpoint_location=str(tmp_path / "checkpoint"), trigger={"availableNow": True}
        ),
        RestartPolicy(5, 0.0, 0.0),
    )
    assert given == [(1, [0, 2, 4, 6, 8])] * 3
    query = pipeline.start(frame, sink, checkpoint_location=str(tmp_path / "checkpoint"))
    assert not query.is_stopped
    query.stop()
    assert query.is_stopped
    assert SnapshotStore(str(tmp_path / "state"), "double").latest() is not None
