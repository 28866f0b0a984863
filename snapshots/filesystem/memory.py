"""Folders in the memory of this process."""

from __future__ import annotations

import threading

from snapshots.filesystem.folder import Folder


class MemoryFolder(Folder):
    """A folder in this process's memory, for tests."""

    _lock = threading.Lock()

    def create(self, name: str, data: bytes) -> None:
        """Create a file under a lock, because the filesystem checks first and writes afterwards."""
        with self._lock:
            if self.filesystem.exists(self.path(name)):
                raise FileExistsError(self.path(name))
            self.filesystem.pipe_file(self.path(name), data)
