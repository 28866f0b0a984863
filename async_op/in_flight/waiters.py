"""Coroutines that wait for a change of the operator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from async_op.clock import Clock


class Waiters:
    """Wakes coroutines that wait for a condition. Only the thread of the event loop may call it.

    Parameters
    ----------
    check : callable
        Raises an error if waiting has become pointless, for instance because the operator has failed.

    Attributes
    ----------
    waiting : list of asyncio.Future
        One future per waiting coroutine; if it is empty, `wake` has nothing to do.
    """

    __slots__ = ("_check", "waiting")

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self.waiting: list[asyncio.Future[None]] = []

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; it is checked after each `wake`."""
        self._check()
        while not condition():
            await self.next_wake()
            self._check()

    async def next_wake(self) -> None:
        """Return after the next `wake`, whether or not waiting has become pointless."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiting.append(waiter)
        await waiter

    async def wait_at_most(self, seconds: float, clock: Clock, condition: Callable[[], bool]) -> None:
        """Return once the condition holds, or after a number of seconds."""
        is_over = False

        def end() -> None:
            # A flag, not the clock: a loop may fire a timer up to a millisecond early, and no other timer follows.
            nonlocal is_over
            is_over = True
            self.wake()

        timer = clock.call_at(clock.time() + seconds, end)
        try:
            await self.wait_until(lambda: condition() or is_over)
        finally:
            timer.cancel()

    def wake(self) -> None:
        """Let every waiting coroutine check its condition."""
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)
        self.waiting.clear()
