"""Files that are replaced as a whole, and are there to stay when that has returned."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from async_op.connectors.errors import SinkFolderRefused
from keygroups.context_managers import contextmanager
from snapshots.filesystem import Folder, LocalFolder, open_folder, redacted
from snapshots.filesystem.errors import StorageRefused

_UNFINISHED = ".unfinished"


class FileFolder:
    """A folder whose files are replaced as a whole. Its methods block, and one thread at a time may call them.

    Object stores put whole objects. On POSIX filesystems a file is written elsewhere and renamed, with `fsync` for the
    file and for its name.
    """

    def __init__(self, uri: str, storage_options: dict[str, Any]) -> None:
        self._uri = uri
        self._storage_options = storage_options
        self._opened: Folder | None = None

    @property
    def uri(self) -> str:
        """The folder, without secrets."""
        return redacted(self._uri)

    def replace(self, name: str, data: bytes) -> None:
        """Write or replace a file; readers see the old one or the new one."""
        with self._asked() as folder:
            if isinstance(folder, LocalFolder):
                _replace_durably(folder, name, data)
            else:
                folder.replace(name, data)

    def exists(self) -> bool:
        """Return whether the folder is there; in an object store, which has no folders, always."""
        with self._asked() as folder:
            return not isinstance(folder, LocalFolder) or Path(folder.path("")).is_dir()

    def names(self) -> list[str]:
        """List the files; none if there is no folder."""
        with self._asked() as folder:
            return folder.names("")

    def has(self, name: str, data: bytes) -> bool:
        """Return whether a file is there, with this content."""
        try:
            with self._asked() as folder:
                return folder.read(name) == data
        except FileNotFoundError:
            return False

    @contextmanager
    def _asked(self) -> Iterator[Folder]:
        self._opened = self._opened or open_folder(self._uri, self._storage_options)
        try:
            yield self._opened
        except StorageRefused as error:  # its advice is about snapshots
            raise SinkFolderRefused(self.uri, error.reason) from error


def _replace_durably(folder: LocalFolder, name: str, data: bytes) -> None:
    unfinished = f"{_UNFINISHED}/{name}.{uuid.uuid4().hex}"
    temporary, final = Path(folder.path(unfinished)), Path(folder.path(name))
    try:
        folder.write(unfinished, data)
        try:
            temporary.replace(final)
        except FileNotFoundError:
            # Another writer of this epoch, or of a later one, was there before, and has tidied up.
            if not final.exists():
                raise
        _sync(final.parent)
    finally:
        _remove_left_over(temporary.parent, name)


def _remove_left_over(unfinished: Path, name: str) -> None:
    """Remove what this epoch and earlier ones have left when they were interrupted; names begin with the epoch."""
    with suppress(OSError):
        for entry in os.scandir(unfinished):
            if entry.name[: len(name)] <= name:
                with suppress(FileNotFoundError):
                    Path(entry.path).unlink()


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
