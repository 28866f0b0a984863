"""Which files a glob matches, and what a listing says of them."""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from keygroups.errors import ConfigError
from snapshots.filesystem import ClientFile, StorageClient, redacted

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What is said of a path that was removed since it was listed, or of a link that leads nowhere or to itself."""


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
    touched : int or None
        When the disk has last noted anything of the file. Unlike `changed`, no program can set it back.
    """

    bytes: int
    changed: Any = None
    file: int | None = None
    touched: int | None = None


class Glob:
    r"""The files that a pattern matches, under their full paths.

    A local file is named by its absolute path, any other one by its URI without secrets. A name that is no UTF-8 has
    the bytes that are none escaped, as in ``caf\xe9.csv``, so a backslash in a name is doubled.

    Its methods block. They may be called by any thread.
    """

    def __init__(self, filesystem: Any, pattern: str) -> None:
        self.filesystem = filesystem
        self._client = StorageClient(filesystem)
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
        for path in _matches(self._pattern):
            try:
                status = os.stat(path)  # noqa: PTH116 - thousands of them
            except OSError as error:
                if error.errno in _NOT_THERE:
                    continue
                raise
            if stat.S_ISREG(status.st_mode):
                found[self._name(path)] = Stamp(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)
        return found

    def open(self, name: str) -> Any:
        """Open a file for reading."""
        if self._is_local:
            return self.filesystem.open(self.path(name), "rb")
        with self._client.answers(name):
            file = self.filesystem.open(self.path(name), "rb")
        return ClientFile(file, self._client, name)

    def _remote(self) -> dict[str, Stamp]:
        self.filesystem.invalidate_cache()
        try:
            with self._client.answers(redacted(self.filesystem.unstrip_protocol(self._pattern))):
                # A glob without wildcards asks whether the file exists, and takes every error for a no.
                is_glob = glob.has_magic(self._pattern)
                listed = (
                    self.filesystem.glob(self._pattern, detail=True)
                    if is_glob
                    else {self._pattern: self.filesystem.info(self._pattern)}
                )
        except FileNotFoundError:  # gcsfs says this of a bucket that is missing, others say that it is empty
            return {}
        found = {path: info for path, info in listed.items() if info["type"] == "file"}
        for path, info in found.items():
            if info["size"] is None:
                reason = "its server says no length, and a source reads files by position: copy it to a storage first"
                raise ConfigError("path", redacted(self.filesystem.unstrip_protocol(path)), reason)
        return {self._name(path): Stamp(info["size"], _version_of(info)) for path, info in found.items()}

    def _name(self, path: str) -> str:
        name = path if self._is_local else self.filesystem.unstrip_protocol(path)
        name = name.replace("\\", r"\\")  # or two files could get one name
        if not name.isascii():
            name = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        if self.path(name) != path:
            self._paths[name] = path
        return name


def _matches(pattern: str) -> Iterator[str]:
    """Yield the paths that a pattern matches. Python's `glob` would follow links that lead back up, again and again."""
    base, is_recursive, rest = pattern.partition("/**/")
    if not is_recursive and pattern.endswith("/**"):
        base, is_recursive, rest = pattern.removesuffix("/**"), "/**/", "*"
    if not is_recursive:
        yield from glob.iglob(pattern)  # noqa: PTH207 - thousands of them
        return
    for folder in glob.iglob(base or "/"):  # noqa: PTH207 - as above
        for below in _folders(folder, frozenset()):
            yield from _matches(os.path.join(glob.escape(below), rest))  # noqa: PTH118 - as above


def _folders(folder: str, above: frozenset[tuple[int, int]]) -> Iterator[str]:
    """Yield a folder and all below it, also behind links, but for hidden ones and those in which it is itself."""
    with suppress(OSError):  # as `glob` does: it is no folder, was removed since, or may not be read
        status = os.stat(folder)  # noqa: PTH116 - as above
        identity = status.st_dev, status.st_ino
        if identity in above:
            return
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".")]
        # `DirEntry.is_dir` raises for a link that leads to itself.
        inner = [one.path for one in shown if (Path(one.path) if one.is_symlink() else one).is_dir()]
        yield folder
        for path in inner:
            yield from _folders(path, above | {identity})


def _version_of(info: dict[str, Any]) -> str:
    """Return what a storage says of an object that changes with its content."""
    keys = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "updated", "mtime", "created")
    return str(next((info[key] for key in keys if info.get(key)), ""))
