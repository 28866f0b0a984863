"""The order that the driver gives for one epoch."""

from __future__ import annotations

from dataclasses import dataclass

from async_op.hosting.messages import EpochEnd
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
    end : EpochEnd
        What the epoch waits for, and whether the operators of this generation end with it.
    source : EpochInput or None
        What the rows are; None without input.
    """

    position: SourcePosition
    parallelism: int
    end: EpochEnd
    source: EpochInput | None = None

    @property
    def description(self) -> str:
        """What Spark's web UI calls the epoch's jobs."""
        return "drain" if self.source is None else self.source.description

    @property
    def input_name(self) -> str:
        """Part of the idempotency keys of the epoch's rows."""
        return "" if self.source is None else self.source.name
