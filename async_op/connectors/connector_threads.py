"""A few threads of a connector's own, for what blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from async_op.errors import as_exception
from snapshots.daemon_threads import DaemonPool

_T = TypeVar("_T")
_CLOSE_SECONDS_MAX = 30.0
"""How long `close` waits for what still blocks; a storage that does not answer must not hold up a job for ever."""


class OwnThreads:
    """Runs work that blocks beside the event loop. One event loop uses it.

    Asyncio's default threads are not used: they are few, and whatever else waits there would wait for a storage, too.

    Parameters
    ----------
    name : str
        The beginning of the threads' names.
    count : int
        The most threads. With one, work is done in the order in which it came.
    """

    def __init__(self, name: str, count: int) -> None:
        self._pool = DaemonPool(count, name)

    async def run(self, work: Callable[[], _T]) -> _T:
        """Return what `work` returns; work whose awaiter is cancelled goes on, if it has begun."""

        def settled() -> _T:
            try:
                return work()
            except StopIteration as error:  # no future takes it, so the awaiter would wait for ever
                raise as_exception(error) from error

        return await asyncio.get_running_loop().run_in_executor(self._pool, settled)

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Do work without waiting for it."""
        return self._pool.submit(work)

    async def close(self, last: Callable[[], None] = lambda: None) -> None:
        """Drop what has not begun, wait for the rest, and do what is to be done after that; raises what that raises."""
        loop, ended, failures = asyncio.get_running_loop(), asyncio.Event(), list[Exception]()

        def end() -> None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            try:
                last()
            except Exception as error:  # noqa: BLE001 - raised below
                failures.append(error)
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(ended.set)

        thread = threading.Thread(target=end, name="keygroups close", daemon=True)
        thread.start()
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _CLOSE_SECONDS_MAX)
            while thread.is_alive():  # noqa: ASYNC110 - it has nothing left to do, and joining would block the loop
                await asyncio.sleep(0)
        for failure in failures:
            raise failure
