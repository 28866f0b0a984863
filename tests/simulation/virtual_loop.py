"""An event loop on which waiting takes no time, alone or with threads that take turns with it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any
from unittest import mock

from async_op.threads import own_thread
from tests.simulation.virtual_threads import Threads

_WAITS_MAX = 200_000
"""Far above the longest run, so that only one that never ends meets it."""


class Stalled(Exception):
    """Everything waits for something, and nothing will ever happen."""


class _NoWait(selectors.SelectSelector):
    """Moves the loop's clock to the next timer instead of waiting for it."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        loop = self.loop
        due = None if timeout is None else loop.now + timeout
        if loop.threads is not None:
            loop.threads.work_until(lambda: bool(loop._ready))  # type: ignore[attr-defined]
            if loop._ready:  # type: ignore[attr-defined]
                return []
            wakes = [time for time in (due, loop.threads.next_wake) if time is not None]
            due = min(wakes, default=None)
        if due is None:
            raise Stalled("no callback is ready and no timer is set")
        loop.waits += 1
        if loop.waits > _WAITS_MAX:
            raise Stalled(f"timers alone go on, {loop.now:,.0f} s after the start")
        loop.now = max(loop.now, due)
        return []


class VirtualClock:
    """The loop's clock, with a processing time that follows it."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.time = loop.time
        self.call_at = loop.call_at

    def wall_time(self) -> int:
        return 1_000_000_000_000 + int(1000 * self.time())


class _AtOnce:
    """A thread that runs in the one that starts it, for the same reason as in `VirtualLoop.run_in_executor`."""

    def __init__(self, *, target: Callable[..., object], args: tuple[Any, ...], name: str) -> None:
        self._run = lambda: target(*args)

    def start(self) -> None:
        self._run()


class VirtualLoop(asyncio.SelectorEventLoop):
    """Asyncio's own loop, with the clock and the selector replaced; no sockets, and no threads but those given."""

    def __init__(self, threads: Threads | None = None) -> None:
        self.now = 0.0
        self.waits = 0
        self.threads = threads
        selector = _NoWait()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def run_forever(self) -> None:
        with mock.patch.object(own_thread, "threading", mock.Mock(Thread=_AtOnce)):
            super().run_forever()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run at once, in this thread: a thread of its own would make the order of events a matter of luck."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is the future's
            future.set_exception(error)
        return future

    def _write_to_self(self) -> None:
        """Nobody sleeps in the selector, so nobody needs to be woken."""
