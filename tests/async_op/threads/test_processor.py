"""The mailbox processor: mail and the default action in turns, suspension, and how the loop ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from async_op.errors import MailboxClosed
from async_op.threads.mailbox import MailboxState
from async_op.threads.processor import MailboxProcessor, Suspension
from async_op.threads.wait_strategies import WaitSituation


def processor_of(action: Callable[[MailboxProcessor], object]) -> MailboxProcessor:
    return MailboxProcessor(action)


def nothing(_: MailboxProcessor) -> None:
    """Do nothing."""


class Counting:
    """A default action that counts, and ends the loop after so many."""

    def __init__(self, last: int, at: dict[int, Callable[[MailboxProcessor], object]] | None = None) -> None:
        self.last = last
        self.count = 0
        self._at = at or {}

    def __call__(self, processor: MailboxProcessor) -> None:
        self.count += 1
        self._at.get(self.count, nothing)(processor)
        if self.count == self.last:
            processor.complete()


def resume_from_a_thread(suspension: Suspension) -> threading.Thread:
    thread = threading.Thread(target=suspension.resume)
    thread.start()
    return thread


@pytest.mark.behaviour("mail is refused once the end is near")
def test_mail_is_refused_once_the_end_is_near() -> None:
    processor = processor_of(nothing)
    processor.prepare_close()

    with pytest.raises(MailboxClosed):
        processor.executor().execute(lambda: None)


@pytest.mark.behaviour("an error comes out of the loop")
@pytest.mark.parametrize("from_action", [False, True])
def test_an_error_comes_out_of_the_loop(from_action: bool) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("in the loop")

    processor = processor_of(fail if from_action else nothing)
    if not from_action:
        processor.executor().execute(fail)

    with pytest.raises(ValueError, match="in the loop"):
        processor.run()


@pytest.mark.behaviour("control mail goes first, and an error that is reported comes out of the loop")
def test_an_error_that_another_thread_reports_comes_out_of_the_loop() -> None:
    processor = processor_of(nothing)
    reporter = threading.Thread(target=lambda: processor.report(ValueError("from afar")))
    reporter.start()

    with pytest.raises(ValueError, match="from afar"):
        processor.run()
    reporter.join(30)


@pytest.mark.behaviour("closing cancels the mail that is left")
def test_what_is_left_at_the_end_is_cancelled() -> None:
    events: list[str] = []
    processor = processor_of(nothing)
    processor.executor().execute(lambda: events.append("run"), cancel=lambda: events.append("cancelled"))
    processor.prepare_close()
    assert events == []

    processor.close()
    assert (events, processor.mailbox.state) == (["cancelled"], MailboxState.CLOSED)


@pytest.mark.behaviour("the close cancels what is left and raises the first of its errors; draining runs it")
def test_all_that_is_left_is_cancelled_although_one_cancellation_fails() -> None:
    events: list[str] = []

    def fail() -> None:
        raise ValueError("cannot be cancelled")

    processor = processor_of(nothing)
    for cancel in (fail, lambda: events.append("cancelled")):
        processor.executor().execute(lambda: None, cancel=cancel)

    with pytest.raises(ValueError, match="cannot be cancelled"):
        processor.close()
    assert events == ["cancelled"]


@pytest.mark.behaviour("the close cancels what is left and raises the first of its errors; draining runs it")
def test_what_is_left_may_be_run_before_the_end() -> None:
    events: list[str] = []
    processor = processor_of(nothing)
    for name in "ab":
        processor.executor().execute(lambda name=name: events.append(name))
    processor.prepare_close()
    processor.drain()
    processor.close()

    assert events == ["a", "b"]


@pytest.mark.behaviour("the default action and mail both run")
@pytest.mark.behaviour("mails, the latency of calls, the size of the queue and the time suspended are measured")
def test_the_default_action_and_mail_both_run() -> None:
    ran = []
    action = Counting(5)
    processor = processor_of(action)
    processor.executor().execute(lambda: ran.append(True))
    processor.run()

    statistics = processor.statistics()
    assert (action.count, ran) == (5, [True])
    assert statistics.default_actions == 5
    assert statistics.mails >= 1


@pytest.mark.behaviour("the default action runs until it is stopped")
def test_the_default_action_runs_until_the_loop_is_ended() -> None:
    action = Counting(3)
    processor_of(action).run()

    assert action.count == 3


@pytest.mark.behaviour("mail goes on while the default action is suspended, and resumes it")
def test_a_suspended_default_action_waits_for_its_resumption_and_mail_goes_on() -> None:
    def suspend(processor: MailboxProcessor) -> None:
        suspension = processor.suspend_default_action(WaitSituation.SOURCE)
        processor.executor().execute(lambda: ran.append(action.count))
        processor.executor().execute(suspension.resume)

    ran: list[int] = []
    action = Counting(6, {3: suspend})
    processor_of(action).run()

    assert (action.count, ran) == (6, [3])


@pytest.mark.behaviour("a suspension is made by the owner, once at a time, and ended by any thread")
def test_suspending_twice_is_an_error() -> None:
    processor = processor_of(nothing)
    processor.suspend_default_action(WaitSituation.SOURCE)

    with pytest.raises(RuntimeError, match="suspended already"):
        processor.suspend_default_action(WaitSituation.SOURCE)


@pytest.mark.behaviour("ten thousand suspensions are each ended by another thread")
def test_ten_thousand_suspensions_are_each_ended_by_another_thread() -> None:
    """The default action never runs while it is suspended, and never stays suspended."""
    resumptions = threading.Semaphore(0)
    waiting: list[Suspension] = []

    def serve() -> None:
        for _ in range(10_000):
            resumptions.acquire()
            waiting.pop().resume()

    def act(processor: MailboxProcessor) -> None:
        nonlocal count
        assert not processor.suspended
        count += 1
        if count > 10_000:
            processor.complete()
            return
        waiting.append(processor.suspend_default_action(WaitSituation.SOURCE))
        resumptions.release()

    count = 0
    server = threading.Thread(target=serve)
    server.start()
    processor_of(act).run()
    server.join(30)

    assert count == 10_001


@pytest.mark.behaviour("a suspension is made by the owner, once at a time, and ended by any thread")
def test_resuming_twice_or_after_the_end_does_no_harm() -> None:
    processor = processor_of(nothing)
    suspension = processor.suspend_default_action(WaitSituation.CONSUME)
    suspension.resume()
    suspension.resume()
    processor.step()
    assert not processor.suspended

    processor.complete()
    processor.run()
    processor.close()
    suspension.resume()


@pytest.mark.behaviour("a suspension is made by the owner, once at a time, and ended by any thread")
def test_a_suspension_that_has_ended_does_not_end_the_next_one() -> None:
    processor = processor_of(nothing)
    first = processor.suspend_default_action(WaitSituation.SOURCE)
    first.resume()
    processor.step()
    processor.suspend_default_action(WaitSituation.SOURCE)
    first.resume()
    executor = processor.executor(-1)
    while executor.try_run_one():
        pass

    assert processor.suspended


@pytest.mark.behaviour("completing after the close is harmless")
def test_ending_the_loop_after_it_was_closed_does_no_harm() -> None:
    processor = processor_of(nothing)
    processor.prepare_close()
    processor.close()

    processor.complete()
    processor.pause()


@pytest.mark.behaviour("a step runs the mail that was there, then acts once: mail that causes mail starves nobody")
def test_mail_that_causes_mail_does_not_starve_the_default_action() -> None:
    """Each step runs the mail that was there when it began, and the default action once."""
    runs = []

    def again() -> None:
        runs.append(True)
        processor.executor().execute(again)

    action = Counting(3)
    processor = processor_of(action)
    processor.executor().execute(again)
    processor.run()

    assert (action.count, len(runs)) == (3, 3)


@pytest.mark.behaviour("a paused loop keeps its mail")
def test_a_paused_loop_leaves_mail_for_the_next_run() -> None:
    ran: list[str] = []
    action = Counting(10, {2: lambda processor: processor.pause()})
    processor = processor_of(action)
    processor.run()
    assert action.count == 2

    processor.executor().execute(lambda: ran.append("mail"))
    assert ran == []
    processor.run()
    assert (action.count, ran) == (10, ["mail"])


@pytest.mark.behaviour("a loop may be paused before it starts")
def test_a_loop_that_is_paused_before_it_starts_can_be_run_again() -> None:
    action = Counting(2)
    processor = processor_of(action)
    processor.pause()
    processor.run()
    assert action.count == 0

    processor.run()
    assert action.count == 2


@pytest.mark.behaviour("a completed loop never runs again")
def test_a_completed_loop_never_runs_again() -> None:
    action = Counting(3)
    processor = processor_of(action)
    processor.run()
    processor.run()

    assert (action.count, processor.step()) == (3, False)


@pytest.mark.behaviour("mails, the latency of calls, the size of the queue and the time suspended are measured")
def test_waiting_for_mail_is_counted_by_its_reason() -> None:
    threads = []

    def suspend(processor: MailboxProcessor) -> None:
        suspension = processor.suspend_default_action(WaitSituation.BACK_PRESSURE)
        threads.append(threading.Timer(0.02, suspension.resume))
        threads[0].start()

    processor = processor_of(Counting(2, {1: suspend}))
    processor.run()
    threads[0].join()

    waited = processor.statistics().waited_seconds
    assert waited[WaitSituation.BACK_PRESSURE] > 0
    assert waited[WaitSituation.SOURCE] == waited[WaitSituation.CONSUME] == 0


def test_a_suspended_loop_that_is_quiesced_without_mail_raises_instead_of_waiting_for_ever() -> None:
    def suspend(processor: MailboxProcessor) -> None:
        processor.suspend_default_action(WaitSituation.SOURCE)
        processor.prepare_close()

    with pytest.raises(MailboxClosed):
        processor_of(suspend).run()
