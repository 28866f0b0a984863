"""An event loop on a thread of its own, so that what runs on it does not hold up the calling thread.

With what a thread or process that runs nothing but an operator needs besides: a fast loop, and few collections.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from async_op.cancellation import cancel_all
from async_op.errors import as_exception
from keygroups.context_managers import contextmanager

_T = TypeVar("_T")


GARBAGE_MIN = 25_000
"""Python looks after so many more objects were made than freed; a thousand rows in flight have some ten thousand."""


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


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let Python look for cyclic garbage less often inside the context, unless it is told to look even less often.

    By itself it looks after 700 objects, again and again at all rows and calls in flight, which are freed without its
    help once they are done: a third of the processor's time of a call. It is a setting of the process, so this is for
    what runs nothing but operators meanwhile: hosts, children, tasks of Spark and `Job.run_sync`. Of two such contexts
    on two threads, the one that has set it sets it back.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < GARBAGE_MIN:
        yield
        return
    gc.set_threshold(GARBAGE_MIN, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


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
