"""A folder on any filesystem: what every kind of storage must do, and what fsspec does alike for all of them."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from keygroups.errors import ConfigError
from snapshots.errors import UnsupportedFilesystem

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_LOCAL_PROTOCOLS = {"file", "local", "memory"}
# To the last @ and over slashes, since secrets have both.
_USER = re.compile(r"(?<=://)[^\s\"']*:[^\s\"']*@")
_QUERY = re.compile(r"(?<=://)([^\s\"'?]*)\?[^\s\"']*")


class FileInfo(NamedTuple):
    """What a listing tells about a file.

    Attributes
    ----------
    name : str
        Relative to the folder.
    bytes : int
        Its size.
    modified : float
        Seconds since the epoch, by the storage's clock.
    """

    name: str
    bytes: int
    modified: float


class Folder:
    """An operator's folder. All paths are relative to it. Any thread may call any method.

    Subclasses say, per filesystem, how a file is created if absent (`create`) and made durable (`write`). What the
    storage answers is an `OSError`, of whatever package: `FileNotFoundError`, `FileExistsError`, `StorageUnavailable`.
    """

    def __init__(self, filesystem: AbstractFileSystem, root: str) -> None:
        self.filesystem = filesystem
        self.root: str = root.rstrip("/")

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

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file, over the one that has the name. It may be lost in a crash; it is never seen in part."""
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

    def exists(self, name: str) -> bool:
        """Return whether there is such a file, asking the storage."""
        try:
            self.size(name)
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        """List the names in a sub-folder, fresh from storage; empty if there is no such folder."""
        self.filesystem.invalidate_cache(self.path(folder))
        try:
            listed = self.filesystem.ls(self.path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(path.rsplit("/", 1)[-1] for path in listed)

    def files(self, folder: str = "") -> list[FileInfo]:
        """List the files below a sub-folder with their sizes and ages, fresh from storage."""
        top = self.path(folder).rstrip("/")
        self.filesystem.invalidate_cache(top)
        try:
            found = self.filesystem.find(top, detail=True)
        except FileNotFoundError:
            return []
        start = len(self.root) + 1
        return sorted(FileInfo(path[start:], int(info["size"]), _modified(info)) for path, info in found.items())

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes of the files whose names begin alike, fresh from storage: a request for every thousand."""
        folder, _, begins = prefix.rpartition("/")
        top = self.path(folder)
        self.filesystem.invalidate_cache(top)
        try:
            found = self.filesystem.find(top, detail=True, prefix=begins)
        except FileNotFoundError:
            return {}
        names = {path[len(self.root) + 1 :]: int(info["size"]) for path, info in found.items()}
        return {name: size for name, size in names.items() if name.startswith(prefix)}

    def delete(self, names: Sequence[str]) -> None:
        """Delete files, in as few requests as the filesystem knows; one that is missing is done."""
        for name in names:
            with suppress(FileNotFoundError):
                self.filesystem.rm_file(self.path(name))


def check_uri(uri: str) -> None:
    """Refuse a URI with secrets in it, since URIs are shown in errors, logs and reports.

    Raises
    ------
    ConfigError
        It has a password or a query.
    """
    from fsspec.utils import get_protocol

    if get_protocol(uri) not in _LOCAL_PROTOCOLS and redacted(uri) != uri:
        raise ConfigError(
            "uri", redacted(uri), "passwords and queries do not belong into a URI: pass them as storage_options"
        )


def redacted(text: str) -> str:
    """Return a text without the passwords and queries of the URIs in it."""
    return _QUERY.sub(r"\1?…", _USER.sub("…@", text))


def _modified(info: dict[str, Any]) -> float:
    """Return the time of the last change; each filesystem has its own name and type for it."""
    for name in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = info.get(name)
        if isinstance(value, str):
            value = dt.datetime.fromisoformat(value)
        if isinstance(value, dt.datetime):
            return value.timestamp()
        if value is not None:
            return float(value)
    raise AssertionError(f"the listing has no times, only {sorted(info)}")
