"""The order that the driver gives for one epoch."""

from __future__ import annotations

from dataclasses import dataclass

from async_op.spark.epoch.inputs import EpochInput
from async_op.spark.epoch.position import SourcePosition


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """What one epoch must do, and the source position that it commits.

    Attributes
    ----------
    position : SourcePosition
        The position of the source after the epoch.
    parallelism : int
        The number of subtasks.
    barrier_timeout : float or None
        Seconds to wait for calls; None to wait until nothing is in flight.
    source : EpochInput or None
        What the rows are; None without input.
    is_final : bool
        Whether the operators of this generation end with the epoch.
    for_room : bool
        Whether to wait only until the operators have room for the rows of another epoch, and for no call.
    is_strict : bool
        Whether the barrier timeout also bounds the wait for the calls of the epoch before, where operators live in
        their tasks.
    """

    position: SourcePosition
    parallelism: int
    barrier_timeout: float | None
    source: EpochInput | None = None
    is_final: bool = False
    for_room: bool = False
    is_strict: bool = False

    @property
    def description(self) -> str:
        """What Spark's web UI calls the epoch's jobs."""
        return "drain" if self.source is None else self.source.description

    @property
    def input_name(self) -> str:
        """Part of the idempotency keys of the epoch's rows."""
        return "" if self.source is None else self.source.name
