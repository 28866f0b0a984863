"""When a file has changed: one listing for all readers."""

from __future__ import annotations

import asyncio

from async_op.connectors.files.access import FileAccess
from async_op.connectors.files.listing import Stamp
from async_op.connectors.source import pause_between_looks


class Changes:
    """Tells readers when their file is no longer as they saw it. It is used on one event loop.

    All files are listed together, as often as the interval says, while a reader waits. A job that looks for new files
    does that, too: then its listings are enough.
    """

    def __init__(self, files: FileAccess, interval: float) -> None:
        self._access = files
        self._interval = interval
        self._files: dict[str, Stamp] = {}
        self._listings, self._took = 0, 0.0
        self._waiting: dict[str, tuple[Stamp | None, asyncio.Future[None]]] = {}
        self._task: asyncio.Task[None] | None = None

    def files(self) -> dict[str, Stamp]:
        """Return the newest listing."""
        return self._files

    def stamp(self, name: str) -> Stamp | None:
        """Return what the newest listing says of a file; None if it is not there."""
        return self._files.get(name)

    async def refresh(self) -> dict[str, Stamp]:
        """List the files, and wake those who wait for one that has changed."""
        clock = asyncio.get_running_loop()
        begun = clock.time()
        self._files = await self._access.files()
        self._took, self._listings = clock.time() - begun, self._listings + 1
        for name, (seen, waiter) in self._waiting.items():
            if self._files.get(name) != seen and not waiter.done():
                waiter.set_result(None)
        return self._files

    async def differs(self, name: str, seen: Stamp | None) -> None:
        """Wait until a listing shows a file otherwise than it was seen; raises what a listing raises."""
        if self._files.get(name) != seen:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[name] = seen, waiter
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._refresh_while_waited_for())
        try:
            await waiter
        finally:
            del self._waiting[name]

    async def close(self) -> None:
        """List no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _refresh_while_waited_for(self) -> None:
        while self._waiting:
            before = self._listings
            await asyncio.sleep(pause_between_looks(self._interval, self._took))
            if self._listings > before:
                continue
            try:
                await self.refresh()
            except Exception as error:  # noqa: BLE001 - raised by the waiting reader
                for _, waiter in self._waiting.values():
                    if not waiter.done():
                        waiter.set_exception(error)
                return
