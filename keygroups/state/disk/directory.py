"""The private directory of a store: created when the store is opened, removed when it is closed."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from keygroups.state.disk.errors import StateDirectoryNotLocked, StateDirectoryRefused

_PREFIX = "keygroups-state-"
_LOCK = "in_use"
_ATTEMPTS_MAX = 100


class StoreDirectory:
    """Creates an empty directory beside the directories of other subtasks and processes. Any thread may call it.

    A lock, which ends with its process, shows which directories are in use. Directories of dead processes are removed.

    Parameters
    ----------
    parent : Path
        The directory in which it is created.

    Raises
    ------
    StateDirectoryNotLocked
        No new directory could be locked.
    StateDirectoryRefused
        No new directory could be made.
    """

    __slots__ = ("_lock", "path")

    def __init__(self, parent: Path) -> None:
        _remove_left_over(parent)
        for _ in range(_ATTEMPTS_MAX):
            self.path = _made_in(parent)
            lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
            # Another process may have taken it for a left-over directory.
            if _is_locked_by_us(lock) and (self.path / _LOCK).exists():
                self._lock = lock
                return
            os.close(lock)
            shutil.rmtree(self.path, ignore_errors=True)
        raise StateDirectoryNotLocked(str(parent))

    def remove(self) -> None:
        """Remove the directory with its content; call it at most once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _made_in(parent: Path) -> Path:
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    except OSError as error:
        raise StateDirectoryRefused(str(parent), error.strerror or str(error)) from error


def _remove_left_over(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        # Another process has just removed it, or it is not what this class has made: a link, or another user's.
        with suppress(OSError):
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _is_locked_by_us(lock):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _is_locked_by_us(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
