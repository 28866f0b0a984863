"""The operator's source of time, which tests can replace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Protocol, runtime_checkable

from keygroups.errors import ConfigError
from keygroups.ttl import wall_time


class TimerHandle(Protocol):
    """A scheduled callback that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the callback; has no effect once it has run."""
        ...


@runtime_checkable
class Clock(Protocol):
    """The source of time, and the only way to wait for it. Only the thread of the event loop may call it."""

    def time(self) -> float:
        """Return the seconds on a monotonic clock."""
        ...

    def call_at(self, when: float, callback: Callable[[], None]) -> TimerHandle:
        """Call the callback once `time()` has reached `when`."""
        ...

    def wall_time(self) -> int:
        """Return the processing time in milliseconds since the epoch. Unlike `time`, it can be set, even backwards."""
        ...


def check_clock(clock: object) -> None:
    """Raise `ConfigError` unless this is a clock, or None, which is the event loop's."""
    if clock is not None and not isinstance(clock, Clock):
        raise ConfigError("clock", clock, "pass an object with `time`, `call_at` and `wall_time`, or None")


class LoopClock:
    """The clock of the event loop. Processing time comes from the system clock, or from the loop's own `wall_time`."""

    __slots__ = ("_context", "_loop", "time", "wall_time")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._context = copy_context()
        self.wall_time: Callable[[], int] = getattr(loop, "wall_time", wall_time)
        self.time: Callable[[], float] = loop.time

    def __repr__(self) -> str:
        return "LoopClock()"

    def call_at(self, when: float, callback: Callable[[], None]) -> TimerHandle:
        """Call the callback once `time()` has reached `when`."""
        # Not in the context of the caller, which may be a call: what is called back is not about this element alone.
        return self._loop.call_at(when, callback, context=self._context.copy())
