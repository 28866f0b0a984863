"""The mailbox: who may put and take, in what order mail is taken, and how a mailbox ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from async_op.errors import MailboxClosed
from async_op.threads.mailbox import MIN_PRIORITY, Mail, Mailbox, MailboxState


def mail(name: str, priority: int = 0, **options: Any) -> Mail:
    return Mail(lambda: name, priority, name, **options)


def urgent(name: str, priority: int = 0) -> Mail:
    return mail(name, priority, urgent=True)


def filled(*mails: Mail) -> Mailbox:
    mailbox = Mailbox()
    for one in mails:
        mailbox.put(one)
    return mailbox


def names(mails: list[Mail]) -> list[str]:
    return [one.description for one in mails]


def take_all(mailbox: Mailbox, take: Callable[[], Mail | None]) -> list[str]:
    found = []
    while mailbox.has_mail():
        one = take()
        if one is None:
            break
        found.append(one.description)
    return found


def in_threads(count: int, work: Callable[[int], object]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.behaviour("mail is taken first in, first out")
def test_mail_is_taken_in_the_order_in_which_it_was_put() -> None:
    mailbox = Mailbox()
    assert (mailbox.has_mail(), len(mailbox), mailbox.try_take()) == (False, 0, None)
    for number in range(10):
        mailbox.put(mail(str(number)))
        assert (mailbox.has_mail(), len(mailbox)) == (True, number + 1)

    assert [mailbox.take().description for _ in range(10)] == [str(number) for number in range(10)]
    assert (mailbox.has_mail(), mailbox.try_take()) == (False, None)


@pytest.mark.behaviour("many threads may write mail, blocking or not")
@pytest.mark.parametrize("blocking", [True, False])
def test_many_threads_may_put_while_the_owner_takes(blocking: bool) -> None:
    mailbox = Mailbox()
    taken: list[str] = []

    def put(writer: int) -> None:
        for number in range(1000):
            mailbox.put(mail(f"{writer} {number}"))

    def take(_: int) -> None:
        while len(taken) < 10_000:
            if blocking:
                taken.append(mailbox.take().description)
            elif (one := mailbox.try_take()) is not None:
                taken.append(one.description)
            else:
                mailbox.arrival.wait(0.001)

    owner = threading.Thread(target=take, args=(0,))
    owner.start()
    in_threads(10, put)
    owner.join(30)

    assert len(set(taken)) == 10_000
    for writer in range(10):
        assert [one for one in taken if one.startswith(f"{writer} ")] == [f"{writer} {n}" for n in range(1000)]


@pytest.mark.behaviour("closing and quiescing end the writers")
@pytest.mark.parametrize("end", [Mailbox.quiesce, Mailbox.close], ids=["quiesce", "close"])
@pytest.mark.parametrize("is_urgent", [False, True], ids=["normal", "urgent"])
def test_the_end_of_a_mailbox_reaches_every_thread_that_puts(end: Callable[[Mailbox], object], is_urgent: bool) -> None:
    mailbox = Mailbox()
    started, ended = threading.Barrier(9), []

    def put(_: int) -> None:
        started.wait(30)
        while True:
            try:
                mailbox.put(mail("x", urgent=is_urgent))
            except MailboxClosed:
                ended.append(True)
                return

    def stop() -> None:
        started.wait(30)
        end(mailbox)

    stopper = threading.Thread(target=stop)
    stopper.start()
    in_threads(8, put)
    stopper.join(30)

    assert len(ended) == 8


@pytest.mark.parametrize("end", [Mailbox.quiesce, Mailbox.close], ids=["quiesce", "close"])
def test_the_end_of_a_mailbox_wakes_an_owner_that_waits_for_mail(end: Callable[[Mailbox], object]) -> None:
    mailbox = Mailbox()
    ended = []

    def take() -> None:
        with pytest.raises(MailboxClosed):
            mailbox.take()
        ended.append(True)

    owner = threading.Thread(target=take)
    owner.start()
    end(mailbox)
    owner.join(30)

    assert ended == [True]


@pytest.mark.behaviour("a quiesced mailbox is emptied but not filled")
def test_a_quiesced_mailbox_gives_what_it_has_and_takes_nothing() -> None:
    mailbox = filled(mail("a"), mail("b"))
    mailbox.quiesce()

    assert mailbox.state is MailboxState.QUIESCED
    for refused in (mail("c"), urgent("c")):
        with pytest.raises(MailboxClosed, match="quiesced"):
            mailbox.put(refused)
    assert mailbox.take().description == "a"
    assert [one and one.description for one in (mailbox.try_take(), mailbox.try_take())] == ["b", None]
    with pytest.raises(MailboxClosed):
        mailbox.take()


@pytest.mark.behaviour("a closed mailbox is neither filled nor emptied")
def test_a_closed_mailbox_gives_and_takes_nothing() -> None:
    mailbox = filled(mail("a"), mail("b"))
    mailbox.create_batch()
    mailbox.put(mail("c"))

    assert names(mailbox.close()) == ["a", "b", "c"]
    assert (mailbox.state, mailbox.has_mail()) == (MailboxState.CLOSED, False)
    for use in (lambda: mailbox.put(mail("d")), mailbox.take, mailbox.try_take, mailbox.try_take_from_batch):
        with pytest.raises(MailboxClosed, match="closed"):
            use()
    assert mailbox.close() == []


@pytest.mark.behaviour("the close cancels what is left and raises the first of its errors; draining runs it")
def test_a_closed_mailbox_does_not_become_quiesced() -> None:
    mailbox = Mailbox()
    mailbox.close()
    mailbox.quiesce()

    assert mailbox.state is MailboxState.CLOSED


@pytest.mark.behaviour("urgent mail comes first, and a priority hides what is below")
def test_urgent_mail_comes_first_and_a_priority_hides_what_is_below() -> None:
    mailbox = filled(mail("low 1", 1), mail("low 2", 1), urgent("high", 2), mail("high too", 2))

    assert mailbox.take(2).description == "high"
    assert mailbox.take(2).description == "high too"
    assert mailbox.try_take(2) is None
    assert [mailbox.take(1).description for _ in range(2)] == ["low 1", "low 2"]


@pytest.mark.behaviour("the lowest priority reads urgent mail first and then by arrival")
def test_the_main_loop_takes_urgent_mail_and_then_by_arrival_not_by_priority() -> None:
    mailbox = filled(mail("1", 1), mail("2", 2), mail("0", 0), urgent("!1", 1), urgent("!0", 0))

    assert take_all(mailbox, lambda: mailbox.take(MIN_PRIORITY)) == ["!0", "!1", "1", "2", "0"]


@pytest.mark.behaviour("an action in the middle does not run mail of those before it")
def test_a_reader_that_waits_for_its_priority_is_not_woken_for_good_by_less() -> None:
    mailbox = filled(mail("low", 0))
    taken = []
    reader = threading.Thread(target=lambda: taken.append(mailbox.take(5).description))
    reader.start()
    mailbox.put(mail("also low", 0))
    mailbox.put(mail("high", 5))
    reader.join(30)

    assert taken == ["high"]
    assert take_all(mailbox, mailbox.take) == ["low", "also low"]


@pytest.mark.behaviour("every way of taking empties the batch of mail first")
def test_a_batch_is_taken_before_what_came_after_it_was_made() -> None:
    mailbox = filled(*[mail(f"batch {number}") for number in range(3)])
    assert mailbox.create_batch()
    mailbox.put(mail("later"))

    taken = [mailbox.try_take_from_batch(), mailbox.try_take(), mailbox.take()]
    assert names([one for one in taken if one]) == ["batch 0", "batch 1", "batch 2"]
    assert mailbox.try_take_from_batch() is None
    assert names(mailbox.close()) == ["later"]


@pytest.mark.behaviour("every way of taking empties the batch of mail first")
def test_a_batch_of_nothing_is_none() -> None:
    assert not Mailbox().create_batch()


@pytest.mark.behaviour("draining gives the batch of mail and then the queue")
def test_draining_gives_the_batch_and_then_the_rest() -> None:
    mailbox = filled(mail("a"), mail("b"))
    mailbox.create_batch()
    mailbox.put(mail("c"))

    assert names(mailbox.drain()) == ["a", "b", "c"]
    assert not mailbox.has_mail()


@pytest.mark.behaviour("a priority looks past the batch of mail")
def test_a_priority_looks_past_a_batch_that_has_nothing_for_it() -> None:
    mailbox = filled(mail("in the batch", 1))
    mailbox.create_batch()
    mailbox.put(mail("outside", 2))

    assert mailbox.take(2).description == "outside"
    assert mailbox.try_take(2) is None
    assert mailbox.take(1).description == "in the batch"


@pytest.mark.behaviour("an exclusive block is not interrupted")
def test_nobody_closes_a_mailbox_in_the_middle_of_an_exclusive_block() -> None:
    mailbox = Mailbox()
    inside, closed = threading.Event(), []

    def close() -> None:
        inside.wait(30)
        closed.extend(names(mailbox.close()))

    closer = threading.Thread(target=close)
    closer.start()
    with mailbox.exclusively():
        for number in range(10):
            mailbox.put(mail(str(number)))
            inside.set()
            time.sleep(0)
    closer.join(30)

    assert closed == [str(number) for number in range(10)]


@pytest.mark.behaviour("urgent mail overtakes the rest of a batch of mail")
@pytest.mark.parametrize("from_elsewhere", [False, True])
def test_urgent_mail_overtakes_the_rest_of_a_batch(from_elsewhere: bool) -> None:
    mailbox = filled(mail("a"), mail("b"), mail("c"))
    mailbox.create_batch()
    first = mailbox.try_take_from_batch()
    if from_elsewhere:
        in_threads(1, lambda _: mailbox.put(urgent("now")))
    else:
        mailbox.put(urgent("now"))

    assert first is not None
    assert [first.description, *take_all(mailbox, mailbox.try_take_from_batch)] == ["a", "now", "b", "c"]


@pytest.mark.behaviour("without a batch urgent mail comes first, and the rest follows")
def test_without_a_batch_urgent_mail_comes_first_and_the_rest_follows() -> None:
    mailbox = filled(mail("normal"), urgent("now"))

    assert take_all(mailbox, mailbox.try_take) == ["now", "normal"]


@pytest.mark.behaviour("urgent mail, then the batch, then the queue, for every way of taking")
@pytest.mark.parametrize("take", [Mailbox.try_take_from_batch, Mailbox.try_take, Mailbox.take])
def test_urgent_mail_comes_first_then_the_batch_then_the_queue(take: Callable[[Mailbox], Mail | None]) -> None:
    mailbox = filled(mail("batch 1"), mail("batch 2"))
    mailbox.create_batch()
    mailbox.put(mail("later"))
    mailbox.put(urgent("now"))
    mailbox.put(urgent("right now"))

    expected = ["right now", "now", "batch 1", "batch 2", "later"]
    assert take_all(mailbox, lambda: take(mailbox)) == (
        expected[:-1] if take is Mailbox.try_take_from_batch else expected
    )


@pytest.mark.behaviour("single urgent mails each come first")
@pytest.mark.parametrize("from_elsewhere", [False, True])
def test_single_urgent_mails_between_others_each_come_first(from_elsewhere: bool) -> None:
    def put(one: Mail) -> None:
        if from_elsewhere:
            in_threads(1, lambda _: mailbox.put(one))
        else:
            mailbox.put(one)

    mailbox = filled(mail("a"))
    put(urgent("!1"))
    assert mailbox.take().description == "!1"
    assert mailbox.try_take_from_batch() is None
    mailbox.put(mail("b"))
    mailbox.create_batch()
    put(urgent("!2"))
    mailbox.put(mail("c"))

    assert take_all(mailbox, mailbox.try_take_from_batch) == ["!2", "a", "b"]
    assert mailbox.take().description == "c"


@pytest.mark.behaviour("deferrable mail is left to the main loop")
def test_deferrable_mail_is_only_for_the_main_loop() -> None:
    mailbox = filled(mail("later", 42, deferrable=True))

    assert mailbox.try_take(42) is None
    assert mailbox.try_take(0) is None
    assert mailbox.take(MIN_PRIORITY).description == "later"


@pytest.mark.behaviour("mails, the latency of calls, the size of the queue and the time suspended are measured")
def test_the_owner_is_told_once_for_all_the_mail_that_comes_before_it_looks() -> None:
    """One wake-up for a thousand results, not a thousand."""
    told = []
    mailbox = Mailbox(lambda: told.append(True))
    in_threads(4, lambda number: [mailbox.put(mail(str(number))) for _ in range(250)])
    assert told == [True]

    mailbox.create_batch()
    mailbox.put(mail("next"))
    assert told == [True, True]
    assert len(mailbox) == 1001
