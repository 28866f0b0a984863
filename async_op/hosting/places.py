"""Files of hosts on one machine: a private folder for each run, and in it a socket, a lock and a log for each host."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from async_op.hosting.errors import HostUnreachable

PATH_BYTES_MAX = 107
"""What the kernel takes as the path of a Unix socket."""

_PREFIX = "keygroups-"


class Place(NamedTuple):
    """Where one host of a machine has its files."""

    folder: Path
    name: str
    start: str = ""

    @property
    def socket(self) -> Path:
        """Listens."""
        return self.folder / f"{self.name}.sock"

    @property
    def lock(self) -> Path:
        """Is locked as long as the host lives: there is one for each run, subtask and machine."""
        return self.folder / f"{self.name}.lock"

    @property
    def log(self) -> Path:
        """What the host and its function have printed; another one for each start, so that none takes another's."""
        return self.folder / f"{self.name}-{self.start}.log"

    def try_lock(self) -> int | None:
        """Lock the place; returns what holds it until it is closed, or None while somebody else has it."""
        held = os.open(self.lock, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(held).st_ino == self.lock.stat().st_ino:
                return held
        except OSError:  # held by another, or removed by one that has just ended
            pass
        os.close(held)
        return None

    def clear(self) -> None:
        """Remove what its host has left; whoever calls this holds the lock. A log stays if it says anything."""
        _remove_empty(self.log)
        for path in (self.socket, self.lock):
            path.unlink(missing_ok=True)


def place_of(run_id: str, generation: str, subtask_index: int, parent: str | None = None) -> Place:
    """Return the place of a subtask's host on this machine, whose folder exists and is nobody else's.

    Parameters
    ----------
    run_id, generation : str
        The run, and what tells its hosts apart.
    subtask_index : int
        Whose.
    parent : str, optional
        The folder above; that for temporary files unless given.

    Raises
    ------
    HostUnreachable
        There can be no socket.
    """
    folder = _folder_of(run_id, parent)
    place = Place(folder, f"{_digest(generation)}-{subtask_index}", secrets.token_hex(4))
    if len(os.fsencode(place.socket)) > PATH_BYTES_MAX:
        raise HostUnreachable(f"the path of its socket, {place.socket}, is over {PATH_BYTES_MAX} bytes")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise HostUnreachable(f"its folder cannot be made: {error}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise HostUnreachable(f"{folder} is open to others")
    return place


def sockets_of(run_id: str, parent: str | None = None) -> list[Path]:
    """Return the sockets of a run's hosts on this machine."""
    return sorted(_folder_of(run_id, parent).glob("*.sock"))


def sweep(folder: Path) -> None:
    """Remove what killed hosts of other runs have left beside a run's folder, but logs that say something.

    Nobody holds the locks of these. Those of the same run are for their successors to remove.
    """
    for lock in folder.parent.glob(f"{_PREFIX}{os.getuid()}-*/*.lock"):
        if lock.parent == folder:
            continue
        place = Place(lock.parent, lock.stem)
        with suppress(OSError):
            held = place.try_lock()
            if held is not None:
                place.clear()
                for log in place.folder.glob(f"{place.name}-*.log"):
                    _remove_empty(log)
                os.close(held)
                leave(place.folder)


def leave(folder: Path) -> None:
    """Remove a run's folder once nothing is in it."""
    with suppress(OSError):
        folder.rmdir()


def _remove_empty(log: Path) -> None:
    with suppress(OSError):
        if log.stat().st_size == 0:
            log.unlink()


def _folder_of(run_id: str, parent: str | None) -> Path:
    return Path(parent or tempfile.gettempdir()) / f"{_PREFIX}{os.getuid()}-{_digest(run_id)}"


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=6).hexdigest()
