"""A folder on any supported filesystem, with the one operation that commits: create if absent."""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path
from typing import Any, BinaryIO

import fsspec.core
from fsspec import AbstractFileSystem
from fsspec.utils import get_protocol

from snapshots.errors import UnsupportedFilesystem


class Folder:
    """An operator's folder. All paths are relative to it. Any thread may call any method.

    Subclasses say, per filesystem, how a file is created if absent (`create`) and made durable (`write`).
    """

    def __init__(self, filesystem: AbstractFileSystem, root: str) -> None:
        self.filesystem = filesystem
        self.root = root.rstrip("/")

    @property
    def uri(self) -> str:
        """The folder as a URI, for messages."""
        return str(self.filesystem.unstrip_protocol(self.root))

    def path(self, name: str) -> str:
        """Return the whole path of a file in the folder."""
        return f"{self.root}/{name}"

    def create(self, name: str, data: bytes) -> None:
        """Create a file whole and durable, or raise FileExistsError if the name is taken."""
        raise UnsupportedFilesystem(str(self.filesystem.protocol))

    def write(self, name: str, data: bytes) -> None:
        """Write a file under a name that nobody else uses."""
        self.filesystem.pipe_file(self.path(name), data)

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read a file, or its bytes from `start` to `end`."""
        data: bytes = self.filesystem.cat_file(self.path(name), start=start, end=end)
        return data

    def open(self, name: str) -> BinaryIO:
        """Open a file for random reads."""
        file: BinaryIO = self.filesystem.open(self.path(name), "rb")
        return file

    def size(self, name: str) -> int:
        """Return a file's size in bytes."""
        return int(self.filesystem.size(self.path(name)))

    def names(self, folder: str) -> list[str]:
        """List the names in a sub-folder, fresh from storage; empty if there is no such folder."""
        self.filesystem.invalidate_cache(self.path(folder))
        try:
            listed = self.filesystem.ls(self.path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(path.rsplit("/", 1)[-1] for path in listed)


class LocalFolder(Folder):
    """A folder on a POSIX filesystem, local or shared.

    fsspec never calls fsync, and its "create" mode checks first and writes afterwards, which lets two writers win.
    """

    def create(self, name: str, data: bytes) -> None:
        """Create a file by linking a temporary one to its name: the link fails if the name is taken."""
        final = Path(self.path(name))
        temporary = final.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            self._write_durably(temporary, data)
            os.link(temporary, final)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_directory(final.parent)

    def write(self, name: str, data: bytes) -> None:
        """Write a file and make it and its name durable."""
        final = Path(self.path(name))
        self._write_durably(final, data)
        _sync_directory(final.parent)

    def _write_durably(self, path: Path, data: bytes) -> None:
        _make_directories(path.parent)
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


class MemoryFolder(Folder):
    """A folder in this process's memory, for tests."""

    _lock = threading.Lock()

    def create(self, name: str, data: bytes) -> None:
        """Create a file under a lock, because the filesystem itself checks first and writes afterwards."""
        with self._lock:
            if self.filesystem.exists(self.path(name)):
                raise FileExistsError(self.path(name))
            self.filesystem.pipe_file(self.path(name), data)


def _make_directories(directory: Path) -> None:
    """Create missing directories and make each new name durable in its parent."""
    missing = [parent for parent in (directory, *directory.parents) if not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir(exist_ok=True)
        _sync_directory(parent.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_FOLDERS: dict[str, type[Folder]] = {"file": LocalFolder, "local": LocalFolder, "memory": MemoryFolder}


def open_folder(uri: str, storage_options: dict[str, Any] | None = None) -> Folder:
    """Open a folder by URI or path.

    Parameters
    ----------
    uri : str
        Any fsspec URI of a supported protocol, or a local path.
    storage_options : dict, optional
        Passed to the fsspec filesystem.

    Raises
    ------
    UnsupportedFilesystem
        Files cannot be created atomically there.

    Examples
    --------
    >>> folder = open_folder("memory://example")
    >>> folder.create("manifest", b"1")
    >>> folder.read("manifest")
    b'1'
    """
    # Asked before the filesystem is made, because making one may need a package or a connection.
    protocol = get_protocol(uri)
    if protocol not in _FOLDERS:
        raise UnsupportedFilesystem(protocol)
    filesystem, root = fsspec.core.url_to_fs(uri, **(storage_options or {}))
    return _FOLDERS[protocol](filesystem, root)
