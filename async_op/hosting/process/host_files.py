"""The files of hosts on one machine: a private folder for each run, with a socket, a lock and a log for each host."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from async_op.hosting.errors import HostUnreachable
from async_op.hosting.wire.socket_paths import PATH_BYTES_MAX, is_bindable
from snapshots.host_logs import FOLDER_PREFIX, digest_of, run_folder

_STARTED_SECONDS = 600.0
"""A host has a lock after this time, or it never will."""

LOGS_MAX = 100
"""Each machine keeps the logs of so many ended hosts: enough for a query that has just failed."""

_TRIES_MAX = 100
"""How often a folder is made again that another host removes at the same moment."""


class HostFiles(NamedTuple):
    """Where one host has its files on its machine."""

    folder: Path
    name: str
    start: str = ""

    @property
    def socket(self) -> Path:
        """The Unix socket on which the host listens."""
        return self.folder / f"{self.name}.sock"

    @property
    def lock(self) -> Path:
        """The file that a host locks as long as it lives: a machine has one for each subtask of a generation."""
        return self.folder / f"{self.name}.lock"

    @property
    def log(self) -> Path:
        """What the host and its function print; each start has a file of its own, so that no host takes another's."""
        return self.folder / f"{self.name}-{self.start}.log"

    @property
    def blocking(self) -> Path:
        """Where the host notes which functions block its event loop: it cannot answer meanwhile."""
        return self.socket.with_suffix(".blocking")

    @property
    def exits(self) -> Path:
        """Where a fork server notes how its hosts have ended."""
        return self.folder / f"{self.name}.exits"

    def make_folder(self) -> None:
        """Make the folder if it is not there; raises `HostUnreachable` if other users could open it."""
        _make_private(self.folder)

    def open_log(self) -> BinaryIO:
        """Open the log for appending; once it is there, no host that ends can remove the folder.

        It is locked until all processes that inherit it have ended, so that no log in use is removed.
        """
        for _ in range(_TRIES_MAX):
            self.make_folder()
            with suppress(FileNotFoundError):
                log = self.log.open("ab")
                fcntl.flock(log, fcntl.LOCK_EX)
                return log
        raise HostUnreachable(f"{self.folder} is removed again and again")

    def try_lock(self) -> int | None:
        """Lock the place; returns a descriptor that holds the lock until closed, or None if another host has it."""
        held = os.open(self.lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(held).st_ino == self.lock.stat().st_ino:
                return held
        except OSError:  # held by another host, or removed by one that has just ended
            pass
        os.close(held)
        return None

    def clear(self) -> None:
        """Remove the host's files, except a log that is not empty. The caller must hold the lock."""
        _remove_empty(self.log)
        for path in (self.socket, self.blocking, self.exits, self.lock):
            path.unlink(missing_ok=True)


def files_of(run_id: str, generation: str, subtask_index: int, parent: str | None = None) -> HostFiles:
    """Return the place of a subtask's host on this machine, and make its folder, which no other user can read.

    Parameters
    ----------
    run_id, generation : str
        The run and the generation of the host.
    subtask_index : int
        The subtask.
    parent : str, optional
        The folder in which the run's folder is made; by default, that for temporary files.

    Raises
    ------
    HostUnreachable
        The path of the socket is too long, or the folder cannot be made, or other users can open it.
    """
    folder = run_folder(run_id, parent)
    place = HostFiles(folder, f"{digest_of(generation)}-{subtask_index}", secrets.token_hex(4))
    if not is_bindable(place.socket):
        raise HostUnreachable(f"the path of its socket, {place.socket}, is over {PATH_BYTES_MAX} bytes")
    place.make_folder()
    return place


def holder_of(lock: Path) -> str:
    """Return the process that has a place, as in its `Address`; empty if that is not known."""
    try:
        return f"{socket.gethostname()}:{int(lock.read_text(encoding='ascii'))}"
    except (OSError, ValueError):  # it has just ended, or has not said yet who it is
        return ""


def sweep(folder: Path) -> None:
    """Remove what killed hosts of other runs have left beside a run's folder, except logs that are not empty.

    A killed host is known by its lock, which is free. Hosts of the same run leave their files to their successors.
    The newest `LOGS_MAX` logs of ended hosts are kept. A folder that another user has made,
    or could write to, is left alone, whatever its name says.
    """
    runs = [run for run in folder.parent.glob(f"{FOLDER_PREFIX}{os.getuid()}-*") if _is_private_folder(run)]
    _remove_oldest_logs(runs)
    for other in runs:
        with suppress(OSError):
            if other != folder:
                _sweep(other, folder.stat().st_mtime - _STARTED_SECONDS)


def _remove_oldest_logs(runs: Iterable[Path]) -> None:
    left = []
    for run in runs:
        with suppress(FileNotFoundError):  # its last host has just removed the folder
            for log in run.glob("*.log"):
                written = _written(log)
                if written is not None:
                    left.append((written, log))
    for _, log in sorted(left, reverse=True)[LOGS_MAX:]:
        log.unlink(missing_ok=True)


def _written(log: Path) -> float | None:
    """Return when a log was written last, or None if it is empty, in use or gone."""
    with suppress(OSError):
        opened = os.open(log, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.fstat(opened)
        finally:
            os.close(opened)
        if found.st_size:
            return found.st_mtime
    return None


def _sweep(folder: Path, before: float) -> None:
    for lock in folder.glob("*.lock"):
        place = HostFiles(folder, lock.stem)
        with suppress(OSError):
            held = place.try_lock()
            if held is not None:
                place.clear()
                for log in folder.glob(f"{place.name}-*.log"):
                    _remove_empty(log)
                os.close(held)
    for log in folder.glob("*.log"):
        # A host that is starting has a log and no lock yet; one that was killed and replaced has left its log.
        with suppress(OSError):
            has_lock = (folder / f"{log.stem.rpartition('-')[0]}.lock").exists()
            if not has_lock and log.stat().st_mtime < before:
                _remove_empty(log)
    leave(folder)


def _make_private(folder: Path) -> None:
    try:
        found = _made(folder)
    except OSError as error:
        raise HostUnreachable(f"the folder of its socket cannot be made: {error}") from error
    if not _is_private(found):
        raise HostUnreachable(f"{folder} is open to others")


def _is_private_folder(path: Path) -> bool:
    try:
        return _is_private(path.lstat())
    except OSError:  # its last host has just removed it
        return False


def _is_private(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _made(folder: Path) -> os.stat_result:
    for _ in range(_TRIES_MAX):
        with suppress(FileNotFoundError, FileExistsError):  # a host that has ended removed it in between
            folder.mkdir(mode=0o700, exist_ok=True)
            return folder.lstat()
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder.lstat()


def leave(folder: Path) -> None:
    """Remove a run's folder if it is empty."""
    with suppress(OSError):
        folder.rmdir()


def _remove_empty(log: Path) -> None:
    with suppress(OSError):
        if log.stat().st_size == 0:
            log.unlink()
