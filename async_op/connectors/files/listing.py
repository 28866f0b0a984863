"""Which files a glob matches, and when one of them has changed: one listing for all readers."""

from __future__ import annotations

import asyncio
import glob
import os
import stat
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

_MAGIC = "*?["


class Stamp(NamedTuple):
    """What changes with the content of a file, as far as a listing shows it."""

    bytes: int
    changed: Any = None


class Glob:
    """The files that a pattern matches, under their paths below the part of the pattern that has no wildcard.

    Its methods block. They may be called by any thread.
    """

    def __init__(self, filesystem: Any, pattern: str) -> None:
        self.filesystem = filesystem
        self._pattern = pattern
        steps = pattern.split("/")
        fixed = next((n for n, step in enumerate(steps) if any(sign in step for sign in _MAGIC)), len(steps) - 1)
        self.root = "/".join(steps[:fixed])

    def path(self, name: str) -> str:
        """Return the full path of a file."""
        return f"{self.root}/{name}" if self.root else name

    def files(self) -> dict[str, Stamp]:
        """List the files, without those whose name begins with a dot; links count as what they lead to."""
        from fsspec.implementations.local import LocalFileSystem  # not loaded by programs that read no files

        found = self._local() if isinstance(self.filesystem, LocalFileSystem) else self._remote()
        return {name: found[name] for name in sorted(found) if not name.rpartition("/")[2].startswith(".")}

    def _local(self) -> dict[str, Stamp]:
        # fsspec's own listing takes a link to a folder for a file.
        found = {}
        for path in glob.iglob(self._pattern, recursive=True):  # noqa: PTH207 - a Path would drop what `**` means here
            try:
                status = os.stat(path)  # noqa: PTH116 - thousands of them
            except FileNotFoundError:  # removed since, or a link that leads nowhere
                continue
            if stat.S_ISREG(status.st_mode):
                found[self._name(path)] = Stamp(status.st_size, status.st_mtime_ns)
        return found

    def _remote(self) -> dict[str, Stamp]:
        self.filesystem.invalidate_cache()
        listed = self.filesystem.glob(self._pattern, detail=True)
        return {
            self._name(path): Stamp(info["size"], str(info.get("ETag") or info.get("LastModified") or ""))
            for path, info in listed.items()
            if info["type"] == "file"
        }

    def _name(self, path: str) -> str:
        return path[len(self.root) :].lstrip("/")


class Changes:
    """Tells readers when their file is no longer as they saw it. It is used on one event loop.

    All files are listed together, as often as the interval says, while anybody waits.
    """

    def __init__(self, list_files: Callable[[], Awaitable[dict[str, Stamp]]], interval: float) -> None:
        self._list_files = list_files
        self._interval = interval
        self._files: dict[str, Stamp] = {}
        self._waiting: dict[str, tuple[Stamp | None, asyncio.Future[None]]] = {}
        self._task: asyncio.Task[None] | None = None

    def stamp(self, name: str) -> Stamp | None:
        """Return what the newest listing says of a file; None if it is not there."""
        return self._files.get(name)

    async def refresh(self) -> dict[str, Stamp]:
        """List the files, and wake those who wait for one that has changed."""
        self._files = await self._list_files()
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
            await asyncio.sleep(self._interval)
            try:
                await self.refresh()
            except Exception as error:  # noqa: BLE001 - whoever waits raises it
                for _, waiter in self._waiting.values():
                    if not waiter.done():
                        waiter.set_exception(error)
                return
