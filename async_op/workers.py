"""A pool of persistent tasks that run entries: starting a task per element would cost more than the operator."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from async_op.elements import Entry

_WAKE_AT_ONCE = 2
"""How many sleeping workers a woken one wakes: enough to start n calls in log n turns of the loop, and few enough
that calls which return at once are all made by the first."""


class WorkerPool:
    """Runs entries, each in one of at most `limit` tasks. Only the thread of the event loop may call it.

    Parameters
    ----------
    run : callable
        Awaited with each entry, in the order in which they were added.
    crashed : callable
        Called with an error that `run` raised.
    limit : int
        How many entries may run at the same time.
    """

    __slots__ = ("_crashed", "_idle", "_limit", "_run", "_todo", "_waking", "_workers")

    def __init__(
        self, run: Callable[[Entry], Awaitable[None]], crashed: Callable[[BaseException], None], limit: int
    ) -> None:
        self._run = run
        self._crashed = crashed
        self._limit = limit
        self._todo = deque[Entry]()
        self._idle: list[asyncio.Future[None]] = []
        self._workers: set[asyncio.Task[None]] = set()
        self._waking = 0

    def add(self, entry: Entry) -> None:
        """Run an entry as soon as a worker is free."""
        self._todo.append(entry)
        if not self._waking:
            self._wake()

    def interrupt(self, entry: Entry) -> None:
        """Cancel the call of a running entry and run the entry anew, before all others.

        The old task may ignore the cancellation, so another one may take its place meanwhile.
        """
        task = entry.task
        entry.task = None
        if task is not None:
            self._limit += 1
            task.cancel()
            self._todo.appendleft(entry)
            if not self._waking:
                self._wake()

    async def close(self) -> None:
        """Cancel everything that runs and wait until it has ended."""
        self._todo.clear()
        self._idle.clear()
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    def _wake(self) -> None:
        if self._idle:
            self._waking += 1
            self._idle.pop().set_result(None)
        elif len(self._workers) < self._limit:
            self._waking += 1
            worker = asyncio.get_running_loop().create_task(self._work(), name="keygroups worker")
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "workers are tasks"
        loop = asyncio.get_running_loop()
        todo, run = self._todo, self._run
        while True:
            self._waking -= 1
            for _ in range(min(_WAKE_AT_ONCE, len(todo) - 1)):
                self._wake()
            while todo:
                entry = todo.popleft()
                entry.task = task
                try:
                    await run(entry)
                except asyncio.CancelledError:
                    if entry.task is task:
                        raise
                except Exception as error:  # noqa: BLE001 - a worker outlives the call; the owner of the pool decides
                    self._crashed(error)
                if entry.task is not task:
                    task.uncancel()
                    self._limit -= 1
            if len(self._workers) > self._limit:
                return
            sleep = loop.create_future()
            self._idle.append(sleep)
            await sleep
