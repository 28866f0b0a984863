"""Coroutines that wait until something about the operator has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from async_op.clock import Clock


class Waiters:
    """Wakes whoever waits for a condition. Only the thread of the event loop may call it.

    Parameters
    ----------
    check : callable
        Raises if there is nothing to wait for any more.

    Attributes
    ----------
    waiting : list of asyncio.Future
        One for each that waits; empty if `wake` has nothing to do.
    """

    __slots__ = ("_check", "waiting")

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self.waiting: list[asyncio.Future[None]] = []

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; it is looked at after each `wake`."""
        self._check()
        while not condition():
            waiter = asyncio.get_running_loop().create_future()
            self.waiting.append(waiter)
            await waiter
            self._check()

    async def wait_at_most(self, seconds: float, clock: Clock, condition: Callable[[], bool]) -> None:
        """Return once the condition holds, or some seconds have passed."""
        is_over = False

        def end() -> None:
            # Not a look at the clock: loops may fire a timer up to a millisecond early, and there is no other.
            nonlocal is_over
            is_over = True
            self.wake()

        timer = clock.call_at(clock.time() + seconds, end)
        try:
            await self.wait_until(lambda: condition() or is_over)
        finally:
            timer.cancel()

    def wake(self) -> None:
        """Let everybody look at their condition."""
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)
        self.waiting.clear()
