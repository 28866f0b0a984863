"""Coroutines that wait for a change of the operator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

from async_op.clock import Clock

_Waiter: TypeAlias = tuple[asyncio.Future[None], Callable[[], bool]]


class Waiters:
    """Wakes coroutines that wait for a condition. Only the thread of the event loop may call it.

    Conditions are looked at in `wake`, because a turn of the event loop for a coroutine that finds that it has to go on
    waiting costs ten times as much, and some wait while thousands of elements leave. So a condition must be
    fit to be looked at by each caller of `wake`, as often as something changes.

    Attributes
    ----------
    waiting : list of (asyncio.Future, callable)
        A future and a condition for each waiting coroutine but the patient ones. While it is empty, `wake` need not be
        called for each change.
    patient : list of (asyncio.Future, callable)
        The same for those that called `wait_patiently`.
    """

    __slots__ = ("_raised_in", "_reason", "patient", "waiting")

    def __init__(self) -> None:
        self._reason: BaseException | None = None
        self._raised_in: TracebackType | None = None
        self.waiting: list[_Waiter] = []
        self.patient: list[_Waiter] = []

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; it is checked after each `wake`."""
        await self._wait_in(self.waiting, condition)

    async def wait_patiently(self, condition: Callable[[], bool]) -> None:
        """Do the same for a coroutine that has other means to have `wake` called once the condition holds."""
        await self._wait_in(self.patient, condition)

    async def _wait_in(self, waiting: list[_Waiter], condition: Callable[[], bool]) -> None:
        while self._reason is None and not condition():
            await _next_wake(waiting, condition)
        if self._reason is not None:
            # Each waiter gets the same error: the frames of those before it are none of its business.
            raise self._reason.with_traceback(self._raised_in)

    async def next_wake(self) -> None:
        """Return after the next `wake`, whether or not waiting has become pointless."""
        await _next_wake(self.waiting, _always)

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
        for waiting in (self.waiting, self.patient):
            still: list[_Waiter] = []
            for waiter, condition in waiting:
                if waiter.done():
                    continue
                if condition():
                    waiter.set_result(None)
                else:
                    still.append((waiter, condition))
            waiting[:] = still

    def end(self, reason: BaseException) -> None:
        """Raise an error, the first one only, in each coroutine that waits now or later: waiting is pointless."""
        if self._reason is None:
            self._reason, self._raised_in = reason, reason.__traceback__
        for waiting in (self.waiting, self.patient):
            for waiter, _ in waiting:
                if not waiter.done():
                    waiter.set_result(None)
            waiting.clear()


async def _next_wake(waiting: list[_Waiter], condition: Callable[[], bool]) -> None:
    waiter = asyncio.get_running_loop().create_future()
    waiting.append((waiter, condition))
    await waiter


def _always() -> bool:
    return True
