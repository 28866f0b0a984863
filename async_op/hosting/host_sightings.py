"""What a task tells the driver of its host before the epoch has ended, through the folder of snapshots.

The driver learns where hosts are when an epoch has ended, and on a cluster it may not reach them at all. The storage of
the snapshots is the one place that both the driver and all tasks can reach.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

from async_op.errors import BlocksEventLoop
from async_op.hosting.diagnostics import blocking_of
from async_op.hosting.lease import SILENT_SECONDS
from async_op.hosting.messages import Address
from snapshots.filesystem import Folder

FOLDER = "hosts"

_NOTED_SECONDS = 2.0
"""A driver looks at its hosts after three seconds: in a shorter epoch nothing is written."""

_BYTES_MAX = 65_536
"""A longer note is none of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A host, as the task that feeds it sees it.

    Attributes
    ----------
    generation : str
        The generation of the host.
    subtask : int
        The subtask.
    address : Address
        Where it listens.
    is_silent : bool
        Whether it is there and has not answered for `SILENT_SECONDS`.
    blocking : tuple of BlocksEventLoop
        The functions that have blocked its event loop, if it is on the machine of the task.
    """

    generation: str
    subtask: int
    address: Address
    is_silent: bool = False
    blocking: tuple[BlocksEventLoop, ...] = ()

    def write(self, folder: Folder) -> None:
        """Write it over an older one of the subtask; if the storage fails, the driver is not told."""
        fields = [self.generation, self.subtask, self.address, self.is_silent, [one.args for one in self.blocking]]
        with suppress(OSError):
            folder.replace(_name(self.subtask), json.dumps(fields).encode())


def sightings_in(folder: Folder, generation: str) -> list[Sighting]:
    """Return what tasks have written about the hosts of a generation."""
    found = (_read(folder, f"{FOLDER}/{name}") for name in folder.names(FOLDER))
    return [one for one in found if one is not None and one.generation == generation]


def forget(folder: Folder, generation: str) -> None:
    """Remove what tasks have written about the hosts of a generation."""
    with suppress(OSError):
        folder.delete([_name(one.subtask) for one in sightings_in(folder, generation)])


def _name(subtask: int) -> str:
    return f"{FOLDER}/{subtask}"


def _read(folder: Folder, name: str) -> Sighting | None:
    with suppress(FileNotFoundError, ValueError, TypeError):  # just removed, or not written by a task
        generation, subtask, address, is_silent, blocking = json.loads(folder.read(name, 0, _BYTES_MAX))
        return Sighting(
            generation=generation,
            subtask=subtask,
            address=Address(*address),
            is_silent=is_silent,
            blocking=tuple(BlocksEventLoop(*one) for one in blocking),
        )
    return None


class Lookout:
    """Looks at the host of one task, for what the driver cannot see by itself. One thread may call it.

    Parameters
    ----------
    generation : str
        The generation of the host.
    subtask : int
        The subtask.
    known : Address or None
        Where the driver believes the host to be.
    now : float
        When the task has begun, by a clock that never goes back.
    """

    def __init__(self, generation: str, subtask: int, known: Address | None, now: float) -> None:
        self._generation = generation
        self._subtask = subtask
        self._began_at = now
        self._told = "" if known is None else known.process, False

    def look(self, address: Address | None, silent_seconds: float, now: float) -> Sighting | None:
        """Return, once, a host that the driver does not know, or that has been silent for long.

        Parameters
        ----------
        address : Address or None
            The host that the task talks to, or tries to; None without one.
        silent_seconds : float
            How long the task has waited in vain for a sign of life.
        now : float
            The time, by the clock that said when the task began.
        """
        if address is None or not address.process:  # it has just begun, or ends
            return None
        is_silent = silent_seconds >= SILENT_SECONDS
        seen = address.process, is_silent or self._told == (address.process, True)
        if seen == self._told or not (is_silent or now - self._began_at >= _NOTED_SECONDS):
            return None
        self._told = seen
        return Sighting(
            generation=self._generation,
            subtask=self._subtask,
            address=address,
            is_silent=is_silent,
            blocking=tuple(blocking_of(address)),
        )
