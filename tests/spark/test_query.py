"""How a query is started and ended: wrong arguments, and a stop that finishes what is in flight."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from async_op import AsyncFunction
from async_op.spark import query as query_module
from async_op.spark import running_query, stopping
from async_op.spark.running_query import check_stop, plain_interrupts
from keygroups import ConfigError
from tests.quick import first_is_quick
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
        self.options: dict[str, Any] = {}
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
        place = self.folder / "checkpoint"
        query = self.pipeline().start(self.stream(), self.sink, checkpoint_location=place, **self.options)
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


@pytest.mark.parametrize("is_pinned", first_is_quick([True, False]))
def test_a_stop_with_a_drain_repeats_no_call_of_the_micro_batch_under_way(
    run: Run, monkeypatch: pytest.MonkeyPatch, is_pinned: bool
) -> None:
    stopping = threading.Event()

    def checked(drain: bool, timeout: Any) -> Any:
        stopping.set()
        return check_stop(drain, timeout)

    monkeypatch.setattr(running_query, "check_stop", checked)
    held, sleep = threading.Event(), query_module._sleep_until_interrupted

    def sleeping(spark: SparkSession) -> None:
        held.set()
        if is_pinned:
            sleep(spark)
        else:  # PYSPARK_PIN_THREAD=false: Spark interrupts another thread
            threading.Event().wait(0.05)

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


@pytest.mark.parametrize("how", first_is_quick([{}, {"drain": True, "timeout": 0.1}]), ids=["at once", "drain"])
def test_a_stop_cuts_a_micro_batch_off_so_that_only_calls_under_way_are_repeated(run: Run, how: dict[str, Any]) -> None:
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


def is_epoch_under_way(query: Any) -> bool:
    lock = query.runner._lock
    if lock.acquire(blocking=False):
        lock.release()
        return False
    return True


@pytest.mark.parametrize("how", first_is_quick([{}, {"drain": True, "timeout": 0.1}]), ids=["at once", "drain"])
@pytest.mark.parametrize("end", first_is_quick(["of the input", "of another stop", "of a drain"]))
def test_a_stop_cuts_off_who_waits_for_calls_already(run: Run, end: str, how: dict[str, Any]) -> None:
    if end == "of the input":
        run.options["trigger"] = {"availableNow": True}
    query = run.start_and_wait()
    waits = {"of another stop": partial(query.stop, drain=True), "of a drain": query.drain}.get(end)
    waiting = threading.Thread(target=waits or query.query.awaitTermination)
    waiting.start()
    while not is_epoch_under_way(query):
        waiting.join(0.1)
    query.stop(**how)
    waiting.join()
    assert not query.isActive
    assert query.exception() is None
    latest = run.store.latest()
    assert latest is not None
    assert latest.in_flight_count == ROWS // 2
    run.released.touch()
    run.run()
    assert run.rows() == list(range(ROWS))


@pytest.mark.thorough
def test_a_stop_gives_up_an_epoch_without_input_whose_operators_live_in_their_tasks(run: Run) -> None:
    run.settings["resident"] = False
    query = run.start_and_wait()
    while len(run.calls()) < ROWS * 3 // 2:  # an epoch without input has made those again that had not returned
        query.awaitTermination(1)
    query.stop()
    assert query.exception() is None
    run.released.touch()
    run.run()
    assert run.rows() == list(range(ROWS))


def test_a_stop_waits_for_the_sink_of_a_micro_batch_that_is_committed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "CONCLUDE_SECONDS", 0.0)
    entered, has_waited, is_over = threading.Event(), threading.Event(), stopping.Stopping.is_over

    def asked(self: Any, until: float | None) -> bool:
        has_waited.set()
        return is_over(self, until)

    def sink(batch: Any, epoch: int) -> None:
        if not entered.is_set():
            entered.set()
            has_waited.wait(60)
        run.sink(batch, epoch)

    monkeypatch.setattr(stopping.Stopping, "is_over", asked)
    run.released.touch()
    query = run.pipeline().start(run.stream(), sink, checkpoint_location=run.folder / "checkpoint")
    assert entered.wait(120)
    query.stop()
    assert query.exception() is None
    assert run.rows() == list(range(ROWS))
    assert set(run.deliveries.values()) == {1}


def test_a_drain_whose_micro_batch_fails_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    by = stopping.Stopping.by

    def released(self: Any, until: float | None) -> Any:
        run.released.touch()
        return by(self, until)

    monkeypatch.setattr(stopping.Stopping, "by", released)
    run.settings["barrier_timeout"] = None
    run.fail_sink_at = 1
    query = run.pipeline().start(run.stream(), run.sink, checkpoint_location=run.folder / "checkpoint")
    while len(run.calls()) < ROWS:
        query.awaitTermination(1)
    with pytest.raises(OSError, match="the sink is down"):
        query.stop(drain=True)
    query.stop(drain=True)
    run.run()
    assert run.rows() == list(range(ROWS))


@pytest.mark.parametrize("interrupt", first_is_quick([KeyboardInterrupt, SystemExit]))
def test_a_drain_that_is_interrupted_ends_at_once(
    run: Run, monkeypatch: pytest.MonkeyPatch, interrupt: type[BaseException]
) -> None:
    query, finish, interrupts = run.start_and_wait(), query_module.PipelineQuery._finish_batch, [interrupt]

    def interrupted(query: Any, until: float | None) -> None:
        if interrupts:
            raise interrupts.pop()
        finish(query, until)

    monkeypatch.setattr(query_module.PipelineQuery, "_finish_batch", interrupted)
    with pytest.raises(interrupt):
        query.stop(drain=True)
    assert not query.isActive
    assert query.exception() is None
    latest = run.store.latest()
    assert latest is not None
    assert latest.in_flight_count == ROWS // 2


def test_an_interrupt_while_the_main_thread_waits_cancels_no_jobs() -> None:
    def of_pyspark(*_: object) -> None:
        raise AssertionError("it would cancel all jobs")

    of_pyspark.__module__ = "pyspark.core.context"
    before = signal.signal(signal.SIGINT, of_pyspark)
    try:
        with pytest.raises(KeyboardInterrupt), plain_interrupts():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is of_pyspark
        with concurrent.futures.ThreadPoolExecutor() as pool, plain_interrupts():
            pool.submit(lambda: plain_interrupts().__enter__()).result()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_micro_batch_whose_operators_live_in_their_tasks_is_given_up(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.settings |= {"barrier_timeout": None, "resident": False}
    query = run.pipeline().start(run.stream(), run.sink, checkpoint_location=run.folder / "checkpoint")
    while len(run.calls()) < ROWS:
        query.awaitTermination(1)
    query.stop()
    assert "the micro-batch under way is abandoned, and the next start repeats its calls" in caplog.text
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
    "no DataFrame": (lambda _: {"stream_df": [1]}, "stream_df='<list>': pass a DataFrame"),
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
