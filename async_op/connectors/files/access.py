"""How a source gets at its files: on threads of its own, because every look at a disk blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from async_op.connectors.connector_threads import OwnThreads
from async_op.connectors.errors import FileRefused
from async_op.connectors.files.compression import Content, Damaged, Incomplete, content_of, is_compressed
from async_op.connectors.files.content_identity import FileIdentity
from async_op.connectors.files.listing import Glob, Stamp
from async_op.connectors.files.text import last_mark
from keygroups.safe_text import text_of
from snapshots.filesystem import filesystem_of, redacted

_THREADS = 4
_T = TypeVar("_T")


class FileAccess:
    """Lists, opens and compares the files of a glob.

    The coroutines belong to one event loop. The other methods block, and are called on the threads.

    Parameters
    ----------
    pattern : str
        The glob.
    storage_options : dict
        Passed to the fsspec filesystem.
    is_decompressed : bool
        Whether the name of a file says how it is compressed.
    """

    def __init__(self, pattern: str, storage_options: dict[str, Any], *, is_decompressed: bool) -> None:
        self._pattern = pattern
        self._storage_options = storage_options
        self._is_decompressed = is_decompressed
        self._found: Glob | None = None
        self._threads = OwnThreads("keygroups files", _THREADS)
        self._is_closed = False

    async def run(self, work: Callable[[], _T]) -> _T:
        """Work on a thread; raises `FileRefused` if the storage does not let this process list or read."""
        try:
            return await self._threads.run(work)
        except PermissionError as error:
            path = error.filename or redacted(self._pattern)
            raise FileRefused(str(path), error.strerror or text_of(error)) from error

    def submit(self, work: Callable[[], object]) -> None:
        """Work on a thread, and do not wait for it; what comes after the end has no need to be done."""
        if not self._is_closed:
            self._threads.submit(work)

    async def files(self) -> dict[str, Stamp]:
        """List the files."""
        return await self.run(lambda: self._glob().files())

    async def has(self, name: str, identity: FileIdentity) -> bool:
        """Return whether a file has a content, or more of it."""
        return await self.run(lambda: self._has(name, identity))

    async def is_copy(self, name: str, original: str) -> bool:
        """Return whether another file has all that a file has, as far as one looks without reading all of it.

        Raises FileNotFoundError if one of them is gone.
        """
        return await self.run(lambda: self._is_copy(name, original))

    async def close(self) -> None:
        """End the threads."""
        self._is_closed = True
        await self._threads.close()

    def open(self, name: str) -> Any:
        """Open a file."""
        return self._glob().open(name)

    def content(self, file: Any, name: str) -> Content:
        """Return the content of an open file."""
        return content_of(file, name if self._is_decompressed else "")

    def _glob(self) -> Glob:
        if self._found is None:
            self._found = Glob(*filesystem_of(self._pattern, self._storage_options))
        return self._found

    def _has(self, name: str, identity: FileIdentity) -> bool:
        try:
            return self._fits(name, identity)
        except FileNotFoundError:
            return False

    def _is_copy(self, name: str, original: str) -> bool:
        with self.open(name) as file:
            identity = FileIdentity.of(self.content(file, name), name, None)
            if not is_compressed(name):
                identity = identity.read_to(last_mark(file))
        return self._fits(original, identity)

    def _fits(self, name: str, identity: FileIdentity) -> bool:
        with self.open(name) as file:
            try:
                return identity.fits(self.content(file, name))
            except (Damaged, Incomplete):
                return False
