"""Which files a glob matches, and when one of them has changed: one listing for all readers."""

from __future__ import annotations

import asyncio
import glob
import os
import stat
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple


class Stamp(NamedTuple):
    """What changes with the content of a file, as far as a listing shows it.

    Attributes
    ----------
    bytes : int
        The size.
    changed : object
        When the file has changed, or its ETag.
    file : int or None
        The number of the file on its disk, which it keeps when it is renamed.
    """

    bytes: int
    changed: Any = None
    file: int | None = None


class Glob:
    r"""The files that a pattern matches, under their full paths.

    A local file is named by its absolute path, any other one by its URI without secrets. A name that is no UTF-8 has
    the bytes that are none escaped, as in ``caf\xe9.csv``.

    Its methods block. They may be called by any thread.
    """

    def __init__(self, filesystem: Any, pattern: str) -> None:
        self.filesystem = filesystem
        self._pattern = pattern
        from fsspec.implementations.local import LocalFileSystem  # not loaded by programs that read no files

        self._is_local = isinstance(filesystem, LocalFileSystem)
        self._paths: dict[str, str] = {}

    def path(self, name: str) -> str:
        """Return what the filesystem calls a file."""
        found = self._paths.get(name)
        return (name if self._is_local else self.filesystem._strip_protocol(name)) if found is None else found

    def files(self) -> dict[str, Stamp]:
        """List the files, without those whose name begins with a dot; links count as what they lead to."""
        found = self._local() if self._is_local else self._remote()
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
                found[self._name(path)] = Stamp(status.st_size, status.st_mtime_ns, status.st_ino)
        return found

    def _remote(self) -> dict[str, Stamp]:
        self.filesystem.invalidate_cache()
        listed = self.filesystem.glob(self._pattern, detail=True)
        return {
            self._name(path): Stamp(info["size"], _version_of(info))
            for path, info in listed.items()
            if info["type"] == "file"
        }

    def _name(self, path: str) -> str:
        name = path if self._is_local else self.filesystem.unstrip_protocol(path)
        if not name.isascii():
            name = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        if self.path(name) != path:
            self._paths[name] = path
        return name


def _version_of(info: dict[str, Any]) -> str:
    """Return what a storage says of an object that changes with its content."""
    keys = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "updated", "mtime", "created")
    return str(next((info[key] for key in keys if info.get(key)), ""))


class Changes:
    """Tells readers when their file is no longer as they saw it. It is used on one event loop.

    All files are listed together, as often as the interval says, while a reader waits.
    """

    def __init__(self, list_files: Callable[[], Awaitable[dict[str, Stamp]]], interval: float) -> None:
        self._list_files = list_files
        self._interval = interval
        self._files: dict[str, Stamp] = {}
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
            except Exception as error:  # noqa: BLE001 - raised by the waiting reader
                for _, waiter in self._waiting.values():
                    if not waiter.done():
                        waiter.set_exception(error)
                return
