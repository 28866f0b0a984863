"""Which files a glob matches, and what a listing says of them."""

from __future__ import annotations

import glob
import os
import stat
from typing import Any, NamedTuple


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
    """

    bytes: int
    changed: Any = None
    file: int | None = None


class Glob:
    r"""The files that a pattern matches, under their full paths.

    A local file is named by its absolute path, any other one by its URI without secrets. A name that is no UTF-8 has
    the bytes that are none escaped, as in ``caf\xe9.csv``.

    Its methods block. They may be called by any thread.
    """

    def __init__(self, filesystem: Any, pattern: str) -> None:
        self.filesystem = filesystem
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
        for path in glob.iglob(self._pattern, recursive=True):  # noqa: PTH207 - a Path would drop what `**` means here
            try:
                status = os.stat(path)  # noqa: PTH116 - thousands of them
            except FileNotFoundError:  # removed since, or a link that leads nowhere
                continue
            if stat.S_ISREG(status.st_mode):
                found[self._name(path)] = Stamp(status.st_size, status.st_mtime_ns, status.st_ino)
        return found

    def _remote(self) -> dict[str, Stamp]:
        self.filesystem.invalidate_cache()
        listed = self.filesystem.glob(self._pattern, detail=True)
        return {
            self._name(path): Stamp(info["size"], _version_of(info))
            for path, info in listed.items()
            if info["type"] == "file"
        }

    def _name(self, path: str) -> str:
        name = path if self._is_local else self.filesystem.unstrip_protocol(path)
        if not name.isascii():
            name = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        if self.path(name) != path:
            self._paths[name] = path
        return name


def _version_of(info: dict[str, Any]) -> str:
    """Return what a storage says of an object that changes with its content."""
    keys = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "updated", "mtime", "created")
    return str(next((info[key] for key in keys if info.get(key)), ""))
