"""Folders in the memory of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from snapshots.filesystem.folder import FileInfo, Folder

_T = TypeVar("_T")

_LOOKS_MAX = 100


class MemoryFolder(Folder):
    """A folder in this process's memory, for tests."""

    _lock = threading.Lock()

    def create(self, name: str, data: bytes) -> None:
        """Create a file under a lock, because the filesystem checks first and writes afterwards."""
        with self._lock:
            if self.filesystem.exists(self.path(name)):
                raise FileExistsError(self.path(name))
            self.filesystem.pipe_file(self.path(name), data)

    def names(self, folder: str) -> list[str]:
        """List the names in a sub-folder."""
        return _listed(lambda: super(MemoryFolder, self).names(folder))

    def files(self, folder: str = "") -> list[FileInfo]:
        """List the files below a sub-folder with their sizes and ages."""
        return _listed(lambda: super(MemoryFolder, self).files(folder))

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes of the files with a prefix."""
        return _listed(lambda: super(MemoryFolder, self).sizes(prefix))


def _listed(look: Callable[[], _T]) -> _T:
    """Look again if another thread has written meanwhile: fsspec goes through a dict, which then objects."""
    for _ in range(_LOOKS_MAX):
        try:
            return look()
        except RuntimeError:
            continue
    return look()
