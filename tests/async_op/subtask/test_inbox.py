"""The inbox and the outbox of a subtask: who is woken when, and what they keep."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op.clock import LoopClock
from async_op.elements import Record, Watermark
from async_op.subtask.inbox import Reserve, ReservedInbox
from async_op.subtask.outbox import RUN, Outbox
from async_op.testing import VirtualLoop
from tests.simulation.abandon import run_alone

FOR_EVER = 10.0**6


def run(work: Coroutine[Any, Any, None]) -> None:
    run_alone(VirtualLoop(), work)


def inbox_of(size: int) -> ReservedInbox:
    inbox = ReservedInbox(LoopClock(asyncio.get_running_loop()), Reserve(1))
    inbox.put(((number, None, None) for number in range(size)), size)
    return inbox


@given(size=st.integers(0, 40), awaited=st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_whoever_waits_is_woken_as_soon_as_few_enough_are_left(size: int, awaited: list[int]) -> None:
    async def test() -> None:
        inbox, woken = inbox_of(size), dict[int, int]()

        async def wait(number: int, length: int) -> None:
            await inbox.wait_until_at_most(length, FOR_EVER)
            woken[number] = len(inbox)

        waiting = [asyncio.ensure_future(wait(number, length)) for number, length in enumerate(awaited)]
        await asyncio.sleep(0)
        while inbox:
            inbox.elements.popleft()
            inbox.shrunk(len(inbox) + 1)
            for _ in range(3):
                await asyncio.sleep(0)
        await asyncio.gather(*waiting)

        assert asyncio.get_running_loop().time() == 0.0, "nobody waits for the time to be over"
        assert woken == {number: min(length, size) for number, length in enumerate(awaited)}

    run(test())


def test_nobody_is_woken_by_elements_that_are_too_few() -> None:
    async def test() -> None:
        inbox = inbox_of(1000)
        waiting = asyncio.ensure_future(inbox.wait_until_at_most(10, FOR_EVER))
        await asyncio.sleep(0)
        wakes = 0
        while inbox:
            inbox.elements.popleft()
            wakes += len(inbox) <= inbox.awaited
            inbox.shrunk(len(inbox) + 1)
            if len(inbox) == 10:
                await waiting
        assert wakes == 2, "once for who waits, and once because it is empty"

    run(test())


def test_whoever_waits_for_an_inbox_that_ends_gets_the_reason() -> None:
    async def test() -> None:
        inbox = inbox_of(5)
        waiting = asyncio.ensure_future(inbox.wait_until_at_most(0, FOR_EVER))
        await asyncio.sleep(0)
        inbox.end(OSError("it is over"))
        with pytest.raises(OSError, match="it is over"):
            await waiting

    run(test())


def test_watermarks_alone_use_up_no_room() -> None:
    async def test() -> None:
        inbox = inbox_of(1)
        for timestamp in range(100):
            inbox.put_watermark(Watermark(timestamp))
        assert list(inbox) == [(0, None, None), Watermark(99)]
        assert inbox.take_watermark() is None
        assert list(inbox.take(9)) == [(0, None, None)]
        assert inbox.take_watermark() == Watermark(99)

    run(test())


def test_the_time_in_which_elements_wait_is_added_up() -> None:
    async def test() -> None:
        inbox = inbox_of(0)
        for _ in range(3):
            await asyncio.sleep(5.0)
            inbox.put([("a", None, None)], 1)
            await asyncio.sleep(2.0)
            list(inbox.take(9))
            inbox.shrunk(1)
        assert inbox.queued_seconds() == pytest.approx(6.0)

    run(test())


def test_outputs_are_packed_in_runs_of_bounded_size() -> None:
    outbox = Outbox(len, 10**6)
    for number in range(2 * RUN + 3):
        outbox(Record(number, None))
    outbox(Watermark(1))

    assert len(outbox) == 2 * RUN + 3
    assert outbox.take() == [RUN, RUN, 3]
    assert (len(outbox), outbox.take(), outbox.watermarks) == (0, [], 1)


def test_an_outbox_is_full_between_epochs_only() -> None:
    outbox, fills = Outbox(list, 3), list[int]()
    outbox.on_change(lambda: fills.append(len(outbox)))
    outbox.extend([1, 2])
    assert (outbox.has_room, fills) == (True, [])
    outbox.extend([3])
    assert (outbox.has_room, fills) == (False, [3])
    outbox.bound(False)
    outbox.extend([4])
    assert (outbox.has_room, fills) == (True, [3, 3])
    outbox.take()
    outbox.bound(True)
    assert (outbox.has_room, fills) == (True, [3, 3, 0])
