"""An event loop on a thread of its own, so that what runs on it does not hold up the calling thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from async_op.cancellation import cancel_all
from async_op.errors import as_exception

_T = TypeVar("_T")


class LoopThread:
    """Runs an event loop until it is stopped, whatever is raised on it. Call its methods from other threads.

    Parameters
    ----------
    stray : callable
        Called on the loop's thread with an error of a task that would end the loop, such as SystemExit.

    Attributes
    ----------
    loop : AbstractEventLoop
        The loop.
    """

    def __init__(self, stray: Callable[[Exception], object]) -> None:
        self._stray = stray
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name="keygroups loop", daemon=True)

    def start(self) -> None:
        """Begin to run the loop."""
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, _T], seconds: float | None = None) -> _T:
        """Run a coroutine on the loop and return its result.

        Raises
        ------
        TimeoutError
            The coroutine takes longer than `seconds`; it goes on.
        """
        return self.begin(work).result(seconds)

    def begin(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Begin to run a coroutine on the loop; whatever it raises, the future has an `Exception`."""
        return asyncio.run_coroutine_threadsafe(_raising_exceptions(work), self.loop)

    def stop(self, seconds: float | None = None) -> None:
        """End all tasks on the loop, then the loop and the thread.

        Raises
        ------
        TimeoutError
            The tasks take longer than `seconds` to end; the thread goes on.
        """
        self.call(_end_all_tasks(), seconds)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self) -> None:
        while True:
            try:
                self.loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - from a task that the function left behind
                # If the loop ended here, threads would wait for it for ever; so it goes on until it is stopped.
                self._stray(as_exception(error))
            else:
                return


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a uvloop where it is installed: the operator runs about twice as fast on it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _raising_exceptions(work: Coroutine[Any, Any, _T]) -> _T:
    """Await a coroutine; errors are raised as `Exception`s, because others would end the loop, unseen by the caller."""
    try:
        return await work
    except BaseException as error:  # noqa: BLE001 - raised again, as an Exception
        raise as_exception(error) from error.__cause__


async def _end_all_tasks() -> None:
    """End the tasks and threads that a function has started on the loop and left behind."""
    loop = asyncio.get_running_loop()
    await cancel_all(asyncio.all_tasks() - {asyncio.current_task()})
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
