"""Which subtask a host is for, and how it lives."""

from __future__ import annotations

from dataclasses import dataclass

from async_op.hosting.lease import LEASE_SECONDS, PATIENCE_SECONDS
from async_op.resilience.lending import Allowance
from async_op.subtask.inbox import RESERVE_BYTES_MAX, RESERVE_MAX
from snapshots import SubtaskRestore

OUTPUTS_MAX = 100_000
"""With this many outputs, a host takes in no elements and fires no timers until its next epoch."""


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
