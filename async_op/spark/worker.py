"""The task's side of an epoch: restore one subtask, run it, write its part of the snapshot."""

from __future__ import annotations

import functools
import hashlib
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from async_op.dead_letters import OnError
from async_op.elements import Record, Watermark
from async_op.functions import Function
from async_op.operator import AsyncWaitOperator
from async_op.resilience import Resilience
from async_op.retry import RetryPolicy
from async_op.settings import Mode, StateBackend
from async_op.spark.cache import CachedRestore, StateCache
from async_op.spark.dead_letters import rows_in_place
from async_op.spark.epoch_times import SubtaskTimes
from async_op.spark.loop import Element, OperatorThread
from async_op.spark.row_check import with_checked_rows
from async_op.spark.rows import OutputWriter, key_getter, rows_of
from async_op.spark.task_output import flusher
from async_op.statistics import OperatorStatistics
from async_op.waiting import WaitSituation
from keygroups.codec import pack
from keygroups.errors import KeyGroupsError
from snapshots import PendingSnapshot, Snapshot, SubtaskHandle, SubtaskRestore, SubtaskSnapshot

REPORT_SCHEMA = "subtask int, report binary"

_REPORTS = pa.schema([("subtask", pa.int32()), ("report", pa.binary())])

_CACHE = StateCache()
"""What this Python worker keeps for the next epochs that it runs."""


@dataclass(frozen=True, slots=True)
class SubtaskReport:
    """What a task tells the driver about its subtask: the handle of what it wrote, or why it could not."""

    handle: SubtaskHandle | None
    metrics: dict[str, int]
    times: SubtaskTimes = field(default_factory=SubtaskTimes)
    error: KeyGroupsError | None = None


@dataclass(frozen=True, kw_only=True)
class EpochSettings:
    """The settings of the operator that all epochs share."""

    function: Function
    key_by: str | list[str]
    mode: Mode
    capacity: int
    timeout: float | None
    retry: RetryPolicy | None
    barrier_timeout: float | None
    on_error: OnError
    resilience: Resilience | None
    state_backend: StateBackend
    event_time: str | None


