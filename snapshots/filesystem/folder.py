"""A folder on any filesystem: what every kind of storage must do, and what fsspec does in the same way for all."""

from __future__ import annotations

import datetime as dt
import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from keygroups.context_managers import contextmanager
from keygroups.errors import ConfigError, KeyGroupsError
from snapshots.filesystem.errors import NO_ROOM, PathObstructed, StorageFull, StorageRefused, UnsupportedFilesystem

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_LOCAL_PROTOCOLS = {"file", "local", "memory"}
# Matches up to the last @ and across slashes, because secrets may contain both.
_USER = re.compile(r"(?<=://)[^\s\"']*:[^\s\"']*@")
# Clients of HTTP name the host and the rest of a URL apart: "Max retries exceeded with url: /path?query".
_QUERY = re.compile(r"(?:(?<=://)|(?<=url: /))([^\s\"'?]*)\?[^\s\"']*")


class FileInfo(NamedTuple):
    """An entry of a listing.

    Attributes
    ----------
    name : str
        The path relative to the folder.
    bytes : int
        The size of the file.
    modified : float
        The time of the last change in seconds since the epoch, by the storage's clock.
    """

    name: str
    bytes: int
    modified: float


class Folder:
    """An operator's folder. All paths are relative to it. Any thread may call any method.

    Subclasses implement, per filesystem, how a file is created if absent (`create`) and made durable (`write`). Every
    failure of the storage is raised as an `OSError`, whatever the client package: `FileNotFoundError`,
    `FileExistsError`, `StorageUnavailable`, `StorageRefused`, `StorageFull`, `BucketMissing` or `PathObstructed`.
    """

    def __init__(self, filesystem: AbstractFileSystem, root: str) -> None:
        self.filesystem = filesystem
        self.root: str = root.rstrip("/")

    @property
    def uri(self) -> str:
        """The folder as a URI, for messages."""
        return str(self.filesystem.unstrip_protocol(self.root))

    @property
    def operator_id(self) -> str:
        """The operator of the folder, which is the folder's name."""
        return self.root.rpartition("/")[2]

    @property
    def parent(self) -> Folder | None:
        """The parent folder; None at the top of the storage."""
        root = self.root.rpartition("/")[0]
        return type(self)(self.filesystem, root) if root else None

    def child(self, name: str) -> Folder:
        """Return a folder in this one."""
        return type(self)(self.filesystem, self.path(name))

    def path(self, name: str) -> str:
        """Return the full path of a file in the folder.

        Raises
        ------
        ConfigError
            The name leads out of the folder.
        """
        if name.startswith("/") or "\0" in name or ".." in name.split("/"):
            raise ConfigError("name", name, f"it leads out of {self.uri}")
        return f"{self.root}/{name}"

    def create(self, name: str, data: bytes) -> None:
        """Create a file atomically and durably, or raise FileExistsError if the name is taken."""
        raise UnsupportedFilesystem(str(self.filesystem.protocol))

    def write(self, name: str, data: bytes) -> None:
        """Write a file durably, under an unused name."""
        with self._answers(name):
            self.filesystem.pipe_file(self.path(name), data)

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file over an existing one. A crash may lose it, but a part of it is never visible."""
        with self._answers(name):
            self.filesystem.pipe_file(self.path(name), data)

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read a file, or its bytes from `start` up to `end`."""
        with self._answers(name):
            data: bytes = self.filesystem.cat_file(self.path(name), start=start, end=end)
            return data

    def open(self, name: str) -> BinaryIO:
        """Open a file for random reads."""
        with self._answers(name):
            file: BinaryIO = self.filesystem.open(self.path(name), "rb")
            return file

    def size(self, name: str) -> int:
        """Return a file's size in bytes."""
        with self._answers(name):
            return int(self.filesystem.size(self.path(name)))

    def exists(self, name: str) -> bool:
        """Return whether a file exists, by asking the storage."""
        try:
            self.size(name)
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        """List the names in a sub-folder, without a cache; empty if there is no such folder."""
        self.filesystem.invalidate_cache(self.path(folder))
        try:
            with self._answers(folder):
                listed = self.filesystem.ls(self.path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(path.rsplit("/", 1)[-1] for path in listed)

    def files(self, folder: str = "") -> list[FileInfo]:
        """List the files below a sub-folder with their sizes and ages, without a cache."""
        top = self.path(folder).rstrip("/")
        self.filesystem.invalidate_cache(top)
        try:
            with self._answers(folder):
                found = self.filesystem.find(top, detail=True)
        except FileNotFoundError:
            return []
        start = len(self.root) + 1
        return sorted(FileInfo(path[start:], int(info["size"]), _modified(info)) for path, info in found.items())

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes of the files with a prefix, without a cache, with one request per thousand files."""
        folder, _, begins = prefix.rpartition("/")
        top = self.path(folder)
        self.filesystem.invalidate_cache(top)
        try:
            with self._answers(prefix):
                found = self.filesystem.find(top, detail=True, prefix=begins)
        except FileNotFoundError:
            return {}
        names = {path[len(self.root) + 1 :]: int(info["size"]) for path, info in found.items()}
        return {name: size for name, size in names.items() if name.startswith(prefix)}

    def delete(self, names: Sequence[str]) -> None:
        """Delete files, in as few requests as the filesystem allows; missing files are ignored."""
        for name in names:
            with suppress(FileNotFoundError), self._answers(name):
                self.filesystem.rm_file(self.path(name))

    @contextmanager
    def _answers(self, name: str) -> Iterator[None]:
        """Turn refusals, full disks and obstructed paths into the errors of this project."""
        try:
            yield
        except KeyGroupsError:
            raise
        except OSError as error:
            if isinstance(error, IsADirectoryError | NotADirectoryError) or error.errno == errno.ELOOP:
                raise PathObstructed(self.path(name), error.strerror or str(error)) from error
            kind = _kind_of(error)
            if kind is None:
                raise
            raise kind(self.uri, self.path(name), redacted(error.strerror or str(error))) from error


def _kind_of(error: OSError) -> type[StorageRefused | StorageFull] | None:
    """Return the error of this project that says what an error of the storage means, if there is one."""
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return StorageRefused
    return StorageFull if error.errno in NO_ROOM else None


def check_uri(uri: str) -> None:
    """Refuse a URI that contains secrets, because URIs appear in errors, logs and reports.

    Raises
    ------
    ConfigError
        The URI has a password or a query.
    """
    from fsspec.utils import get_protocol

    if get_protocol(uri) not in _LOCAL_PROTOCOLS and redacted(uri) != uri:
        raise ConfigError(
            "uri", redacted(uri), "a URI must not contain a password or a query: pass them as storage_options"
        )


def redacted(text: str) -> str:
    """Return a text with the passwords and queries of its URIs removed."""
    return _QUERY.sub(r"\1?…", _USER.sub("…@", text))


def _modified(info: dict[str, Any]) -> float:
    """Return the time of the last change, for which each filesystem has its own name and type."""
    for name in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = info.get(name)
        if isinstance(value, str):
            value = dt.datetime.fromisoformat(value)
        if isinstance(value, dt.datetime):
            return value.timestamp()
        if value is not None:
            return float(value)
    raise AssertionError(f"the listing has no times, only {sorted(info)}")
