"""What an epoch must do: the settings that all share, its input, and how the source position moves past it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from async_op.epochs.position import EpochRef, RunPosition, SourcePosition
from async_op.hosting.messages import EpochEnd
from async_op.options import OperatorOptions
from async_op.threads.wait_strategies import WaitStrategies

_FINISHED_MAX = 1000
"""How many finished runs a position names."""


@dataclass(frozen=True, kw_only=True)
class EpochSettings:
    """What all epochs of a pipeline share.

    Attributes
    ----------
    options : OperatorOptions
        The options of the operator, with the user's function.
    barrier_timeout : float or None
        Seconds that an epoch waits for calls under way; None to wait for all.
    event_time : str or None
        The column with the timestamps of rows; None without event time.
    is_resident : bool
        Whether operators live on between epochs, in hosts.
    wait_strategies : WaitStrategies
        How tasks wait for hosts.
    """

    options: OperatorOptions
    barrier_timeout: float | None
    event_time: str | None
    is_resident: bool
    wait_strategies: WaitStrategies


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
        return replace(position, query_id=self.query_id, batch_id=self.batch_id, kind="batch", is_in_run=None)


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
            return replace(position, run=run, kind="chunk", is_in_run=True)
        finished = (*position.finished_runs, self.run_id)[-_FINISHED_MAX:]
        return replace(position, run=None, finished_runs=finished, kind="chunk", is_in_run=True)


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
