"""Temporary files on the local disk, with an error that says where there is no room for them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from keygroups.context_managers import contextmanager
from keygroups.errors import KeyGroupsError
from snapshots.filesystem.errors import NO_ROOM, NoTemporaryDirectory, TemporaryDiskFull


@contextmanager
def temporary_directory(purpose: str) -> Iterator[Path]:
    """Yield a new directory, which is removed at the end; `purpose` is a part of its name.

    Raises
    ------
    NoTemporaryDirectory, TemporaryDiskFull
        It cannot be made, or there is no room for its files.
    """
    with full_disk_named(), tempfile.TemporaryDirectory(prefix=f"keygroups-{purpose}-") as directory:
        yield Path(directory)


@contextmanager
def full_disk_named() -> Iterator[None]:
    """Turn the error of a disk that has no room for temporary files into `TemporaryDiskFull`.

    Raises
    ------
    NoTemporaryDirectory, TemporaryDiskFull
        No directory for them can be written to, or there is no room.
    """
    directory = _directory()
    try:
        yield
    except KeyGroupsError:
        raise
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise TemporaryDiskFull(directory, error.strerror or str(error)) from error


def _directory() -> str:
    try:
        return tempfile.gettempdir()
    except OSError as error:
        raise NoTemporaryDirectory(error.strerror or str(error)) from error
