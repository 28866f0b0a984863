"""The mark of the last delivered epoch. It is written after the sink has returned, and is not a version.

It names the epoch and the attempt that committed it, so the mark of a removed history has no effect. A crash may lose
it, like the hint at the newest version; then the epoch is delivered again.
"""

from __future__ import annotations

from typing import NamedTuple

from snapshots.filesystem import Folder

MARK = "delivered"

_MARK_BYTES_MAX = 128


class Delivered(NamedTuple):
    """An epoch that the sink has accepted.

    Attributes
    ----------
    epoch : int
        The number of the epoch.
    attempt : str
        Unique for each commit, as `PendingSnapshot.attempts_prefix` is.
    """

    epoch: int
    attempt: str


def mark_delivered(folder: Folder, delivered: Delivered) -> None:
    """Store the mark of the last delivered epoch."""
    folder.replace(MARK, f"{delivered.epoch:020d} {delivered.attempt}".encode())


def last_delivered(folder: Folder) -> Delivered | None:
    """Return the last delivered epoch, or None if there is no mark."""
    try:
        epoch, attempt = folder.read(MARK, 0, _MARK_BYTES_MAX).decode().split(" ")
        return Delivered(int(epoch), attempt)
    except (FileNotFoundError, ValueError):
        return None
