"""What one epoch did, as `AsyncPipeline.progress` and the log show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from async_op.epochs.position import Kind
from async_op.spark.autoscale import EpochMeasurement, ScalingDecision
from keygroups.representation import counts_repr, html_facts, set_fields
from snapshots.format.epoch_under_way import EpochUnderWay
from snapshots.format.manifest import named_by_unit, spent_by_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMetrics:
    """Counters of an epoch, summed over its subtasks. The manifest stores them under the same names.

    Attributes
    ----------
    rows, outputs : int
        Input rows and output rows.
    calls, retries, timeouts, reinvoked : int
        Calls made; calls that were further attempts; elements that timed out; elements called again after a restore.
    reemitted : int
        Restored elements whose stored outputs were emitted without a call.
    skipped, dead_letters : int
        Elements that failed for good; a dead letter is an output row, too.
    in_flight : int
        Elements still in flight at the cut, which the next epoch takes over.
    oldest_call_milliseconds : int
        Age of the oldest of them at the cut; for an epoch, the greatest of its subtasks.
    state_rows, state_bytes : int
        Keyed state written: as a rule, only what changed.
    work_milliseconds, back_pressured_milliseconds : int
        Time spent on the epoch's rows, and the part of it without room for the next row; see `EpochMeasurement`.
    overtime_milliseconds : int
        Time spent at the end of the input, before `barrier_timeout` began, on waiting for calls that the previous epoch
        had carried over. Only where operators run in their tasks.
    write_milliseconds : int
        Time spent on writing parts.
    resident : int
        Subtasks whose operator lives on in a host after the epoch.
    source_wait_milliseconds, consume_wait_milliseconds, back_pressure_wait_milliseconds : int
        Time that tasks have waited: for rows, for other replies of their hosts, and while those took no more rows.
    outbox_full_milliseconds : int
        Time in which operators took nothing in because as many outputs as they keep waited for the epoch. Time without
        room for calls is `back_pressured_milliseconds`.
    empty_reads : int
        How often in a row a task has waited for rows in vain; for an epoch, the greatest of its subtasks. Only with a
        wait strategy for the source.
    mails, mailbox_wait_milliseconds : int
        What other threads have had the event loops of operators do, and how long a sample of it has waited.
    cache_hits, cache_misses, shared, rate_limited, circuit_opened, circuit_refused, budget_refused : int
        Counters of the limits in `resilience`, as in `ResilienceStatistics`; 0 without limits.
    spent : mapping of str to float
        What calls that have ended have cost, by unit; empty without limits of costs.
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
    source_wait_milliseconds: int = 0
    consume_wait_milliseconds: int = 0
    back_pressure_wait_milliseconds: int = 0
    outbox_full_milliseconds: int = 0
    empty_reads: int = 0
    mails: int = 0
    mailbox_wait_milliseconds: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    shared: int = 0
    rate_limited: int = 0
    circuit_opened: int = 0
    circuit_refused: int = 0
    budget_refused: int = 0
    spent: Mapping[str, float] = field(default_factory=dict)

    __repr__ = counts_repr

    @staticmethod
    def total(parts: Iterable[EpochMetrics]) -> EpochMetrics:
        """Return the sums over the subtasks of an epoch."""
        parts = list(parts)
        totals = {
            one.name: _TOTALS.get(one.name, sum)(getattr(part, one.name) for part in parts)
            for one in fields(EpochMetrics)
        }
        return EpochMetrics(**totals)

    def stored(self) -> dict[str, float]:
        """Return the counters under the names that manifests have for them."""
        numbers = {one.name: getattr(self, one.name) for one in fields(EpochMetrics) if one.name != "spent"}
        return numbers | named_by_unit(self.spent)


def _spent_by_all(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    return spent_by_unit(map(named_by_unit, parts))


_TOTALS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "oldest_call_milliseconds": max,
    "empty_reads": max,
    "spent": _spent_by_all,
}
"""How the counters of subtasks become one; all others are added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochProgress(EpochMetrics):
    """What one epoch did: the counters of `EpochMetrics`, and what the driver measured.

    Attributes
    ----------
    epoch : int
        The version of its snapshot.
    kind : {"batch", "chunk", "upstream", "drain"}
        A micro-batch, a chunk of a bounded run, an epoch of the pipeline before, or an epoch without input.
    batch_id : int or None
        Spark's number of the micro-batch; None for other epochs.
    parallelism : int
        The number of subtasks.
    run_seconds, commit_seconds, sink_seconds : float
        Time that the driver spent on waiting for the subtasks, on the commit, and in the sink.
    refused : int
        Outputs and dead letters that the sinks have refused, and that were left out, as their `on_error` says. If a
        restart delivers an epoch again, what is refused then counts with the next epoch.
    watermark : int or None
        The event-time watermark before its rows, in milliseconds.
    failed_collections : int
        How many collections of old versions have failed in a row; the log says why.
    scaling : ScalingDecision or None
        What the autoscaler decided after it; None without an autoscaler.
    hosts : tuple of str
        The processes in which operators live on, as ``machine:process id``.
    """

    epoch: int
    kind: Kind
    batch_id: int | None
    parallelism: int
    run_seconds: float
    commit_seconds: float
    sink_seconds: float
    refused: int = 0
    watermark: int | None = None
    failed_collections: int = 0
    scaling: ScalingDecision | None = None
    hosts: tuple[str, ...] = ()

    __repr__ = counts_repr

    def _repr_html_(self) -> str:
        return html_facts(f"epoch {self.epoch}", set_fields(self))

    @property
    def waited_for_calls(self) -> bool:
        """Whether a micro-batch took longer because of calls that the previous epoch had carried over."""
        return self.kind == "batch" and self.overtime_milliseconds > 0

    @property
    def seconds(self) -> float:
        """Seconds from the start of the epoch to the return of the sink."""
        return self.run_seconds + self.commit_seconds + self.sink_seconds


class PipelineProgress(tuple[EpochProgress, ...]):  # noqa: SLOT001 - a tuple with an attribute cannot have slots
    """The newest epochs that have ended, oldest first, and the epoch under way.

    Attributes
    ----------
    under_way : EpochUnderWay or None
        What the epoch under way does: calls in flight, the oldest of them, calls in a second. It is looked at every
        three seconds, and None before.
    """

    under_way: EpochUnderWay | None = None

    @classmethod
    def of(cls, epochs: Iterable[EpochProgress], under_way: EpochUnderWay | None) -> PipelineProgress:
        """Return the progress of a pipeline."""
        progress = cls(epochs)
        progress.under_way = under_way
        return progress

    def __repr__(self) -> str:
        ended = super().__repr__()
        return ended if self.under_way is None else f"{ended}, under way: {self.under_way!r}"


def measurement_of(progress: EpochProgress, carried_over: int) -> EpochMeasurement:
    """Return what the autoscaler looks at; `carried_over` elements were in flight when the epoch began."""
    return EpochMeasurement(
        parallelism=progress.parallelism,
        rows=progress.rows,
        seconds=progress.seconds,
        work_seconds=progress.work_milliseconds / 1000,
        back_pressured_seconds=progress.back_pressured_milliseconds / 1000,
        backlog=progress.in_flight - carried_over,
    )
