"""The task's side of an epoch: what it is told, how it feeds its subtask's host, and how it reports the part."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pickle import loads

import pyarrow as pa
from pyspark import TaskContext

from async_op.epochs.position import SubtaskTimes
from async_op.hosting.epoch import Epoch, Ran, run
from async_op.hosting.fencing import Fence, NewestManifest
from async_op.hosting.host_sightings import Lookout
from async_op.hosting.messages import Cut, EpochEnd, Hello
from async_op.hosting.process.fork_server import EarlyTask
from async_op.operator.counters import CALLS, LIMITS, milliseconds
from async_op.spark.progress import EpochMetrics
from async_op.spark.task.epoch_rows import EpochRows
from async_op.spark.task.host_access import MODULES, HostAccess, TaskWays
from async_op.spark.task.newest_snapshot import Newest
from async_op.spark.task.operator_factory import WrittenPart
from async_op.spark.task.pickling import pickled
from async_op.spark.task.report import NO_REPORT, SubtaskFailure, SubtaskReport, batch_of
from async_op.threads.garbage import quick_collections
from async_op.threads.wait_strategies import WaitSituation, WaitStrategies
from async_op.threads.waits import Waits
from keygroups.errors import KeyGroupsError
from keygroups.spark.partitions import PartitionFunction, flusher
from snapshots import PendingSnapshot
from snapshots.filesystem import Folder
from snapshots.format.manifest import spent_by_unit


@dataclass(frozen=True, kw_only=True)
class EpochTask:
    """One epoch of one subtask, run by `mapInArrow` in a Python worker. Its partition id is the subtask index.

    Attributes
    ----------
    access : HostAccess
        How to reach the hosts.
    version : int
        The version that the epoch commits.
    target : bytes
        The snapshot that is being written, pickled; each host adds its part.
    newest : Newest
        The newest snapshot, from which the epoch goes on.
    parallelism : int
        The number of subtasks in this epoch.
    job : str
        Names this attempt at the epoch.
    epoch_id : str
        The same for every run of the epoch's input; part of every idempotency key.
    event_time : str or None
        The column with the timestamps of rows.
    end : EpochEnd
        What the epoch waits for, and whether the operators of this generation end with it.
    watermark : int or None
        The watermark before the rows, in milliseconds; None if operators have the newest already.
    wait_strategies : WaitStrategies
        How the task waits for its host.
    """

    access: HostAccess
    version: int
    target: bytes = field(repr=False)
    newest: Newest
    parallelism: int
    job: str
    epoch_id: str
    event_time: str | None
    end: EpochEnd
    watermark: int | None
    wait_strategies: WaitStrategies

    def for_workers(self) -> PartitionFunction:
        """Return what workers run: this task, which the first epoch's load only when the fork server is on its way."""
        return EarlyTask(pickled(self), MODULES) if self.access.are_hosts_missing else self

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the epoch. Yields empty batches as signs of life, and at the end one row: the subtask's report."""
        context = TaskContext.get()
        assert context is not None, "this runs inside a Spark task"
        flush = flusher()
        subtask_index = context.partitionId()
        waits = Waits(self.wait_strategies)
        with quick_collections(), TaskWays(self.access, self.newest, self.parallelism, subtask_index, waits) as ways:
            try:
                for report in self._run(ways, waits, subtask_index, context.taskAttemptId(), batches):
                    yield NO_REPORT if report is None else batch_of(report)
                    flush()
            except KeyGroupsError as error:
                # Reported, not raised: Spark would run the task again, and its calls with it.
                yield batch_of(SubtaskFailure(subtask_index, ways.reached, error))

    def _run(
        self, ways: TaskWays, waits: Waits, subtask_index: int, attempt: int, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[SubtaskReport | None]:
        """Run the subtask; yields None as a sign of life, and the report at the end."""
        rows = EpochRows(batches, self.event_time)
        epoch = Epoch(
            hello=self._hello(subtask_index, attempt),
            cut=Cut(self.version, self.target),
            batches=waits.reading(rows),
            watermark=self.watermark,
        )
        known = self.access.addresses.get(subtask_index)
        lookout = Lookout(self.access.generation, subtask_index, known, time.monotonic())
        steps = run(ways, epoch)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                ran: Ran = end.value
                break
            seen = lookout.look(ways.asked, ways.silent_seconds, time.monotonic())
            if seen is not None:
                seen.write(self._folder())
            yield None
        yield _report(ran, rows, waits)

    def _folder(self) -> Folder:
        target: PendingSnapshot = loads(self.target)  # noqa: S301 - pickled by the driver
        return target.folder

    def _hello(self, subtask_index: int, attempt: int) -> Hello:
        return Hello(
            self.access.generation,
            Fence(self.version - 1, attempt),
            NewestManifest(self.newest.manifest_id, self.newest.cuts.get(subtask_index)),
            self.job,
            self.epoch_id,
            self.end,
            self.access.allowance(subtask_index),
        )


def _report(ran: Ran, rows: EpochRows, waits: Waits) -> SubtaskReport:
    written: WrittenPart = ran.part.handle
    state = [file for file in written.handle.files if file.kind in {"keyed", "delta"}]
    counted = ran.part.metrics
    work_seconds = max(counted["queued_seconds"], counted["processor_seconds"])
    metrics = EpochMetrics(
        rows=rows.rows,
        outputs=written.outputs,
        **{name: int(counted[name]) for name in (*CALLS, "in_flight")},
        **{name: int(counted.get(name, 0)) for name in LIMITS},
        state_rows=sum(file.rows for file in state),
        state_bytes=sum(file.bytes for file in state),
        back_pressured_milliseconds=milliseconds(counted["back_pressured_seconds"]),
        work_milliseconds=milliseconds(work_seconds),
        overtime_milliseconds=milliseconds(counted["overtime_seconds"]),
        write_milliseconds=milliseconds(written.write_seconds),
        oldest_call_milliseconds=milliseconds(counted["oldest_call_seconds"]),
        resident=0 if ran.address is None else 1,
        source_wait_milliseconds=milliseconds(waits.seconds[WaitSituation.SOURCE]),
        consume_wait_milliseconds=milliseconds(waits.seconds[WaitSituation.CONSUME]),
        back_pressure_wait_milliseconds=milliseconds(waits.seconds[WaitSituation.BACK_PRESSURE]),
        outbox_full_milliseconds=milliseconds(counted["held_seconds"]),
        empty_reads=waits.longest[WaitSituation.SOURCE],
        mails=int(counted["mails"]),
        mailbox_wait_milliseconds=milliseconds(counted["mailbox_seconds"]),
        spent=spent_by_unit([counted]),
    )
    times = SubtaskTimes(rows.event_time, written.next_timer, written.next_event_timer)
    return SubtaskReport(ran.part, ran.address, metrics, times, ran.fallback)
