"""What a host is made of: how it makes and uses its operator, which subtask it is for, and how long it lives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from async_op.elements import Element, Record, Watermark
from async_op.hosting.fed_subtask import CutPart
from async_op.resilience.lending import Allowance
from async_op.subtask.inbox import RESERVE_BYTES_MAX, RESERVE_MAX
from async_op.subtask.operator import ResidentOperator
from snapshots import SubtaskRestore

LEASE_SECONDS = 120.0
"""Time from the driver's last sign of life to the end of a host."""

PATIENCE_SECONDS = 60.0
"""A feeder or host that is silent for this long is taken for dead; so a function must block its loop for less."""

SILENT_SECONDS = 5.0
"""A host that has not answered for this long is named in the driver's log."""

OPEN_SECONDS = 1800.0
"""A host whose function's `open` has not returned after this time is given up: a large model may be loaded in it."""

OUTPUTS_MAX = 100_000
"""With this many outputs, a host takes in no elements and fires no timers until its next epoch."""

CLOSE_SECONDS = 10.0
"""A host waits no longer than this for its function to close."""


class Blueprint(Protocol):
    """Makes the operators of one generation, decodes their input, and writes their parts.

    The driver pickles it once for each generation.
    """

    def operator(self, subtask_index: int, output: Callable[[Record | Watermark], object]) -> ResidentOperator:
        """Return the operator of a subtask, not opened yet; it calls `output` with what leaves it."""
        ...

    def decoder(self, epoch: Any) -> Callable[[Any], Iterable[Element]]:
        """Return what makes elements of rows in one epoch: called once for each feed, in their order."""
        ...

    def bytes_of(self, rows: Any) -> int:
        """Return the size of rows as they are fed."""
        ...

    def pack(self, outputs: list[Any]) -> Any:
        """Return a run of outputs as one object."""
        ...

    async def write(self, part: CutPart, target: Any) -> Any:
        """Write a part while calls go on, never a manifest (H4); returns the handle by which the driver commits it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Which subtask a host is for, and how it lives.

    Attributes
    ----------
    generation : str
        The name of the generation that the host belongs to.
    subtask_index : int
        The subtask.
    restore : SubtaskRestore or None
        The subtask's share of the newest snapshot; None without a snapshot.
    manifest_id : str or None
        The id of that snapshot's manifest.
    lease_seconds, patience_seconds : float
        See `LEASE_SECONDS`, `PATIENCE_SECONDS`.
    outputs_max, reserve_max, reserve_bytes_max : int
        See `OUTPUTS_MAX`, and `RESERVE_MAX`, `RESERVE_BYTES_MAX` of the inbox.
    is_resident : bool
        False for a host that ends with its epoch. It loads only the state that calls ask for. Its feeder waits as long
        as it takes for room, and for the calls of the epoch before: cut off in each epoch, a long call would never
        return.
    allowance : mapping of str to Allowed or None
        What the operator may use of its limits before the first hello; None if it keeps its share of them.
    """

    generation: str
    subtask_index: int
    restore: SubtaskRestore | None = None
    manifest_id: str | None = None
    lease_seconds: float = LEASE_SECONDS
    patience_seconds: float = PATIENCE_SECONDS
    outputs_max: int = OUTPUTS_MAX
    reserve_max: int = RESERVE_MAX
    reserve_bytes_max: int = RESERVE_BYTES_MAX
    is_resident: bool = True
    allowance: Allowance | None = None
