"""The mailbox: who gets which mail when, and how it ends; and the event loop that owns one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from async_op.threads.loop_mailbox import LoopMailbox
from async_op.threads.mailbox import Mail, Mailbox
from tests.async_op.kit import ManualClock, settle


def nothing() -> None:
    """Do nothing."""


class Letters:
    """Mail that is known by its name when it runs."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def mail(self, name: str, *, urgent: bool = False) -> Mail:
        return Mail(lambda: self.read.append(name), urgent)

    def read_all(self, mailbox: Mailbox) -> list[str]:
        self.read.clear()
        while (mail := mailbox.take()) is not None:
            mail.run()
        return list(self.read)


def on_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.behaviour("mail is taken first in, first out")
def test_mail_is_taken_in_the_order_in_which_it_was_put() -> None:
    letters, mailbox = Letters(), Mailbox()
    assert not mailbox.has_mail()
    for name in "abc":
        mailbox.put(letters.mail(name))
    assert (mailbox.has_mail(), len(mailbox)) == (True, 3)
    assert mailbox.create_batch()
    assert letters.read_all(mailbox) == ["a", "b", "c"]
    assert not mailbox.create_batch()


@pytest.mark.behaviour("mail of another thread is run by who takes it")
@pytest.mark.behaviour("many threads may write mail, blocking or not")
def test_many_threads_may_put_while_the_owner_takes() -> None:
    mailbox, seen = Mailbox(), list[tuple[int, int, int]]()

    def put(writer: int) -> None:
        for number in range(1000):
            mailbox.put(Mail(lambda number=number: seen.append((writer, number, threading.get_ident()))))  # type: ignore[misc]

    writers = [threading.Thread(target=put, args=(writer,)) for writer in range(10)]
    for writer in writers:
        writer.start()
    while len(seen) < 10_000:
        mailbox.arrival.wait(60)
        mailbox.create_batch()
        while (mail := mailbox.take()) is not None:
            mail.run()
    for writer in writers:
        writer.join()
    assert {ident for _, _, ident in seen} == {threading.get_ident()}
    assert all([n for w, n, _ in seen if w == writer] == list(range(1000)) for writer in range(10))


@pytest.mark.behaviour("single urgent mails each come first")
@pytest.mark.behaviour("urgent mail overtakes the rest of a batch of mail")
@pytest.mark.parametrize("from_elsewhere", [False, True])
def test_urgent_mail_overtakes_the_rest_of_a_batch(from_elsewhere: bool) -> None:
    letters, mailbox = Letters(), Mailbox()
    for name in "abc":
        mailbox.put(letters.mail(name))
    mailbox.create_batch()
    for name in ("first", "second"):
        before = mailbox.take()
        assert before is not None
        before.run()
        urgent = letters.mail(name, urgent=True)
        if from_elsewhere:
            on_a_thread(lambda urgent=urgent: mailbox.put(urgent))  # type: ignore[misc]
        else:
            mailbox.put(urgent)
        overtaking = mailbox.take()
        assert overtaking is not None
        overtaking.run()
    assert letters.read == ["a", "first", "b", "second"]
    assert letters.read_all(mailbox) == ["c"]


@pytest.mark.behaviour("mail that comes while a batch is read waits for the next: mail that causes mail starves nobody")
def test_mail_that_comes_while_a_batch_is_read_waits_for_the_next() -> None:
    letters, mailbox = Letters(), Mailbox()
    mailbox.put(Mail(lambda: mailbox.put(letters.mail("later"))))
    mailbox.create_batch()
    assert letters.read_all(mailbox) == []
    mailbox.create_batch()
    assert letters.read_all(mailbox) == ["later"]


@pytest.mark.behaviour("a closed mailbox is neither filled nor emptied")
@pytest.mark.behaviour("closing cancels the mail that is left")
def test_closing_cancels_what_is_left_and_wakes_the_owner() -> None:
    mailbox, cancelled = Mailbox(), list[str]()
    mailbox.put(Mail(nothing, cancel=lambda: cancelled.append("batch")))
    mailbox.create_batch()
    assert not mailbox.arrival.is_set()
    mailbox.put(Mail(nothing))
    mailbox.put(Mail(nothing, cancel=lambda: cancelled.append("queue")))
    mailbox.create_batch()
    mailbox.close()
    assert cancelled == ["batch", "queue"]
    assert mailbox.arrival.is_set()
    assert not mailbox.is_open
    assert mailbox.take() is None
    for urgent in (False, True):
        assert not mailbox.put(Mail(nothing, urgent))


@pytest.mark.behaviour("the close cancels what is left and raises the first of its errors")
def test_all_that_is_left_is_cancelled_although_one_cancellation_fails() -> None:
    mailbox, cancelled = Mailbox(), list[str]()

    def fail() -> None:
        raise ValueError("first")

    for cancel in (fail, lambda: cancelled.append("second"), fail):
        mailbox.put(Mail(nothing, cancel=cancel))
    with pytest.raises(ValueError, match="first"):
        mailbox.close()
    assert cancelled == ["second"]


@pytest.mark.behaviour("closing ends the writers")
def test_the_end_of_a_mailbox_reaches_every_thread_that_puts() -> None:
    mailbox, ended = Mailbox(), list[bool]()

    def put() -> None:
        while mailbox.put(Mail(nothing)):
            pass
        ended.append(True)

    writers = [threading.Thread(target=put) for _ in range(8)]
    for writer in writers:
        writer.start()
    mailbox.close()
    for writer in writers:
        writer.join()
    assert ended == [True] * 8


def test_the_owner_is_told_once_for_all_the_mail_that_comes_before_it_looks() -> None:
    told = list[int]()
    mailbox = Mailbox(lambda: told.append(len(mailbox)))
    mailbox.put(Mail(nothing))
    mailbox.put(Mail(nothing))
    mailbox.create_batch()
    mailbox.put(Mail(nothing))
    assert told == [1, 3]


@pytest.mark.behaviour("mails, the latency of calls, the size of the queue and the time suspended are measured")
async def test_a_loop_runs_all_mail_at_hand_and_measures_how_long_it_waited() -> None:
    clock, ran = ManualClock(), list[str]()
    mailbox = LoopMailbox(clock)
    await asyncio.to_thread(mailbox.put, lambda: ran.append("a"))
    mailbox.put(lambda: ran.append("b"))
    mailbox.put(lambda: ran.append("urgent"), urgent=True)
    clock.jump(3.0)
    await settle()
    assert ran[-2:] == ["a", "b"] or ran == ["a", "urgent", "b"]
    assert (mailbox.mails, len(mailbox)) == (3, 0)
    assert sum(count for _, count in mailbox.latency.buckets) <= 2


@pytest.mark.parametrize("error", [ValueError("mail"), KeyError("mail")])
async def test_mail_that_raises_does_not_leave_the_rest_of_its_batch_lying(error: Exception) -> None:
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["exception"]))
    ran = list[str]()

    def fail() -> None:
        raise error

    mailbox = LoopMailbox(ManualClock())
    mailbox.put(fail)
    mailbox.put(lambda: ran.append("after"))
    await settle()
    assert (heard, ran) == ([error], ["after"])
    asyncio.get_running_loop().set_exception_handler(None)
