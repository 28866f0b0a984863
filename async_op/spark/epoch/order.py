"""What an epoch is to do."""

from __future__ import annotations

from dataclasses import dataclass

from async_op.spark.epoch.position import SourcePosition


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """What an epoch is to do.

    Attributes
    ----------
    position : SourcePosition
        Of the source, once it is committed.
    parallelism : int
        The number of subtasks.
    barrier_timeout : float or None
        Seconds to wait for calls; None until nothing is in flight.
    is_final : bool
        Operators of this parallelism end with it.
    """

    position: SourcePosition
    parallelism: int
    barrier_timeout: float | None
    is_final: bool = False

    @property
    def description(self) -> str:
        """What Spark's pages call its jobs."""
        return f"batch {self.position.batch_id}" if self.position.kind == "batch" else "drain"
