"""Paths of Unix sockets. A worker needs them before it has loaded anything else, so this module imports nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from keygroups.context_managers import contextmanager

PATH_BYTES_MAX = 107
"""The longest path that the kernel accepts for a Unix socket."""

_OPEN_FILES = Path("/proc/self/fd")


def is_bindable(path: Path) -> bool:
    """Tell whether a Unix socket can have this path."""
    return len(os.fsencode(path)) <= PATH_BYTES_MAX or _OPEN_FILES.is_dir()


@contextmanager
def bindable(path: Path) -> Iterator[str]:
    """Give a short path by which a socket can be bound or reached, however long the path of its folder is.

    The folder for temporary files is long in containers of YARN and in tests. On Linux an open folder has a short name.
    """
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield str(_OPEN_FILES / str(folder) / path.name)
    finally:
        os.close(folder)
