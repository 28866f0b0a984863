"""How a query is started and ended: wrong arguments, and a stop that finishes what is in flight."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from async_op import AsyncFunction
from async_op.spark import query as query_module
from async_op.spark.query import check_stop
from keygroups import ConfigError
from tests.spark.runs import PipelineRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

ROWS = 20


class Wait(AsyncFunction):
    """Returns each row; a call for an odd one lasts until `released` exists."""

    def __init__(self, released: Path) -> None:
        self.released = released

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        with (self.released.parent / "calls").open("a") as calls:
            calls.write(f"{value['id']}\n")
        while value["id"] % 2 and not self.released.exists():
            await asyncio.sleep(0.01)
        return [(value["id"],)]


class Run(PipelineRun):
    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.released = folder / "released"
        super().__init__(
            spark,
            folder,
            Wait(self.released),
            "id bigint",
            key_by="id",
            output_schema="id bigint",
            operator_id="wait",
            barrier_timeout=0.2,
        )
        self.write_file(spark.range(ROWS))

    def start_and_wait(self) -> Any:
        """Start a query, and wait until it has delivered all rows whose calls are not held up."""
        query = self.pipeline().start(self.stream(), self.sink, checkpoint_location=self.folder / "checkpoint")
        while self.rows() != list(range(0, ROWS, 2)):
            query.awaitTermination(1)
        return query

    def calls(self) -> list[int]:
        calls = self.folder / "calls"
        return sorted(map(int, calls.read_text().split())) if calls.exists() else []

    def rows(self) -> list[int]:
        return sorted(row[0] for rows in list(self.delivered.values()) for row in rows)


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    run = Run(spark, tmp_path)
    yield run
    run.stop()


def test_a_stop_with_a_drain_finishes_what_is_in_flight(run: Run) -> None:
    query = run.start_and_wait()
    query.stop(drain=False)
    query = run.pipeline().start(run.stream(), run.sink, checkpoint_location=run.folder / "checkpoint")
    run.released.touch()
    query.stop(drain=True)
    assert run.rows() == list(range(ROWS))
    assert not query.isActive
    latest = run.store.latest()
    assert latest is not None
    assert latest.in_flight_count == 0


def test_a_stop_with_a_drain_repeats_no_call_of_the_micro_batch_under_way(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = threading.Event()

    def checked(drain: bool, timeout: Any) -> Any:
        stopping.set()
        return check_stop(drain, timeout)

    monkeypatch.setattr(query_module, "check_stop", checked)
    held, sleep = threading.Event(), query_module._sleep_until_interrupted

    def sleeping(spark: SparkSession) -> None:
        held.set()
        sleep(spark)

    monkeypatch.setattr(query_module, "_sleep_until_interrupted", sleeping)
    run.settings["barrier_timeout"] = None  # an epoch waits for its calls
    run.write_file(run.spark.range(ROWS, 2 * ROWS))
    stream = run.stream(maxFilesPerTrigger=1, latestFirst=False)
    query = run.pipeline().start(stream, run.sink, checkpoint_location=run.folder / "checkpoint")
    while len(run.calls()) < ROWS:
        query.awaitTermination(1)
    stop_at_once = query.query.stop
    query.query.stop = lambda: (held.wait(60), stop_at_once())  # the next micro-batch has come before
    stop = threading.Thread(target=query.stop, kwargs={"drain": True})
    stop.start()
    stopping.wait()
    run.released.touch()
    stop.join()
    assert held.is_set()
    assert query.exception() is None
    assert run.rows() == list(range(ROWS)), "no other micro-batch begins"
    assert run.calls() == list(range(ROWS))


@pytest.mark.parametrize("how", [{}, {"drain": True, "timeout": 0.1}], ids=["at once", "drain"])
def test_a_stop_cuts_a_micro_batch_off_so_that_only_calls_under_way_are_made_again(
    run: Run, how: dict[str, Any]
) -> None:
    run.settings["barrier_timeout"] = None
    query = run.pipeline().start(run.stream(), run.sink, checkpoint_location=run.folder / "checkpoint")
    while len(run.calls()) < ROWS:
        query.awaitTermination(1)
    query.stop(**how)
    assert query.exception() is None
    assert run.rows() == list(range(0, ROWS, 2))
    assert run.calls() == list(range(ROWS))
    latest = run.store.latest()
    assert latest is not None
    assert latest.in_flight_count == ROWS // 2
    run.released.touch()
    run.run()
    assert run.rows() == list(range(ROWS))
    assert run.calls() == sorted([*range(ROWS), *range(1, ROWS, 2)])


def test_a_micro_batch_whose_operators_live_in_their_tasks_is_given_up(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.settings |= {"barrier_timeout": None, "resident": False}
    query = run.pipeline().start(run.stream(), run.sink, checkpoint_location=run.folder / "checkpoint")
    while len(run.calls()) < ROWS:
        query.awaitTermination(1)
    query.stop()
    assert "given up, and its calls are made again" in caplog.text
    assert "given up (py4j.protocol.Py4JJavaError" in caplog.text, "Spark must see that it is no fault"
    assert query.exception() is None
    assert run.store.versions() == []
    run.released.touch()
    run.run()
    assert run.rows() == list(range(ROWS))


def test_a_drain_at_the_stop_is_bounded_and_keeps_what_is_in_flight(run: Run) -> None:
    query = run.start_and_wait()
    query.stop(drain=True, timeout=0.1)
    latest = run.store.latest()
    assert latest is not None
    assert latest.in_flight_count == ROWS // 2
    run.released.touch()
    run.run()
    assert run.rows() == list(range(ROWS))


def test_a_failure_of_the_last_drain_is_raised_and_delivered_at_the_next_start(run: Run) -> None:
    query = run.start_and_wait()
    latest = run.store.latest()
    assert latest is not None
    run.fail_sink_at = latest.version + 1
    run.released.touch()
    with pytest.raises(OSError, match="the sink is down"):
        query.stop(drain=True)
    assert not query.isActive
    run.run()
    assert run.rows() == list(range(ROWS))


def test_a_timeout_without_a_drain_is_refused(run: Run) -> None:
    query = run.start_and_wait()
    with pytest.raises(ConfigError, match=r"timeout=1\.0: it bounds the drain"):
        query.stop(timeout=1.0)
    with pytest.raises(ConfigError, match="timeout=-1"):
        query.stop(drain=True, timeout=-1)
    assert query.isActive
    query.stop()


WRONG: dict[str, tuple[Callable[[Run], dict[str, Any]], str]] = {
    "no DataFrame": (lambda _: {"stream_df": [1]}, r"stream_df=\[1\]: pass a DataFrame"),
    "bounded": (lambda run: {"stream_df": run.spark.range(1)}, "stream_df=.*is not streaming"),
    "no sink": (lambda _: {"sink": None}, "sink=None"),
    "a coroutine function": (lambda _: {"sink": Wait.async_invoke}, "sink=.*"),
    "no checkpoint": (lambda _: {"checkpoint_location": None}, "checkpoint_location=None"),
    "an empty name": (lambda _: {"checkpoint_location": ""}, "checkpoint_location=''"),
    "a trigger that is none": (lambda _: {"trigger": "availableNow"}, "trigger='availableNow'"),
    "an unknown trigger": (lambda _: {"trigger": {"availableNov": True}}, "pass one of processingTime"),
    "two triggers": (lambda _: {"trigger": {"availableNow": True, "once": True}}, "pass one of processingTime"),
    "a trigger without micro-batches": (lambda _: {"trigger": {"continuous": "1 second"}}, "pass one of"),
    "an empty interval": (lambda _: {"trigger": {"processingTime": ""}}, "Spark refuses it"),
    "no interval": (lambda _: {"trigger": {"processingTime": "soon"}}, "Spark refuses it"),
    "not available now": (lambda _: {"trigger": {"availableNow": False}}, "Spark refuses it"),
    "an unknown adoption": (lambda _: {"adopt": "both"}, "adopt='both'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_can_never_work_is_refused_by_start(run: Run, case: str) -> None:
    wrong, reason = WRONG[case]
    right: dict[str, Any] = {"stream_df": run.stream(), "sink": run.sink, "checkpoint_location": run.folder / "c"}
    with pytest.raises(ConfigError, match=reason):
        run.pipeline().start(**(right | wrong(run)))
    assert run.store.versions() == []
    assert not run.spark.streams.active
