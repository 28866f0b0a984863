"""What the epoch under way does, for people who look before it has ended. It is no part of a snapshot."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from keygroups.representation import counts_repr
from snapshots.filesystem import Folder

NAME = "under_way"

FRESH_SECONDS = 60.0
"""An older note is of a driver that was killed, or that cannot write: its epoch is not known to be under way."""

_BYTES_MAX = 4096

Phase = Literal["subtasks", "commit", "sink"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochUnderWay:
    """An epoch that has not ended, at one moment.

    Attributes
    ----------
    epoch : int
        The version that it is going to commit.
    at : float
        The moment, in seconds since 1970.
    seconds : float
        How long the epoch had been under way.
    phase : {"subtasks", "commit", "sink"}
        Whether its subtasks are at work, its manifest is written, or the sink has its outputs.
    parallelism : int
        The number of subtasks.
    hosts : int
        How many hosts of subtasks have answered. The driver may not reach all of them.
    in_flight, waiting : int
        Elements in the operators, and elements for which these have no room yet, in all hosts that have answered.
    oldest_call_seconds : float
        The age of the oldest element in flight.
    calls : int
        Calls that these hosts have made since they were started.
    calls_per_second : float
        Calls begun in a second, lately.
    """

    epoch: int
    at: float
    seconds: float
    phase: Phase
    parallelism: int
    hosts: int = 0
    in_flight: int = 0
    waiting: int = 0
    oldest_call_seconds: float = 0.0
    calls: int = 0
    calls_per_second: float = 0.0

    __repr__ = counts_repr

    def __str__(self) -> str:
        return f"epoch {self.epoch} has been under way for {self.seconds:.0f} s and waits for {self._what}"

    @property
    def _what(self) -> str:
        match self.phase:
            case "commit":
                return "the storage of its manifest"
            case "sink":
                return "its sink"
        if not self.hosts:
            return (
                "its tasks: no host answers, because Spark has not started them, open() of the function has not "
                "returned, hosts hang, or operators live inside the tasks"
            )
        more = f", {self.waiting:,} more wait for room" if self.waiting else ""
        what = f"calls: {self.in_flight:,} in flight{more}" if self.in_flight else "rows: nothing is in flight"
        of_hosts = f"{self.hosts} of {self.parallelism} hosts answer"
        oldest = f", the oldest for {self.oldest_call_seconds:.1f} s" if self.in_flight else ""
        return f"{what}{oldest}, {self.calls_per_second:.1f} calls/s; {of_hosts}"


def note_under_way(folder: Folder, noted: EpochUnderWay | None) -> None:
    """Replace the note; None removes it."""
    if noted is None:
        folder.delete([NAME])
    else:
        folder.replace(NAME, json.dumps(asdict(noted)).encode())


def under_way_in(folder: Folder, now: float) -> EpochUnderWay | None:
    """Return the epoch under way; None if there is no note, or only an old one."""
    try:
        found = EpochUnderWay(**json.loads(folder.read(NAME, 0, _BYTES_MAX)))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return found if abs(now - found.at) < FRESH_SECONDS else None