@dataclass(frozen=True, kw_only=True)
class EpochTask:
    """One epoch of one subtask, run by `mapInArrow` in a Python worker; its partition id is the subtask.

    Attributes
    ----------
    settings : EpochSettings
        Of the operator.
    pending : PendingSnapshot
        What the epoch adds to.
    snapshot : Snapshot or None
        What the epoch continues; None for the first.
    committed : frozenset of str
        The ids of cuts that are in that snapshot or in ones before it.
    parallelism, max_parallelism : int
        Of this epoch.
    epoch_id : str
        The same for every run of the epoch's input; part of every idempotency key.
    drain : bool
        Without input, until nothing is in flight.
    watermark : int or None
        Stands before the input, in milliseconds; None if operators have the newest already.
    output_schema : pyarrow.Schema
        Of the outputs.
    """

    settings: EpochSettings
    pending: PendingSnapshot
    snapshot: Snapshot | None
    committed: frozenset[str]
    parallelism: int
    max_parallelism: int
    epoch_id: str
    drain: bool
    watermark: int | None
    output_schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the epoch; yields one row, the subtask's report, and before it empty batches as signs of life."""
        context = TaskContext.get()
        assert context is not None, "runs inside of a Spark task"
        flush = flusher()
        no_report = pa.RecordBatch.from_pylist([], _REPORTS)
        subtask_index = context.partitionId()
        reports: list[SubtaskReport] = []
        try:
            for _ in self._run(subtask_index, iter(()) if self.drain else iter(batches), reports.append):
                yield no_report
                flush()
        except KeyGroupsError as error:
            # Reported, not raised: Spark would only run the task again, and pay for its calls again.
            reports = [SubtaskReport(None, {}, error=error)]
        columns = [pa.array([subtask_index], pa.int32()), pa.array(map(pickle.dumps, reports), pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, schema=_REPORTS)

    def _run(
        self, subtask_index: int, batches: Iterator[pa.RecordBatch], report: Callable[[SubtaskReport], object]
    ) -> Iterator[None]:
        processor_started = time.process_time()
        source = _Source(batches, self.epoch_id, self.settings.event_time)
        writer = OutputWriter(self.output_schema)
        outputs = []
        barrier_timeout = None if self.drain else self.settings.barrier_timeout
        make_operator = functools.partial(self._make_operator, subtask_index)
        with OperatorThread(make_operator, self._restore(subtask_index)) as thread:
            for part in thread.run(source, barrier_timeout, self.watermark):
                if part:
                    outputs.append(writer.batch_of(part))
                yield
            last = thread.cut()
            outputs.append(writer.batch_of(last.outputs))
            taking_in_seconds = thread.waits().waited_seconds[WaitSituation.BACK_PRESSURE]
        work_seconds = max(taking_in_seconds, time.process_time() - processor_started)
        table = pa.Table.from_batches(outputs, self.output_schema)
        cut, left = last.snapshot, table.num_rows + thread.watermarks
        assert left == cut.emitted, "an output is in the snapshot's or in the epoch's, never in both"
        started = time.monotonic()
        handle = self.pending.write_subtask(cut, table)
        _CACHE.keep(self.pending.folder.uri, cut.states, self.pending.version)
        metrics = _metrics(source.rows, table.num_rows, last.statistics, cut, handle)
        metrics["work_milliseconds"] = round(1000 * work_seconds)
        metrics["write_milliseconds"] = round(1000 * (time.monotonic() - started))
        times = SubtaskTimes(source.event_time, last.next_timer, last.next_event_timer)
        report(SubtaskReport(handle, metrics, times))

    def _restore(self, subtask_index: int) -> SubtaskRestore | None:
        if self.snapshot is None:
            return None
        share = self.snapshot.restore(subtask_index, self.parallelism)
        return CachedRestore.on(share, _CACHE, self.committed)

    def _make_operator(self, subtask_index: int, output: Callable[[Record | Watermark], object]) -> AsyncWaitOperator:
        settings = self.settings
        return AsyncWaitOperator(
            with_checked_rows(settings.function, OutputWriter(self.output_schema)),
            output,
            mode=settings.mode,
            capacity=settings.capacity,
            timeout=settings.timeout,
            retry=settings.retry,
            key_by=key_getter(settings.key_by),
            parallelism=self.parallelism,
            subtask_index=subtask_index,
            max_parallelism=self.max_parallelism,
            on_error=settings.on_error,
            state_backend=settings.state_backend,
            dead_letters=rows_in_place() if settings.on_error == "dead_letter" else None,
            resilience=settings.resilience,
        )


class _Source(Iterator[Iterator[Element]]):
    """Rows with an id that is the same whenever the epoch runs, in whatever order the rows come.

    Parameters
    ----------
    batches : iterator of RecordBatch
        The rows.
    epoch_id : str
        The same for every run of the epoch.
    event_time : str or None
        The column that has the timestamps of rows.

    Attributes
    ----------
    rows : int
        How many there were.
    event_time : int or None
        The greatest timestamp so far, in milliseconds.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], epoch_id: str, event_time: str | None) -> None:
        self.rows = 0
        self.event_time: int | None = None
        self._batches = batches
        self._column = event_time
        self._prefix = hashlib.blake2b(epoch_id.encode(), digest_size=16)
        self._seen = Counter[bytes]()

    def __next__(self) -> Iterator[Element]:
        batch = next(self._batches)
        self.rows += batch.num_rows
        elements = zip(rows_of(batch), self._timestamps(batch), strict=True)
        return ((row, timestamp, self._identify(row)) for row, timestamp in elements)

    def _timestamps(self, batch: pa.RecordBatch) -> list[int | None]:
        if self._column is None:
            return [None] * batch.num_rows
        column = batch.column(self._column).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        timestamps = [None if value is None else value // 1000 for value in column.to_pylist()]
        found = [timestamp for timestamp in (*timestamps, self.event_time) if timestamp is not None]
        self.event_time = max(found, default=None)
        return timestamps

    def _identify(self, row: dict[str, Any]) -> str:
        digest = self._prefix.copy()
        digest.update(pack(list(row.values()), "a row"))
        identity = digest.digest()
        number = self._seen[identity]
        self._seen[identity] = number + 1
        return f"{identity.hex()}-{number}"


def _metrics(
    rows: int, outputs: int, statistics: OperatorStatistics, cut: SubtaskSnapshot, handle: SubtaskHandle
) -> dict[str, int]:
    state = [file for file in handle.files if file.kind in {"keyed", "delta"}]
    return {
        "rows": rows,
        "outputs": outputs,
        "calls": statistics.calls,
        "retries": statistics.retries,
        "timeouts": statistics.timeouts,
        "reinvoked": statistics.reinvoked,
        "reemitted": statistics.reemitted,
        "skipped": statistics.skipped,
        "dead_letters": statistics.dead_letters,
        "in_flight": len(cut.in_flight),
        "state_rows": sum(file.rows for file in state),
        "state_bytes": sum(file.bytes for file in state),
        "back_pressured_milliseconds": round(1000 * statistics.back_pressured_seconds),
    }
