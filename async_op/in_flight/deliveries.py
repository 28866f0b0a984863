"""Outputs that are awaited: `output` has been called with them, and its consumer is not done yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from async_op.cancellation import cancel_all


class Deliveries:
    """Awaits what `output` has returned, one after the other, in the order of the calls.

    Only the thread of the event loop may call it.

    Parameters
    ----------
    done : callable
        Called after each awaited output.
    crash : callable
        Called with the error of an awaited output; the outputs after it are given up.
    """

    __slots__ = ("_crash", "_done", "_is_closed", "_task", "_waiting")

    def __init__(self, done: Callable[[], None], crash: Callable[[BaseException], None]) -> None:
        self._done = done
        self._crash = crash
        self._waiting = deque[Awaitable[object]]()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def __len__(self) -> int:
        """Return how many outputs are awaited."""
        return len(self._waiting)

    def add(self, awaitable: Awaitable[object]) -> None:
        """Await an output after those before it."""
        self._waiting.append(awaitable)
        if self._task is None:
            # Not through the loop's task factory: an eager one would run the consumer while an element is leaving.
            loop = asyncio.get_running_loop()
            self._task = asyncio.Task(self._deliver(), loop=loop, name="keygroups outputs")

    async def close(self) -> None:
        """Cancel the output that is being awaited, and give up the others."""
        self._is_closed = True
        if self._task is not None:
            await cancel_all([self._task])
        self._give_up()

    async def _deliver(self) -> None:
        waiting = self._waiting
        try:
            while waiting:
                await waiting[0]
                waiting.popleft()
                self._done()
        except BaseException as error:  # noqa: BLE001 - the consumer of the outputs has failed
            if waiting:
                waiting.popleft()
            self._give_up()
            if not self._is_closed:
                self._crash(error)
        self._task = None

    def _give_up(self) -> None:
        """Forget the outputs that will not be awaited; a coroutine that never began would warn of it."""
        while self._waiting:
            one: Any = self._waiting.popleft()
            if isinstance(one, Coroutine):
                one.close()
            elif isinstance(one, asyncio.Future):
                one.cancel()
