"""The driver's side of an epoch: run the subtasks, commit the manifest, deliver the outputs."""

from __future__ import annotations

import json
import logging
import pickle
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from async_op.spark.autoscale import AutoscalePolicy, EpochMeasurement, ScalingDecision
from async_op.spark.epoch_times import EpochTimes
from async_op.spark.transform import check_columns
from async_op.spark.worker import REPORT_SCHEMA, EpochSettings, EpochTask, SubtaskReport
from keygroups.events import Event, publish
from keygroups.spark import subtask_column
from keygroups.ttl import wall_time
from snapshots import Claim, IncompatibleSnapshot, PendingSnapshot, Snapshot, SnapshotStore
from snapshots.spark import outputs_frame

_log = logging.getLogger(__name__)

Sink = Callable[[DataFrame, int], None]
Kind = Literal["batch", "drain"]

_SUBTASK = "__keygroups_subtask"

_PROGRESS_MAX = 1000
"""How many epochs are remembered."""

_MEASURED_MAX = 16
"""How many micro-batches the autoscaler looks at."""

_CUTS_OF_EPOCHS = 16
"""What a worker has kept for so many epochs without running one of them, it reads again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochProgress:
    """What one epoch did.

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
    state_rows, state_bytes : int
        What was written of the keyed state: only what changed, as a rule.
    work_milliseconds, back_pressured_milliseconds : int
        Spent by subtasks on the epoch's rows, and of that without room for the next row, all of them together; see
        `EpochMeasurement`.
    write_milliseconds : int
        Spent by subtasks on writing, all of them together.
    run_seconds, commit_seconds, sink_seconds : float
        Spent by the driver on waiting for the subtasks, on the commit, and in the sink.
    watermark : int or None
        The event-time watermark that stood before its rows, in milliseconds.
    scaling : ScalingDecision or None
        What the autoscaler made of it, if there is one.
    """

    epoch: int
    kind: Kind
    batch_id: int | None
    parallelism: int
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
    work_milliseconds: int
    back_pressured_milliseconds: int
    write_milliseconds: int
    run_seconds: float
    commit_seconds: float
    sink_seconds: float
    watermark: int | None = None
    scaling: ScalingDecision | None = None

    @property
    def seconds(self) -> float:
        """From the start of the epoch to the return of the sink."""
        return self.run_seconds + self.commit_seconds + self.sink_seconds


class EpochRunner:
    """Runs one epoch after the other. Any thread may call it; a lock keeps epochs apart.

    Parameters
    ----------
    store : SnapshotStore
        Where the snapshots are.
    settings : EpochSettings
        Of the operator.
    parallelism : int
        Of the next epoch; may be set at any time.
    max_parallelism : int
        The number of key groups.
    order_by : list of str
        The columns by which a subtask's rows are sorted.
    output_schema : pyarrow.Schema
        Of the outputs.
    sink : callable
        Called with the outputs and the epoch; must be idempotent by epoch.
    watermark_delay_milliseconds : int
        How far the watermark stays behind the greatest event time.
    autoscale : AutoscalePolicy, optional
        Decides on the parallelism after each micro-batch.
    """

    def __init__(
        self,
        store: SnapshotStore,
        settings: EpochSettings,
        *,
        parallelism: int,
        max_parallelism: int,
        order_by: list[str],
        output_schema: pa.Schema,
        sink: Sink,
        watermark_delay_milliseconds: int = 0,
        autoscale: AutoscalePolicy | None = None,
    ) -> None:
        self.parallelism = parallelism
        self.progress: deque[EpochProgress] = deque(maxlen=_PROGRESS_MAX)
        self._store = store
        self._settings = settings
        self._max_parallelism = max_parallelism
        self._order_by = order_by
        self._output_schema = output_schema
        self._sink = sink
        self._watermark_delay_milliseconds = watermark_delay_milliseconds
        self._autoscale = autoscale
        self._measured: deque[EpochMeasurement] = deque(maxlen=_MEASURED_MAX)
        self._lock = threading.RLock()
        self._committed: deque[frozenset[str]] = deque(maxlen=_CUTS_OF_EPOCHS)
        self._latest = store.latest()
        self._check_fits()
        # Without a snapshot there is nothing to take over: whoever commits the first version owns it.
        self._claim: Claim | None = None
        if self._latest is not None:
            self._claim = store.claim()
            self._latest = self._claim.snapshot
            self._committed.append(_cuts_of(self._latest))
            if autoscale is not None and not autoscale.dry_run:
                # What earlier runs have found out is worth more than where the first one began.
                self.parallelism = self._latest.parallelism

    @property
    def in_flight(self) -> int:
        """Elements in flight in the newest snapshot."""
        return 0 if self._latest is None else self._latest.in_flight_count

    @property
    def has_pending_work(self) -> bool:
        """Whether there is something to do without input: elements in flight, or timers that are due."""
        return self.in_flight > 0 or self._times.is_any_due(wall_time())

    @property
    def _times(self) -> EpochTimes:
        return EpochTimes.of(None if self._latest is None else self._latest.source_position)

    @property
    def epoch(self) -> int:
        """The newest epoch; 0 before the first."""
        return 0 if self._latest is None else self._latest.version

    def deliver_latest(self, spark: SparkSession) -> None:
        """Deliver the newest epoch again, in case the last run ended between its commit and its delivery.

        Its outputs are named by the newest manifest, whatever committed that since: a claim, a rescale, a compaction.
        """
        with self._lock:
            if self._latest is not None and self._latest.source_position is not None:
                self._deliver(spark, self._latest, self._latest.source_position["epoch"])

    def run_batch(self, frame: DataFrame, query_id: str, batch_id: int) -> None:
        """Run a micro-batch, or deliver it again if its snapshot exists."""
        with self._lock:
            if self._claim is not None:
                self._claim.check()
            spark = frame.sparkSession
            position = {} if self._latest is None else self._latest.source_position or {}
            if position.get("query_id") == query_id and batch_id <= position["batch_id"]:
                # An epoch is committed after the one before it was delivered, so only the newest may be missing. Older
                # manifests are not asked for: retention may have removed them.
                if batch_id == position["batch_id"] and position["batch_epoch"] == position["epoch"]:
                    self.deliver_latest(spark)
                return
            check_columns(frame, "key_by", self._settings.key_by)
            check_columns(frame, "order_by", self._order_by)
            source = {"query_id": query_id, "batch_id": batch_id, "batch_epoch": self.epoch + 1}
            parallelism = self.parallelism  # once: another thread may set it meanwhile
            self._run(spark, self._route(frame, parallelism), source, parallelism, "batch")

    def drain(self, spark: SparkSession) -> None:
        """Run an epoch without input, if there is something to do: fire what is due, until nothing is in flight."""
        with self._lock:
            if self._claim is not None:
                self._claim.check()
            if self._latest is None or not self.has_pending_work:
                return
            parallelism = self.parallelism
            frame = spark.range(0, parallelism, 1, parallelism)
            position = self._latest.source_position or {}
            source = {name: position.get(name) for name in ("query_id", "batch_id", "batch_epoch")}
            self._run(spark, frame, source, parallelism, "drain")

    def _run(self, spark: SparkSession, frame: DataFrame, source: dict[str, Any], parallelism: int, kind: Kind) -> None:
        started = time.monotonic()
        pending = self._store.begin() if self._claim is None else self._claim.begin()
        carried_over = self.in_flight
        times = self._times
        task = EpochTask(
            settings=self._settings,
            pending=pending,
            snapshot=self._latest,
            committed=frozenset().union(*self._committed),
            parallelism=parallelism,
            max_parallelism=self._max_parallelism,
            epoch_id=f"{self._store.operator_id}/{source['query_id']}/{source['batch_id']}",
            drain=kind == "drain",
            watermark=times.new_watermark,
            output_schema=self._output_schema,
        )
        reports = _run_subtasks(frame, task)
        ran = time.monotonic()
        times = times.after([report.times for report in reports], self._watermark_delay_milliseconds)
        position = {**source, "kind": kind, "epoch": pending.version, "times": asdict(times)}
        snapshot = self._commit(pending, reports, position)
        self._latest = snapshot
        self._claim = self._claim or Claim(snapshot)
        self._committed.append(_cuts_of(snapshot))
        committed = time.monotonic()
        self._deliver(spark, snapshot, snapshot.version)
        seconds = ran - started, committed - ran, time.monotonic() - committed
        progress = _progress_of(snapshot, kind, source["batch_id"], seconds)
        if self._autoscale is not None and kind == "batch":
            progress = self._scale(self._autoscale, progress, carried_over)
        self.progress.append(progress)
        self._tell(progress)

    def _tell(self, progress: EpochProgress) -> None:
        operator_id, fields = self._store.operator_id, asdict(progress)
        found = {"operator_id": operator_id, **{name: value for name, value in fields.items() if name != "scaling"}}
        publish(Event("epoch", progress.seconds, found))
        _log.info("epoch of %s: %s", operator_id, json.dumps(fields), extra={"event": "epoch", **found})

    def _commit(self, pending: PendingSnapshot, reports: list[SubtaskReport], position: dict[str, Any]) -> Snapshot:
        metrics = Counter[str]()
        for report in reports:
            metrics.update(report.metrics)
        handles = [report.handle for report in reports if report.handle is not None]
        return pending.commit(handles, source_position=position, metrics=dict(metrics))

    def _route(self, frame: DataFrame, parallelism: int) -> DataFrame:
        """Send every row to its subtask, whose index is then Spark's partition id."""
        keys = self._settings.key_by
        columns = [keys] if isinstance(keys, str) else keys
        no_key = F.greatest(*[F.col(name).isNull() for name in columns], F.lit(False))
        # A row without a key goes to subtask 0, which refuses it with an error that names the row.
        subtask = F.when(no_key, 0).otherwise(subtask_column(columns, parallelism, self._max_parallelism))
        routed = frame.withColumn(_SUBTASK, subtask).repartitionById(parallelism, _SUBTASK).drop(_SUBTASK)
        return routed.sortWithinPartitions(*self._order_by) if self._order_by else routed

    def _deliver(self, spark: SparkSession, snapshot: Snapshot, epoch: int) -> None:
        self._sink(outputs_frame(spark, snapshot, self._output_schema), epoch)

    def _check_fits(self) -> None:
        if self._latest is not None and self._latest.max_parallelism != self._max_parallelism:
            raise IncompatibleSnapshot(
                "max parallelism",
                self._max_parallelism,
                self._latest.max_parallelism,
                f"pass the snapshot's, or rewrite it first: keygroups repartition {self._store.uri} --rewrite "
                f"--parallelism {self.parallelism} --max-parallelism {self._max_parallelism}",
            )

    def _scale(self, policy: AutoscalePolicy, progress: EpochProgress, carried_over: int) -> EpochProgress:
        """Decide on the next epoch's parallelism, and have that reported with this one."""
        self._measured.append(_measurement(progress, carried_over))
        decision = policy.decide(tuple(self._measured), self.parallelism)
        is_kept = decision.parallelism == self.parallelism
        _log.log(
            logging.DEBUG if is_kept else logging.INFO,
            "parallelism of %s: %d to %d%s, because %s",
            self._store.operator_id,
            self.parallelism,
            decision.parallelism,
            " (dry run)" if policy.dry_run else "",
            decision.reason,
        )
        if not policy.dry_run:
            self.parallelism = decision.parallelism
        return replace(progress, scaling=decision)


