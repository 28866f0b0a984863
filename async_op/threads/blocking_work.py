"""Who does the work that blocks, beside an event loop: new threads, unless the loop brings something else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from snapshots.daemon_threads import DaemonPool


class Pool(Protocol):
    """A bounded number of threads."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Do work on one of the threads."""
        ...

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        """Begin no more work."""
        ...


class Beside(Protocol):
    """What works beside an event loop.

    Attributes
    ----------
    is_at_once : bool
        Whether all work is done when it is handed over, on the thread of the loop.
    """

    is_at_once: bool

    def start(self, work: Callable[[], object], name: str) -> None:
        """Do work on a thread of its own."""
        ...

    def pool(self, count: int, name: str) -> Pool:
        """Return a pool of so many threads."""
        ...


class NewThreads:
    """Real threads."""

    is_at_once = False

    def start(self, work: Callable[[], object], name: str) -> None:
        """Do work on a thread of its own."""
        threading.Thread(target=work, name=name, daemon=True).start()

    def pool(self, count: int, name: str) -> Pool:
        """Return a pool of so many threads."""
        return DaemonPool(count, name)


_NEW_THREADS = NewThreads()


def beside(loop: asyncio.AbstractEventLoop) -> Beside:
    """Return what works beside an event loop: its attribute `beside`, if it has one."""
    found: Beside = getattr(loop, "beside", _NEW_THREADS)
    return found
