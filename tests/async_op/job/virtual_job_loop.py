"""A virtual loop for jobs, on which storage takes turns as well: the same things happen in the same order in every run.

Storage works on threads, and a commit on several. Which of them ends first would be a matter of luck, so all of it runs
in the loop's own thread, between two turns of the loop and one piece after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any
from unittest import mock

from async_op.job import committing
from async_op.testing import VirtualLoop
from async_op.testing.virtual_loop import AtOnce
from tests.simulation.abandon import run_alone


class VirtualJobLoop(VirtualLoop):
    """A virtual loop with a time for storage.

    Parameters
    ----------
    storage_seconds : callable
        Returns after how many virtual seconds the next call of storage takes effect. By default they do so at once, in
        the order in which they were asked for.
    """

    def __init__(self, storage_seconds: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__()
        self.storage_seconds = storage_seconds
        self.beside = _Later(self)

    def run_forever(self) -> None:
        with mock.patch.object(committing, "DaemonPool", OneAfterTheOther):
            super().run_forever()


def in_virtual_time(work: Coroutine[Any, Any, None], storage_seconds: float = 0.0) -> float:
    """Run to the end, and return for how long."""
    loop = VirtualJobLoop(lambda: storage_seconds)
    run_alone(loop, work)
    return loop.time()


class _Later(AtOnce):
    """Stands for threads: their work comes in a turn of the loop of its own, after some virtual time."""

    def __init__(self, loop: VirtualJobLoop) -> None:
        self._loop = loop

    def start(self, work: Callable[[], object], name: str) -> None:
        self._loop.call_later(self._loop.storage_seconds(), super().start, work, name)


class OneAfterTheOther(Executor):
    """Stands for a pool of threads: each call is over when it has been submitted."""

    def __init__(self, threads: int, name: str) -> None:
        """Take the arguments of a pool."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments, **options))
        except Exception as error:  # noqa: BLE001 - it is the future's
            future.set_exception(error)
        return future
