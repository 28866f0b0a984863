"""SIGINT and SIGTERM while a job runs: the first stops it, the second gives up, the third ends the process."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator

from keygroups.context_managers import contextmanager

_ASKING = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what systemd, Docker and Kubernetes send."""


class EndingSignals:
    """The signals that came while something ran, which is cancelled at the second one.

    Parameters
    ----------
    stop : callable
        Called at the first signal.

    Attributes
    ----------
    gave_up_at : Signals or None
        The newest signal, if there were two or more.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._count = 0
        self.gave_up_at: signal.Signals | None = None

    async def wait_for(self, work: Awaitable[None]) -> None:
        """Await the work. If it gives up because of the second signal, this returns, and `gave_up_at` is set."""
        task = asyncio.current_task()
        assert task is not None, "coroutines run in tasks"
        with self._handled(task):
            try:
                await work
            except asyncio.CancelledError:
                if self.gave_up_at is None:
                    raise

    def _came(self, number: int, task: asyncio.Task[object]) -> None:
        loop = task.get_loop()
        self._count += 1
        if self._count == 1:
            loop.call_soon_threadsafe(self._stop)
            return
        self.gave_up_at = signal.Signals(number)
        loop.call_soon_threadsafe(task.cancel)
        # Giving up finishes a commit that is under way. If its storage hangs, or a function blocks the event loop, a
        # third signal ends the process as usual.
        for asking in _ASKING:
            signal.signal(asking, signal.SIG_DFL)

    @contextmanager
    def _handled(self, task: asyncio.Task[object]) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may handle signals
            return
        previous = {number: signal.getsignal(number) for number in _ASKING}
        for number in _ASKING:
            # Python's own handlers, not the loop's: they also run while a function blocks the loop.
            signal.signal(number, lambda came, _: self._came(came, task))
        try:
            yield
        finally:
            for number, handler in previous.items():
                if handler is not None:  # None: it was not set by Python, which cannot set it again
                    signal.signal(number, handler)
