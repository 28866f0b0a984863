"""Temporary files on the local disk, with an error that says where there is no room for them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from keygroups.context_managers import contextmanager
from keygroups.errors import KeyGroupsError
from snapshots.filesystem.errors import NO_ROOM, TemporaryDiskFull


@contextmanager
def temporary_directory(purpose: str) -> Iterator[Path]:
    """Yield a new directory, which is removed at the end; `purpose` is a part of its name.

    Raises
    ------
    TemporaryDiskFull
        There is no room for its files.
    """
    with full_disk_named(), tempfile.TemporaryDirectory(prefix=f"keygroups-{purpose}-") as directory:
        yield Path(directory)


@contextmanager
def full_disk_named() -> Iterator[None]:
    """Turn the error of a disk that has no room for temporary files into `TemporaryDiskFull`."""
    try:
        yield
    except KeyGroupsError:
        raise
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise TemporaryDiskFull(tempfile.gettempdir(), error.strerror or str(error)) from error
