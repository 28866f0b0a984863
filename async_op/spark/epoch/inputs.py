"""What an epoch's rows are, and how the source position moves past them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from async_op.spark.epoch.position import EpochRef, RunPosition, SourcePosition

_FINISHED_MAX = 1000
"""How many finished runs a position names."""


class EpochInput(Protocol):
    """The input of one epoch."""

    @property
    def name(self) -> str:
        """The same in every run of the epoch, and no other input's: part of its rows' idempotency keys."""
        ...

    @property
    def description(self) -> str:
        """What Spark's web UI calls the epoch's jobs."""
        ...

    def is_in(self, position: SourcePosition) -> bool:
        """Tell whether the rows are in the state already."""
        ...

    def advance(self, position: SourcePosition) -> SourcePosition:
        """Return the position after the rows."""
        ...


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch of a streaming query."""

    query_id: str
    batch_id: int

    @property
    def name(self) -> str:
        """The query and the batch."""
        return f"{self.query_id}/{self.batch_id}"

    @property
    def description(self) -> str:
        """The batch."""
        return f"batch {self.batch_id}"

    def is_in(self, position: SourcePosition) -> bool:
        """Tell whether this batch, or a later one of the query, is in the state."""
        return (
            position.query_id == self.query_id and position.batch_id is not None and self.batch_id <= position.batch_id
        )

    def advance(self, position: SourcePosition) -> SourcePosition:
        """Return the position after the batch."""
        return replace(position, query_id=self.query_id, batch_id=self.batch_id, kind="batch")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of the stored input of a bounded run.

    Attributes
    ----------
    run_id, input_id : str
        The run and its stored input.
    number : int
        The number of the chunk, from 0.
    chunks : int
        How many there are.
    """

    run_id: str
    input_id: str
    number: int
    chunks: int

    @property
    def name(self) -> str:
        """The stored input and the chunk."""
        return f"run {self.input_id}/{self.number}"

    @property
    def description(self) -> str:
        """The run and the chunk."""
        return f"run {self.run_id}, chunk {self.number + 1} of {self.chunks}"

    def is_in(self, position: SourcePosition) -> bool:
        """Tell whether this chunk, or a later one of the run, is in the state."""
        run = position.run
        is_done = run is not None and run.run_id == self.run_id and self.number < run.done
        return is_done or self.run_id in position.finished_runs

    def advance(self, position: SourcePosition) -> SourcePosition:
        """Return the position after the chunk; the last one finishes the run."""
        done = self.number + 1
        if done < self.chunks:
            run = RunPosition(self.run_id, self.input_id, done, self.chunks)
            return replace(position, run=run, kind="chunk")
        finished = (*position.finished_runs, self.run_id)[-_FINISHED_MAX:]
        return replace(position, run=None, finished_runs=finished, kind="chunk")


@dataclass(frozen=True, slots=True)
class UpstreamEpoch:
    """The outputs of an epoch of the pipeline before. Epochs come one after the other, and none twice."""

    ref: EpochRef

    @property
    def name(self) -> str:
        """The attempt that was committed, and the epoch: other versions may hold the same outputs."""
        return f"{self.ref.attempt}/{self.ref.epoch}"

    @property
    def description(self) -> str:
        """The epoch."""
        return f"epoch {self.ref.epoch} of the pipeline before"

    def is_in(self, position: SourcePosition) -> bool:
        """Tell whether the outputs are in the state."""
        return position.upstream == self.ref

    def advance(self, position: SourcePosition) -> SourcePosition:
        """Return the position after the outputs."""
        return replace(position, upstream=self.ref, kind="upstream")
