"""Coroutines that wait for a change of the operator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from async_op.clock import Clock


class Waiters:
    """Wakes coroutines that wait for a condition. Only the thread of the event loop may call it.

    Conditions are looked at in `wake`, because a turn of the event loop for a coroutine that finds that it has to go on
    waiting costs ten times as much, and some wait while thousands of elements leave. So a condition must be
    fit to be looked at by each caller of `wake`, as often as something changes.

    Parameters
    ----------
    check : callable
        Raises an error if waiting has become pointless, for instance because the operator has failed.

    Attributes
    ----------
    waiting : list of (asyncio.Future, callable)
        A future and a condition for each waiting coroutine; if it is empty, `wake` has nothing to do.
    """

    __slots__ = ("_check", "waiting")

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self.waiting: list[tuple[asyncio.Future[None], Callable[[], bool]]] = []

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; it is checked after each `wake`."""
        self._check()
        while not condition():
            await self._next_wake(condition)
            self._check()

    async def next_wake(self) -> None:
        """Return after the next `wake`, whether or not waiting has become pointless."""
        await self._next_wake(_always)

    async def _next_wake(self, condition: Callable[[], bool]) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self.waiting.append((waiter, condition))
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
        """Let every coroutine go on whose condition holds."""
        still: list[tuple[asyncio.Future[None], Callable[[], bool]]] = []
        for waiter, condition in self.waiting:
            if waiter.done():
                continue
            if condition():
                waiter.set_result(None)
            else:
                still.append((waiter, condition))
        self.waiting[:] = still

    def wake_all(self) -> None:
        """Let every coroutine go on, because waiting has become pointless."""
        for waiter, _ in self.waiting:
            if not waiter.done():
                waiter.set_result(None)
        self.waiting.clear()


def _always() -> bool:
    return True
