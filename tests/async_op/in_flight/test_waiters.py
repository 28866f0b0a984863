"""Whoever waits at most some time does not wait longer, whatever the loop makes of its timers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from async_op.clock import LoopClock
from async_op.in_flight.waiters import Waiters


class EarlyClock(LoopClock):
    """Calls back a little before the time, as a loop does whose timers have whole milliseconds."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        return super().call_at(when - 5e-3, callback)


async def test_a_timer_that_fires_early_ends_the_wait() -> None:
    waiters = Waiters(lambda: None)
    clock = EarlyClock(asyncio.get_running_loop())
    async with asyncio.timeout(30):
        await waiters.wait_at_most(0.01, clock, lambda: False)
    assert waiters.waiting == []
