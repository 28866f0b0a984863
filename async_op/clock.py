"""Time as the operator sees it, so that a test can hold it in its hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from keygroups.ttl import wall_time


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

    def wall_time(self) -> int:
        """Return the processing time: milliseconds since the epoch. Unlike `time`, it may be set, also back."""
        ...


class LoopClock:
    """The clock of the running event loop, and the system's for processing time."""

    __slots__ = ("_loop", "time", "wall_time")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.wall_time: Callable[[], int] = wall_time
        self.time: Callable[[], float] = loop.time

    def call_at(self, when: float, callback: Callable[[], None]) -> TimerHandle:
        """Call back once `time()` has reached `when`."""
        return self._loop.call_at(when, callback)
