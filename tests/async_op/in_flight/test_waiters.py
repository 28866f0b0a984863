"""Who waits is woken: at the latest in time, whatever the loop makes of its timers, and also if it is patient."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from async_op.clock import LoopClock
from async_op.in_flight.waiters import Waiters


class EarlyClock(LoopClock):
    """Calls back a little before the time, as a loop does whose timers have whole milliseconds."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        return super().call_at(when - 5e-3, callback)


async def test_a_timer_that_fires_early_ends_the_wait() -> None:
    waiters = Waiters()
    clock = EarlyClock(asyncio.get_running_loop())
    async with asyncio.timeout(30):
        await waiters.wait_at_most(0.01, clock, lambda: False)
    assert waiters.waiting == []


async def test_a_patient_waiter_is_woken_like_the_others_but_does_not_count_as_waiting() -> None:
    waiters, now_holds = Waiters(), False
    waits = [waiters.wait_until, waiters.wait_patiently, waiters.wait_patiently]
    tasks = [asyncio.create_task(wait(lambda: now_holds)) for wait in waits]
    await asyncio.sleep(0)
    assert (len(waiters.waiting), len(waiters.patient)) == (1, 2)
    now_holds = True
    waiters.wake()
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks)
    assert waiters.waiting == waiters.patient == []


async def test_once_waiting_is_pointless_each_waiter_gets_the_first_reason() -> None:
    waiters = Waiters()
    tasks = [asyncio.create_task(wait(lambda: False)) for wait in (waiters.wait_until, waiters.wait_patiently)]
    await asyncio.sleep(0)
    waiters.end(ValueError("first"))
    waiters.end(ValueError("second"))
    async with asyncio.timeout(30):
        for waiting in (*tasks, waiters.wait_until(lambda: True)):
            with pytest.raises(ValueError, match="first"):
                await waiting
    assert waiters.waiting == waiters.patient == []


async def test_an_error_that_many_waiters_get_has_the_frames_of_one_and_of_where_it_was_first_raised() -> None:
    def went_wrong() -> None:
        raise ValueError("wrong")

    waiters, lengths = Waiters(), set[int]()
    tasks = [asyncio.create_task(waiters.wait_until(lambda: False)) for _ in range(9)]
    await asyncio.sleep(0)
    try:
        went_wrong()
    except ValueError as error:
        waiters.end(error)
    for task in tasks:
        with pytest.raises(ValueError, match="wrong") as raised:
            await task
        frames = traceback.extract_tb(raised.value.__traceback__)
        lengths.add(len(frames))
        assert frames[-1].name == "went_wrong"
    assert len(lengths) == 1
