"""The mailbox processor: mail and the default action in turns, suspension, and how the loop ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from async_op.errors import MailboxClosed
from async_op.mailbox import MailboxState
from async_op.processor import MailboxExecutor, MailboxProcessor, Suspension
from async_op.waiting import WaitSituation


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


def test_mail_is_refused_once_the_end_is_near() -> None:
    processor = processor_of(nothing)
    processor.prepare_close()

    with pytest.raises(MailboxClosed):
        processor.executor().execute(lambda: None)


@pytest.mark.parametrize("from_action", [False, True])
def test_an_error_comes_out_of_the_loop(from_action: bool) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("in the loop")

    processor = processor_of(fail if from_action else nothing)
    if not from_action:
        processor.executor().execute(fail)

    with pytest.raises(ValueError, match="in the loop"):
        processor.run()


def test_an_error_that_another_thread_reports_comes_out_of_the_loop() -> None:
    processor = processor_of(nothing)
    reporter = threading.Thread(target=lambda: processor.report(ValueError("from afar")))
    reporter.start()

    with pytest.raises(ValueError, match="from afar"):
        processor.run()
    reporter.join(30)


def test_what_is_left_at_the_end_is_cancelled() -> None:
    events: list[str] = []
    processor = processor_of(nothing)
    processor.executor().execute(lambda: events.append("run"), cancel=lambda: events.append("cancelled"))
    processor.prepare_close()
    assert events == []

    processor.close()
    assert (events, processor.mailbox.state) == (["cancelled"], MailboxState.CLOSED)


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


def test_what_is_left_may_be_run_before_the_end() -> None:
    events: list[str] = []
    processor = processor_of(nothing)
    for name in "ab":
        processor.executor().execute(lambda name=name: events.append(name))
    processor.prepare_close()
    processor.drain()
    processor.close()

    assert events == ["a", "b"]


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


def test_the_default_action_runs_until_the_loop_is_ended() -> None:
    action = Counting(3)
    processor_of(action).run()

    assert action.count == 3


def test_a_suspended_default_action_waits_for_its_resumption_and_mail_goes_on() -> None:
    def suspend(processor: MailboxProcessor) -> None:
        suspension = processor.suspend_default_action(WaitSituation.SOURCE)
        processor.executor().execute(lambda: ran.append(action.count))
        processor.executor().execute(suspension.resume)

    ran: list[int] = []
    action = Counting(6, {3: suspend})
    processor_of(action).run()

    assert (action.count, ran) == (6, [3])


def test_suspending_twice_is_an_error() -> None:
    processor = processor_of(nothing)
    processor.suspend_default_action(WaitSituation.SOURCE)

    with pytest.raises(RuntimeError, match="suspended already"):
        processor.suspend_default_action(WaitSituation.SOURCE)


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


def test_ending_the_loop_after_it_was_closed_does_no_harm() -> None:
    processor = processor_of(nothing)
    processor.prepare_close()
    processor.close()

    processor.complete()
    processor.pause()


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


def test_a_loop_that_is_paused_before_it_starts_can_be_run_again() -> None:
    action = Counting(2)
    processor = processor_of(action)
    processor.pause()
    processor.run()
    assert action.count == 0

    processor.run()
    assert action.count == 2


def test_a_completed_loop_never_runs_again() -> None:
    action = Counting(3)
    processor = processor_of(action)
    processor.run()
    processor.run()

    assert (action.count, processor.step()) == (3, False)


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


# -- executors


def test_a_processor_is_idle_while_it_is_suspended_and_has_no_mail() -> None:
    processor = processor_of(nothing)
    executor = processor.executor()
    assert not executor.is_idle()

    processor.suspend_default_action(WaitSituation.SOURCE)
    assert executor.is_idle()
    executor.execute(lambda: None)
    assert not executor.is_idle()

    processor.drain()
    assert executor.is_idle()
    processor.prepare_close()
    assert not executor.is_idle()


def test_mail_of_another_thread_runs_on_the_owners() -> None:
    processor = processor_of(nothing)
    executor = processor.executor()
    ran_on: list[int] = []
    thread = threading.Thread(target=lambda: executor.execute(lambda: ran_on.append(threading.get_ident())))
    thread.start()
    thread.join(30)
    assert ran_on == []

    executor.run_one()
    assert ran_on == [threading.get_ident()]


def test_deferrable_mail_waits_for_the_main_loop() -> None:
    ran: list[str] = []
    processor = processor_of(nothing)
    executor = processor.executor(42)
    executor.execute(lambda: ran.append("deferrable"), deferrable=True)

    assert not executor.try_run_one()
    assert not processor.executor(0).try_run_one()
    assert ran == []
    processor.step()
    assert ran == ["deferrable"]


def test_mail_of_lower_priority_is_out_of_reach_in_the_middle_of_an_action() -> None:
    ran: list[str] = []
    processor = processor_of(nothing)
    upstream, downstream = processor.executor(0), processor.executor(1)
    upstream.execute(lambda: ran.append("upstream"))
    assert not downstream.try_run_one()

    downstream.execute(lambda: ran.append("downstream"))
    assert downstream.try_run_one()
    assert ran == ["downstream"]
    assert upstream.try_run_one()
    assert ran == ["downstream", "upstream"]


def test_trying_to_run_one_mail_tells_whether_there_was_any() -> None:
    executor = processor_of(nothing).executor()
    executor.execute(lambda: None)

    assert (executor.try_run_one(), executor.try_run_one()) == (True, False)


def test_running_one_mail_waits_for_it() -> None:
    executor = processor_of(nothing).executor()
    ran_on: list[int] = []
    thread = threading.Timer(0.01, lambda: executor.execute(lambda: ran_on.append(threading.get_ident())))
    thread.start()
    executor.run_one()
    thread.join(30)

    assert ran_on == [threading.get_ident()]


def test_an_error_of_mail_that_is_run_in_between_reaches_who_runs_it() -> None:
    def fail() -> None:
        raise ValueError("in the mail")

    executor = processor_of(nothing).executor()
    for run in (MailboxExecutor.run_one, MailboxExecutor.try_run_one):
        executor.execute(fail)
        with pytest.raises(ValueError, match="in the mail"):
            run(executor)


def test_after_the_end_nothing_can_be_run_in_between() -> None:
    ran: list[str] = []
    processor = processor_of(nothing)
    executor = processor.executor()
    executor.execute(lambda: ran.append("first"))
    executor.execute(lambda: ran.append("second"), cancel=lambda: ran.append("cancelled"))
    executor.run_one()
    processor.close()

    assert ran == ["first", "cancelled"]
    for use in (executor.run_one, executor.try_run_one):
        with pytest.raises(MailboxClosed):
            use()
