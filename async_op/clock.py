"""Time as the operator sees it, so that a test can hold it in its hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class TimerHandle(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Make sure that the callback is not called."""
        ...


class Clock(Protocol):
    """A source of time and the one way to wait for it. Only the thread of the event loop may call it."""

    def time(self) -> float:
        """Return seconds on a clock that never goes back."""
        ...

    def call_at(self, when: float, callback: Callable[[], None]) -> TimerHandle:
        """Call back once `time()` has reached `when`."""
        ...


class LoopClock:
    """The clock of the running event loop."""

    __slots__ = ("_loop", "time")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.time: Callable[[], float] = loop.time

    def call_at(self, when: float, callback: Callable[[], None]) -> TimerHandle:
        """Call back once `time()` has reached `when`."""
        return self._loop.call_at(when, callback)
