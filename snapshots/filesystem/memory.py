"""Folders in the memory of this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from snapshots.filesystem.folder import FileInfo, Folder


class MemoryFolder(Folder):
    """A folder in this process's memory, for tests.

    All such folders take turns, because fsspec keeps the files in a dict: it goes through it to list some, which fails
    if another thread writes meanwhile. And to create a file, it would check first and write afterwards.
    """

    _turn = threading.RLock()

    def create(self, name: str, data: bytes) -> None:
        """Create a file."""
        with self._turn:
            if self.filesystem.exists(self.path(name)):
                raise FileExistsError(self.path(name))
            self.filesystem.pipe_file(self.path(name), data)

    def write(self, name: str, data: bytes) -> None:
        """Write a file under an unused name."""
        with self._turn:
            super().write(name, data)

    def replace(self, name: str, data: bytes) -> None:
        """Write a file over the old one."""
        with self._turn:
            super().replace(name, data)

    def names(self, folder: str) -> list[str]:
        """List the names in a sub-folder."""
        with self._turn:
            return super().names(folder)

    def files(self, folder: str = "") -> list[FileInfo]:
        """List the files below a sub-folder with their sizes and ages."""
        with self._turn:
            return super().files(folder)

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes of the files with a prefix."""
        with self._turn:
            return super().sizes(prefix)

    def delete(self, names: Sequence[str]) -> None:
        """Delete files."""
        with self._turn:
            super().delete(names)
