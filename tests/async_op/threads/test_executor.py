"""Executors: mail of a priority, run by the owner in the middle of an action."""

from __future__ import annotations

import threading

import pytest

from async_op.errors import MailboxClosed
from async_op.threads.processor import MailboxExecutor, MailboxProcessor
from async_op.threads.wait_strategies import WaitSituation


def processor_at_rest() -> MailboxProcessor:
    return MailboxProcessor(lambda _: None)


@pytest.mark.behaviour("a processor says when it is idle")
def test_a_processor_is_idle_while_it_is_suspended_and_has_no_mail() -> None:
    processor = processor_at_rest()
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


@pytest.mark.behaviour("mail of another thread is run by who takes it")
def test_mail_of_another_thread_runs_on_the_owners() -> None:
    processor = processor_at_rest()
    executor = processor.executor()
    ran_on: list[int] = []
    thread = threading.Thread(target=lambda: executor.execute(lambda: ran_on.append(threading.get_ident())))
    thread.start()
    thread.join(30)
    assert ran_on == []

    executor.run_one()
    assert ran_on == [threading.get_ident()]


@pytest.mark.behaviour("deferrable mail is left to the main loop")
def test_deferrable_mail_waits_for_the_main_loop() -> None:
    ran: list[str] = []
    processor = processor_at_rest()
    executor = processor.executor(42)
    executor.execute(lambda: ran.append("deferrable"), deferrable=True)

    assert not executor.try_run_one()
    assert not processor.executor(0).try_run_one()
    assert ran == []
    processor.step()
    assert ran == ["deferrable"]


@pytest.mark.behaviour("an action in the middle does not run mail of those before it")
def test_mail_of_lower_priority_is_out_of_reach_in_the_middle_of_an_action() -> None:
    ran: list[str] = []
    processor = processor_at_rest()
    upstream, downstream = processor.executor(0), processor.executor(1)
    upstream.execute(lambda: ran.append("upstream"))
    assert not downstream.try_run_one()

    downstream.execute(lambda: ran.append("downstream"))
    assert downstream.try_run_one()
    assert ran == ["downstream"]
    assert upstream.try_run_one()
    assert ran == ["downstream", "upstream"]


@pytest.mark.behaviour("running one mail tells whether there was any")
def test_trying_to_run_one_mail_tells_whether_there_was_any() -> None:
    executor = processor_at_rest().executor()
    executor.execute(lambda: None)

    assert (executor.try_run_one(), executor.try_run_one()) == (True, False)


@pytest.mark.behaviour("running one mail may wait for it")
def test_running_one_mail_waits_for_it() -> None:
    executor = processor_at_rest().executor()
    ran_on: list[int] = []
    thread = threading.Timer(0.01, lambda: executor.execute(lambda: ran_on.append(threading.get_ident())))
    thread.start()
    executor.run_one()
    thread.join(30)

    assert ran_on == [threading.get_ident()]


@pytest.mark.behaviour("running mail in the middle of an action lets its errors through")
def test_an_error_of_mail_that_is_run_in_between_reaches_who_runs_it() -> None:
    def fail() -> None:
        raise ValueError("in the mail")

    executor = processor_at_rest().executor()
    for run in (MailboxExecutor.run_one, MailboxExecutor.try_run_one):
        executor.execute(fail)
        with pytest.raises(ValueError, match="in the mail"):
            run(executor)


@pytest.mark.behaviour("after the close nothing runs in the middle of an action")
def test_after_the_end_nothing_can_be_run_in_between() -> None:
    ran: list[str] = []
    processor = processor_at_rest()
    executor = processor.executor()
    executor.execute(lambda: ran.append("first"))
    executor.execute(lambda: ran.append("second"), cancel=lambda: ran.append("cancelled"))
    executor.run_one()
    processor.close()

    assert ran == ["first", "cancelled"]
    for use in (executor.run_one, executor.try_run_one):
        with pytest.raises(MailboxClosed):
            use()
