"""What one epoch did, as `AsyncPipeline.progress` and the log tell it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Literal

from async_op.spark.autoscale import EpochMeasurement, ScalingDecision

Kind = Literal["batch", "drain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMetrics:
    """What the subtasks of an epoch count, all of them together; a manifest keeps it by the same names.

    Attributes
    ----------
    rows, outputs : int
        Input rows and output rows.
    calls, retries, timeouts, reinvoked : int
        Calls made, those that were further attempts, elements whose time ran out, calls made again after a restore.
    reemitted : int
        Stored results that were taken over.
    skipped, dead_letters : int
        Elements that failed for good; a dead letter is an output row, too.
    in_flight : int
        Elements carried over to the next epoch.
    oldest_call_milliseconds : int
        For how long the oldest of them has been in its operator; of an epoch, the greatest of its subtasks'.
    state_rows, state_bytes : int
        What was written of the keyed state: only what changed, as a rule.
    work_milliseconds, back_pressured_milliseconds : int
        Spent on the epoch's rows, and of that without room for the next row; see `EpochMeasurement`.
    overtime_milliseconds : int
        Spent at the end of the input, before `barrier_timeout` began, on waiting for what the epoch before had carried
        over: only where operators run in their tasks.
    write_milliseconds : int
        Spent on writing.
    resident : int
        Subtasks whose operator goes on between epochs.
    cache_hits, cache_misses, shared, rate_limited, circuit_opened, circuit_refused : int
        What the limits of `resilience` count, as `ResilienceStatistics` has it; 0 without them.
    """

    rows: int
    outputs: int
    calls: int
    retries: int
    timeouts: int
    reinvoked: int
    reemitted: int
    skipped: int
    dead_letters: int
    in_flight: int
    state_rows: int
    state_bytes: int
    back_pressured_milliseconds: int
    work_milliseconds: int
    overtime_milliseconds: int
    write_milliseconds: int
    oldest_call_milliseconds: int = 0
    resident: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    shared: int = 0
    rate_limited: int = 0
    circuit_opened: int = 0
    circuit_refused: int = 0

    @staticmethod
    def total(parts: Iterable[EpochMetrics]) -> EpochMetrics:
        """Return the metrics of an epoch from those of its subtasks."""
        parts = list(parts)
        totals = {
            one.name: _total_of(one.name)([getattr(part, one.name) for part in parts]) for one in fields(EpochMetrics)
        }
        return EpochMetrics(**totals)


def _total_of(name: str) -> Callable[[list[int]], int]:
    return max if name == "oldest_call_milliseconds" else sum


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochProgress(EpochMetrics):
    """What one epoch did: all that `EpochMetrics` has, and how the driver saw it.

    Attributes
    ----------
    epoch : int
        The version of its snapshot.
    kind : {"batch", "drain"}
        A micro-batch, or the completion of what was in flight without input.
    batch_id : int or None
        Spark's number of the micro-batch.
    parallelism : int
        The number of subtasks.
    run_seconds, commit_seconds, sink_seconds : float
        Spent by the driver on waiting for the subtasks, on the commit, and in the sink.
    watermark : int or None
        The event-time watermark that stood before its rows, in milliseconds.
    failed_collections : int
        How many collections of old versions have failed in a row; the log says why.
    scaling : ScalingDecision or None
        What the autoscaler made of it, if there is one.
    hosts : tuple of str
        The processes in which operators go on, as ``machine:process id``.
    """

    epoch: int
    kind: Kind
    batch_id: int | None
    parallelism: int
    run_seconds: float
    commit_seconds: float
    sink_seconds: float
    watermark: int | None = None
    failed_collections: int = 0
    scaling: ScalingDecision | None = None
    hosts: tuple[str, ...] = ()

    @property
    def waited_for_calls(self) -> bool:
        """Whether a micro-batch took longer because of calls that the one before had carried over."""
        return self.kind == "batch" and self.overtime_milliseconds > 0

    @property
    def seconds(self) -> float:
        """From the start of the epoch to the return of the sink."""
        return self.run_seconds + self.commit_seconds + self.sink_seconds


def measurement_of(progress: EpochProgress, carried_over: int) -> EpochMeasurement:
    """Return what the autoscaler looks at; so many elements were in flight when the epoch began."""
    return EpochMeasurement(
        parallelism=progress.parallelism,
        rows=progress.rows,
        seconds=progress.seconds,
        work_seconds=progress.work_milliseconds / 1000,
        back_pressured_seconds=progress.back_pressured_milliseconds / 1000,
        backlog=progress.in_flight - carried_over,
    )
