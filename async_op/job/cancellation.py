"""What ends work from outside: signals, and cancellations by clients; and work that is finished in spite of them."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

from async_op.connectors.errors import ConnectorInterrupted
from async_op.errors import OperatorInterrupted
from async_op.job.errors import ConnectorCancelled
from keygroups.context_managers import contextmanager

_Result = TypeVar("_Result")

_ASKING = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what systemd, Docker and Kubernetes send."""


@contextmanager
def heard(what: str) -> Iterator[None]:
    """Turn a `CancelledError` that was not requested of this task into an error.

    A client may raise one, for instance because it was closed. A task that ends with it would end in silence.

    Parameters
    ----------
    what : str
        What is being done, for the message.

    Raises
    ------
    ConnectorCancelled
        Another task's cancellation came out of the block.
    """
    task = asyncio.current_task()
    try:
        yield
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        raise ConnectorCancelled(what) from error


@contextmanager
def connector(what: str) -> Iterator[None]:
    """Turn whatever is no `Exception` and comes out of a source or sink into an error that names it.

    Parameters
    ----------
    what : str
        What is being done, for the message.

    Raises
    ------
    ConnectorCancelled, ConnectorInterrupted
        Another task's cancellation, or something like `SystemExit`, came out of the block.
    """
    task = asyncio.current_task()
    with heard(what):
        try:
            yield
        except OperatorInterrupted as error:  # what came out of another thread
            raise ConnectorInterrupted(what, error.__cause__ or error) from error.__cause__
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            if isinstance(error, GeneratorExit) and (task is None or asyncio.current_task(task.get_loop()) is not task):
                raise  # the coroutine is closed from outside
            raise ConnectorInterrupted(what, error) from error


async def to_the_end(work: asyncio.Future[_Result]) -> _Result:
    """Wait for work that must not be left half done; a cancellation takes effect after its end."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        if not work.cancelled():
            work.exception()  # the cancellation is raised in its place
        raise


async def ended(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended, however they end."""
    for task in (waiting := list(tasks)):
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


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

    async def heed(self, work: Awaitable[None]) -> None:
        """Await the work. If it gives up because of the second signal, this returns, and `gave_up_at` is set."""
        task = asyncio.current_task()
        assert task is not None, "coroutines run in tasks"
        with self._handled(task):
            try:
                await work
            except asyncio.CancelledError:
                if self.gave_up_at is None:
                    raise

    def _came(self, number: signal.Signals, task: asyncio.Task[object]) -> None:
        self._count += 1
        if self._count == 1:
            self._stop()
            return
        self.gave_up_at = number
        task.cancel()
        # Giving up finishes a commit that is under way. If its storage hangs, a third signal ends the process as usual.
        for asking in _ASKING:
            asyncio.get_running_loop().remove_signal_handler(asking)
            signal.signal(asking, signal.SIG_DFL)

    @contextmanager
    def _handled(self, task: asyncio.Task[object]) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may handle signals
            return
        loop = asyncio.get_running_loop()
        previous = {number: signal.getsignal(number) for number in _ASKING}
        for number in _ASKING:
            loop.add_signal_handler(number, self._came, number, task)
        try:
            yield
        finally:
            for number, handler in previous.items():
                loop.remove_signal_handler(number)
                if handler is not None:  # None: it was not set by Python, which cannot set it again
                    signal.signal(number, handler)
