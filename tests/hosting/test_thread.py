"""A host on a thread beside the one that feeds it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from async_op import ElementFailed, InvocationContext, OperatorInterrupted
from async_op.errors import OpenFailed
from async_op.hosting import messages as say
from async_op.hosting import thread
from async_op.hosting.errors import FeederFenced, HostLost
from async_op.hosting.feeder import Feeder
from async_op.hosting.fencing import NewestManifest
from async_op.hosting.host import Host
from async_op.hosting.thread import HostThread
from async_op.subtask.operator import ResidentOperator
from async_op.threads.loop_thread import LoopThread
from async_op.threads.wait_strategies import ParkWait, ProgressiveWait, WaitSituation, WaitStrategies, WaitStrategy
from async_op.threads.waits import Waits
from snapshots import SnapshotStore
from tests.hosting.kit import (
    CancelledOpen,
    Counting,
    FailingClose,
    FailingOpen,
    InterruptedOpen,
    OperatorFactory,
    Releasing,
    Straying,
    StuckClose,
    ask,
    driven,
    epoch,
    hello,
    rows,
    settings,
)
from tests.threads import left_since, threads_since


def test_epochs_run_on_the_other_thread_and_leave_none() -> None:
    before = set(threading.enumerate())
    with HostThread(OperatorFactory(), settings()) as host:
        cut_id, outputs, _ = epoch(host.channel(), hello(), [rows("a", "b")])
        assert outputs == [("a", 1), ("b", 1)]
        _, outputs, in_flight = epoch(
            host.channel(), hello(1, 2, cut_id=cut_id, timeout=0.0), [rows("c", seconds=600.0)]
        )
        assert (outputs, in_flight) == ([], ["c"])

    assert left_since(before) == []


def test_more_batches_than_are_under_way_at_once_are_fed_in_order() -> None:
    with HostThread(OperatorFactory(), settings()) as host:
        _, outputs, _ = epoch(host.channel(), hello(), [rows("a", "b") for _ in range(50)])

    assert outputs == [(key, number) for number in range(1, 51) for key in "ab"]


@pytest.mark.parametrize("strategy", [ParkWait(60), ParkWait(0), ProgressiveWait()], ids=str)
def test_the_feeding_thread_waits_as_it_is_told_and_knows_for_how_long(strategy: WaitStrategy, tmp_path: Path) -> None:
    released = tmp_path / "released"
    waits = Waits(WaitStrategies(consume=Releasing(strategy, released), back_pressure=strategy))
    batches = [rows("a", "b") for _ in range(20)]
    with HostThread(OperatorFactory(), settings()) as host:
        _, outputs, _ = epoch(host.channel(waits), hello(), [*batches, rows("c", action=str(released))])

    assert len(outputs) == 41
    assert waits.seconds[WaitSituation.CONSUME] > 0
    assert waits.seconds[WaitSituation.SOURCE] == 0


def test_an_error_is_raised_in_the_feeding_thread() -> None:
    with HostThread(OperatorFactory(), settings()) as host:
        feeder = Feeder(host.channel())
        assert driven(feeder.hello(hello())) is None
        with pytest.raises(ElementFailed, match="ValueError: a"):
            driven(feeder.feed([rows("a", action="fail")]))
            driven(feeder.settle())
        feeder.close()


def test_an_error_of_open_is_raised_in_the_feeding_thread() -> None:
    with HostThread(OperatorFactory(FailingOpen), settings()) as host, pytest.raises(OpenFailed, match="no service"):
        epoch(host.channel(), hello())


@pytest.mark.parametrize("function", [InterruptedOpen, CancelledOpen])
def test_what_open_raises_reaches_the_feeding_thread_though_it_is_no_exception(function: type[InterruptedOpen]) -> None:
    with (
        HostThread(OperatorFactory(function), settings()) as host,
        pytest.raises(OpenFailed, match=function.raised.__name__),
    ):
        epoch(host.channel(), hello())


class Blocking(Counting):
    """Occupies its event loop until the test lets it go."""

    released = threading.Event()

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        self.released.wait()
        return []


def test_a_function_that_blocks_the_loop_is_an_error_and_does_not_hold_the_end_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thread, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(Blocking, "released", threading.Event())
    before = set(threading.enumerate())
    with HostThread(OperatorFactory(Blocking), settings(patience_seconds=1.5)) as host:
        feeder = Feeder(host.channel())
        assert driven(feeder.hello(hello())) is None
        with pytest.raises(HostLost, match="no sign of life"):
            driven(feeder.feed([rows("a")]))
            driven(feeder.settle())
        feeder.close()

    assert {thread.name for thread in threads_since(before)} == {"keygroups loop", "keygroups watchdog"}
    Blocking.released.set()


@dataclass(frozen=True)
class WithoutOperator(OperatorFactory):
    """Cannot make its operator, or does so only when the test has ended."""

    raised: type[BaseException] | None = None

    def operator(self, subtask_index: int, output: Callable[[Any], object]) -> ResidentOperator:
        if self.raised is None:
            Blocking.released.wait()
            raise OSError
        raise self.raised


@pytest.mark.parametrize(("raised", "told"), [(ValueError, ValueError), (SystemExit, OperatorInterrupted)])
def test_a_host_that_cannot_be_made_leaves_no_thread(raised: type[BaseException], told: type[Exception]) -> None:
    before, host = set(threading.enumerate()), HostThread(WithoutOperator(raised=raised), settings())
    with pytest.raises(told):
        host.__enter__()

    assert left_since(before) == []
    assert host._thread.loop.is_closed()


def test_a_host_that_cannot_be_made_in_time_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(Blocking, "released", threading.Event())

    def interrupted(self: LoopThread, work: Coroutine[Any, Any, Any], seconds: float | None = None) -> Any:
        future = self.begin(work)
        if seconds is None:
            raise KeyboardInterrupt
        return future.result(seconds)

    monkeypatch.setattr(LoopThread, "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        HostThread(WithoutOperator(), settings()).__enter__()
    Blocking.released.set()


def test_a_feeder_waits_in_steps_that_let_it_show_that_it_lives() -> None:
    with HostThread(OperatorFactory(), settings()) as host:
        feeder = Feeder(host.channel())
        assert driven(feeder.hello(hello())) is None
        driven(feeder.feed([rows("a", seconds=600.0)]))
        assert next(feeder.settle()) is None
        feeder.close()


def test_a_host_that_answers_no_more_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(*_: Any) -> say.Reply:
        raise asyncio.CancelledError

    monkeypatch.setattr(Host, "answer", answer)
    with HostThread(OperatorFactory(), settings()) as host:
        channel = host.channel()
        with pytest.raises(HostLost, match="answers no more"):
            ask(channel, say.Poll())
        channel.close()


def test_a_feeder_whose_epoch_is_over_is_fenced() -> None:
    with HostThread(OperatorFactory(), settings()) as host:
        feeder = Feeder(host.channel())
        assert driven(feeder.hello(hello())) is None
        driven(feeder.cut(say.Cut(1)))
        with pytest.raises(FeederFenced):
            driven(feeder.feed([rows("a")]))
        feeder.close()


def test_what_a_host_in_a_task_took_over_is_waited_for_beyond_the_barrier_and_nothing_else_is() -> None:
    store = SnapshotStore("memory://taken over", "host")
    pending = store.begin()
    with HostThread(OperatorFactory(), settings()) as host:
        feeder = Feeder(host.channel())
        assert driven(feeder.hello(hello(timeout=0.0))) is None
        driven(feeder.feed([rows("slow", seconds=2.0)]))
        handle, _ = driven(feeder.cut(say.Cut(1, target=pending))).handle
        feeder.close()
    taken_over = pending.commit([handle])

    named = taken_over.manifest.snapshot_id
    in_task = settings(restore=taken_over.restore(0), manifest_id=named, is_resident=False)
    with HostThread(OperatorFactory(), in_task) as host:
        greeting = replace(hello(1, timeout=0.0), manifest=NewestManifest(named, None))
        _, outputs, in_flight = epoch(host.channel(), greeting, [rows("endless", seconds=600.0)])

    assert outputs == [("slow", 1)]
    assert in_flight == ["endless"]


def test_a_stray_task_that_would_end_the_loop_fails_the_epoch() -> None:
    with (
        HostThread(OperatorFactory(Straying), settings()) as host,
        pytest.raises(OperatorInterrupted, match="SystemExit"),
    ):
        epoch(host.channel(), hello(), [rows("endless", seconds=600.0)])


def test_a_function_that_does_not_close_is_given_up_in_a_task_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(thread, "CLOSE_SECONDS", 1.0)
    before = set(threading.enumerate())
    with HostThread(OperatorFactory(StuckClose), settings(is_resident=False)) as host:
        epoch(host.channel(), hello(), [rows("a")])

    assert left_since(before) == []
    assert "close() of the function was given up after 1 s" in caplog.text


def test_a_function_that_fails_to_close_leaves_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    before = set(threading.enumerate())
    with HostThread(OperatorFactory(FailingClose), settings(is_resident=False)) as host:
        epoch(host.channel(), hello(), [rows("a")])

    assert left_since(before) == []
    assert "no answer" in caplog.text
