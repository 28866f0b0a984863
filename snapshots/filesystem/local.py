"""Folders on POSIX filesystems."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from snapshots.filesystem.errors import UnsafeFilesystem
from snapshots.filesystem.folder import FileInfo, Folder

_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class LocalFolder(Folder):
    """A folder on a POSIX filesystem, local or shared.

    It does not use fsspec to write: fsspec never calls fsync, and its "create" mode checks first and writes afterwards,
    which lets two writers win.
    """

    @property
    def uri(self) -> str:
        """The folder as a URI, for messages."""
        return super().uri if self.root else "file:///"  # fsspec takes no path for the current folder

    def create(self, name: str, data: bytes) -> None:
        """Create a file by linking a temporary file to its name; the link fails if the name is taken."""
        final = Path(self.path(name))
        temporary = _temporary_beside(final)
        with self._answers(name):
            try:
                _write_durably(temporary, data)
                self._link(temporary, final)
            finally:
                temporary.unlink(missing_ok=True)
            _sync_directory(final.parent)

    def write(self, name: str, data: bytes) -> None:
        """Write a file, and make its content and its name durable."""
        final = Path(self.path(name))
        with self._answers(name):
            _write_durably(final, data)
            _sync_directory(final.parent)

    def replace(self, name: str, data: bytes) -> None:
        """Write a file beside the old one and rename it over the old one."""
        final = Path(self.path(name))
        temporary = _temporary_beside(final)
        with self._answers(name):
            _make_directories(final.parent)
            try:
                temporary.write_bytes(data)
                temporary.replace(final)
            finally:
                temporary.unlink(missing_ok=True)

    def files(self, folder: str = "") -> list[FileInfo]:
        """List the files below a sub-folder; others may create and remove files during the listing."""
        found = []
        for directory, _, names in os.walk(self.path(folder)):
            for name in names:
                path = Path(directory, name)
                with suppress(FileNotFoundError):
                    status = path.stat()
                    relative = path.relative_to(self.root).as_posix()
                    found.append(FileInfo(relative, status.st_size, status.st_mtime))
        return sorted(found)

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes of the files with a prefix, without reading other directories."""
        folder, _, begins = prefix.rpartition("/")
        try:
            with self._answers(folder):
                entries = [entry for entry in os.scandir(self.path(folder)) if entry.name.startswith(begins)]
        except FileNotFoundError:
            return {}
        below = [self.files(f"{folder}/{entry.name}") for entry in entries if entry.is_dir()]
        found = {f"{folder}/{entry.name}": entry.stat().st_size for entry in entries if entry.is_file()}
        return found | {file.name: file.bytes for files in below for file in files}

    def delete(self, names: Sequence[str]) -> None:
        """Delete files, and directories of attempts that become empty."""
        super().delete(names)
        for directory in {Path(self.path(name)).parent for name in names}:
            if directory.parent.name == "data":
                with suppress(OSError):
                    directory.rmdir()

    def _link(self, temporary: Path, final: Path) -> None:
        try:
            os.link(temporary, final)
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                raise UnsafeFilesystem(self.uri, "it has no hard links") from error
            raise


def _temporary_beside(final: Path) -> Path:
    return final.with_name(f".{uuid.uuid4().hex}.tmp")


def _write_durably(path: Path, data: bytes) -> None:
    _make_directories(path.parent)
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _make_directories(directory: Path) -> None:
    """Create missing directories, and make each new name durable in its parent."""
    missing = takewhile(lambda one: not one.exists(), (directory, *directory.parents))
    for parent in reversed(list(missing)):
        try:
            parent.mkdir(exist_ok=True)
        except FileExistsError as error:  # which would mean that another writer has created the file
            raise NotADirectoryError(errno.ENOTDIR, "a link that leads nowhere", str(parent)) from error
        except FileNotFoundError as error:
            if not parent.parent.is_dir():
                raise
            raise PermissionError(errno.EPERM, "this filesystem makes no folders", str(parent)) from error  # as /proc
        _sync_directory(parent.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