def _progress_of(
    snapshot: Snapshot, kind: Kind, batch_id: int | None, seconds: tuple[float, float, float]
) -> EpochProgress:
    run_seconds, commit_seconds, sink_seconds = seconds
    return EpochProgress(
        epoch=snapshot.version,
        kind=kind,
        batch_id=batch_id if kind == "batch" else None,
        parallelism=snapshot.parallelism,
        run_seconds=run_seconds,
        commit_seconds=commit_seconds,
        sink_seconds=sink_seconds,
        watermark=EpochTimes.of(snapshot.source_position).watermark,
        scaling=None,
        **snapshot.manifest.metrics,
    )


def _measurement(progress: EpochProgress, carried_over: int) -> EpochMeasurement:
    return EpochMeasurement(
        parallelism=progress.parallelism,
        rows=progress.rows,
        seconds=progress.seconds,
        work_seconds=progress.work_milliseconds / 1000,
        back_pressured_seconds=progress.back_pressured_milliseconds / 1000,
        backlog=progress.in_flight - carried_over,
    )


def _cuts_of(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(channel.cut_id for channel in snapshot.manifest.channels if channel.cut_id is not None)


def _run_subtasks(frame: DataFrame, task: EpochTask) -> list[SubtaskReport]:
    rows = frame.mapInArrow(task, REPORT_SCHEMA).collect()
    reports: list[SubtaskReport] = [pickle.loads(row["report"]) for row in rows]  # noqa: S301 - from our own task
    for report in reports:
        if report.error is not None:
            raise report.error
    return reports
