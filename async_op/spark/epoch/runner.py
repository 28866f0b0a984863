"""The driver's side of an epoch: run the subtasks, commit the manifest, deliver the outputs.

ARCHITECTURE.md draws the order in which `EpochRunner._run` does it ("The order of a commit").
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import asdict, replace
from typing import Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from async_op.epochs.coordinator import Coordinator
from async_op.epochs.position import EpochTimes, SinkEpochs, SourcePosition
from async_op.epochs.retention import Retention
from async_op.hosting.epoch import one_of_each
from async_op.hosting.errors import FeederFenced, HostLost, IncompleteEpoch
from async_op.hosting.messages import EpochEnd
from async_op.in_flight.idempotency_keys import Identity
from async_op.spark.epoch.delivery import Delivery, Outlet
from async_op.spark.epoch.fleet import Fleet
from async_op.spark.epoch.inputs import EpochInput, EpochOrder, EpochSettings, MicroBatch
from async_op.spark.epoch.job_names import named_jobs
from async_op.spark.epoch.log import EpochLog, EpochWatch
from async_op.spark.epoch.scaling import Scaling
from async_op.spark.progress import EpochMetrics, EpochProgress, PipelineProgress
from async_op.spark.rows.routing import Routing
from async_op.spark.task.epoch_task import EpochTask
from async_op.spark.task.newest_snapshot import Newest
from async_op.spark.task.operator_factory import EpochOperatorFactory
from async_op.spark.task.pickling import pickled
from async_op.spark.task.report import REPORT_SCHEMA, SubtaskReport, checked, outputs_in, reports_in
from keygroups.spark.partitions import no_rows, run_in_partitions
from keygroups.ttl import wall_time
from snapshots import PendingSnapshot, Snapshot, SnapshotStore

_log = logging.getLogger(__package__)

_LENDING_EPOCHS_MAX = 8
"""So many epochs for each host may move budgets at the end of a query: two move all that is left to one host."""

_PAUSE_SECONDS_MAX = 60.0

_DRAIN_SECONDS = 60.0
"""How long an epoch of a drain waits for calls; meanwhile what has returned is in no snapshot, and not delivered."""

_ATTEMPTS_MAX = 4
"""How often an epoch is tried before the query fails, if hosts are lost; Spark tries a task as often."""


class EpochRunner:
    """Runs the epochs of a pipeline. Any thread may call it; a lock lets one epoch run at a time.

    Parameters
    ----------
    spark : SparkSession
        The session of the query.
    store : SnapshotStore
        Where the operator's snapshots are.
    settings : EpochSettings
        What all epochs share.
    routing : Routing
        How rows find their subtasks.
    parallelism : int
        The parallelism of the next epoch; any thread may set it at any time.
    output_schema : pyarrow.Schema
        The schema of the outputs.
    lineage : str
        The first part of all idempotency keys.
    outlet : callable
        Called with the outputs and the epoch; must be idempotent by epoch.
    watermark_delay_milliseconds : int
        How far the watermark stays behind the greatest event time seen.
    scaling : Scaling, optional
        Decides on the parallelism after each micro-batch.
    retention : Retention, optional
        Which old versions stay; all of them without it.

    Attributes
    ----------
    fleet : Fleet
        The hosts.
    delivery : Delivery
        Gives epochs to the outlet.
    coordinator : Coordinator
        Commits the epochs.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: SnapshotStore,
        settings: EpochSettings,
        *,
        routing: Routing,
        parallelism: int,
        input_schema: pa.Schema,
        output_schema: pa.Schema,
        lineage: str,
        outlet: Outlet,
        watermark_delay_milliseconds: int = 0,
        scaling: Scaling | None = None,
        retention: Retention | None = None,
    ) -> None:
        self.parallelism = parallelism
        self._log = EpochLog(store.operator_id, scaling)
        self._settings = settings
        self._routing = routing
        self._input_schema = input_schema
        self._output_schema = output_schema
        self._identity = Identity(lineage)
        self._watermark_delay_milliseconds = watermark_delay_milliseconds
        self._lock = threading.RLock()
        self._is_closed = False
        self._is_clean = True
        self._pauses = _Pauses()
        self.fleet = Fleet(self._factory_for, spark, store.folder, is_resident=settings.is_resident)
        self.coordinator = Coordinator(store, retention)
        self.coordinator.take_over()
        self.delivery = Delivery(
            outlet,
            output_schema,
            coordinator=self.coordinator,
            lineage=lineage,
            epochs=SinkEpochs.of(self._latest),
        )
        self._watch = EpochWatch(store, self.fleet)

    def rescale(self, parallelism: int) -> None:
        """Change the parallelism from the next epoch on; any thread may call it at any time."""
        self.parallelism = parallelism

    @property
    def progress(self) -> PipelineProgress:
        """What the newest thousand epochs did, oldest first, and the one that is under way."""
        return PipelineProgress.of(self._log.progress, self._watch.under_way)

    @property
    def _latest(self) -> Snapshot | None:
        return self.coordinator.snapshot

    @property
    def in_flight(self) -> int:
        """The number of elements in flight in the newest snapshot."""
        return 0 if self._latest is None else self._latest.in_flight_count

    @property
    def has_pending_work(self) -> bool:
        """Whether an epoch without input has work to do: elements in flight, or timers that are due."""
        return self.in_flight > 0 or self._times.is_any_due(wall_time())

    @property
    def _times(self) -> EpochTimes:
        return self.position.times or EpochTimes()

    @property
    def position(self) -> SourcePosition:
        """The source position of the newest snapshot."""
        return SourcePosition.of(self._latest)

    @property
    def epoch(self) -> int:
        """The version of the newest snapshot; 0 before the first."""
        return self.coordinator.version

    def deliver_latest(self, spark: SparkSession) -> None:
        """Deliver the newest epoch, unless the sink has already had it. No other epoch begins before that (H9)."""
        with self._lock:
            if self._latest is not None:
                self.delivery.deliver(spark, self._latest)

    def run_batch(self, frame: DataFrame, query_id: str, batch_id: int) -> None:
        """Run a micro-batch, unless it is committed already. The newest epoch is delivered in either case."""
        self.run_input(frame, MicroBatch(query_id, batch_id))

    def run_input(self, frame: DataFrame, source: EpochInput) -> None:
        """Run an epoch over its input, unless that is in the state already; the newest epoch is delivered anyway."""
        with self._lock:
            spark = frame.sparkSession
            self._begin(spark)
            if source.is_in(self.position):
                return
            parallelism = self._wait_for_room(spark)
            end = EpochEnd(self._settings.barrier_timeout)
            order = EpochOrder(source.advance(self.position), parallelism, end, source)
            self._run(spark, self._routing.route(frame, parallelism), order)

    def drain(self, spark: SparkSession, timeout: float | None = None) -> None:
        """Run epochs without input, if there is work to do: fire due timers, and wait until nothing is in flight.

        They wait for `timeout` seconds at most, and calls that have not returned then are made again after the next
        restore; None waits for all calls.
        """
        with self._lock:
            self._begin(spark)
            if self._latest is not None and self.has_pending_work:
                self._settle(spark, timeout)
                if timeout is None:
                    self._end_waits_for_budgets(spark)

    def deliver_ready(self, spark: SparkSession) -> None:
        """Run an epoch without input if hosts have news since the newest epoch. It waits for no call.

        Where operators live in their tasks, no call returns between epochs, so this is a drain.
        """
        if not self._settings.is_resident:
            self.drain(spark)
        elif self._has_news():
            with self._lock:
                if self._is_closed or not self._has_news():
                    return  # a micro-batch has taken the results meanwhile
                self._begin(spark)
                self._run_without_input(spark, self._make_way(spark), EpochEnd(0.0))
                self._pauses.begin(is_idle=self.progress[-1].outputs == 0)

    def close(self, spark: SparkSession, *, failed: bool = False) -> None:
        """End all hosts. Unless the query failed, results since the newest epoch are delivered with one more epoch.

        Epochs that are run afterwards have their operators inside their tasks.
        """
        with self._lock:
            try:
                if not failed:
                    self._end_generation(spark)
            finally:
                self._is_closed = True
                self.fleet.end(self.epoch)
                self.fleet.is_resident = False
                if not failed:  # a short run may end before its hosts have loaded all that they read
                    self.coordinator.ended()
                self.coordinator.close()
                self.delivery.close()

    def _begin(self, spark: SparkSession) -> None:
        """Make sure that no other run has claimed the operator, and that the newest epoch has been delivered."""
        self.coordinator.check()
        self.deliver_latest(spark)

    def _has_news(self) -> bool:
        """Tell whether an epoch without input has results to store, a failure to raise, or a watermark to bring."""
        if self._latest is None or self._is_closed:
            return False
        statuses = self.fleet.poll()
        if len(statuses) < (self.fleet.parallelism or 1):
            # A host is missing or cannot be polled, and the epoch reaches it or starts another.
            return self.has_pending_work and self._pauses.is_over()
        in_flight = sum(status.in_flight + status.waiting for status in statuses)
        is_any_different = any(status.ready or status.failure for status in statuses) or in_flight < self.in_flight
        if is_any_different or self._times.is_watermark_due():
            return True
        return self._pauses.is_over() and self.fleet.can_lend(statuses)

    def _wait_for_room(self, spark: SparkSession) -> int:
        """Run epochs without input until all hosts have room: otherwise more would wait with each micro-batch.

        What may wait then keeps the service busy until the rows of the next micro-batch reach the hosts. Returns the
        parallelism of the hosts: a rescale may be due to just this wait, so it takes effect within it.
        """
        end = EpochEnd(max(1.0, self._settings.barrier_timeout or 0.0), "room")
        while not self._has_room(parallelism := self._make_way(spark)):
            self._run_without_input(spark, parallelism, end)
        return parallelism

    def _settle(self, spark: SparkSession, timeout: float | None) -> None:
        """Run epochs until nothing is in flight, or for `timeout` seconds; each waits for a minute at most.

        So a call that takes an hour holds up neither what has returned meanwhile nor a snapshot of it. Where operators
        live in their tasks, an epoch cannot leave its calls to the next one.
        """
        waits_for: Literal["calls", "calls in time"] = "calls" if timeout is None else "calls in time"
        waits_for_all = not self.fleet.is_resident or self._settings.barrier_timeout is None
        patience = math.inf if waits_for_all else max(_DRAIN_SECONDS, self._settings.barrier_timeout or 0.0)
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            began = time.monotonic()
            seconds = min(patience, max(0.0, until - began))
            end = EpochEnd(None if seconds == math.inf else seconds, waits_for)
            self._run_without_input(spark, self._make_way(spark), end)
            # An epoch ends before its time if a stop cuts it short, or if calls wait for more of a budget.
            is_early = time.monotonic() - began < seconds
            if is_early or seconds < patience or not self.in_flight:
                return

    def _end_waits_for_budgets(self, spark: SparkSession) -> None:
        """Run epochs until no call waits for what another host has left of a budget; each ends once all calls do."""
        parallelism = self._make_way(spark)
        for _ in range(_LENDING_EPOCHS_MAX * parallelism):
            if not self.fleet.is_budget_short:
                return
            self._run_without_input(spark, parallelism, EpochEnd())

    def _has_room(self, parallelism: int) -> bool:
        """Tell whether all hosts have room for the rows of another epoch; of hosts to come, only the manifest tells."""
        if self.fleet.parallelism is None:
            return self.in_flight <= 2 * self._settings.options.capacity * parallelism
        return self.fleet.has_room()

    def _make_way(self, spark: SparkSession) -> int:
        """Return the parallelism of the next epoch, once the hosts of another parallelism have ended."""
        parallelism = self.parallelism  # read once: the sink or another thread may set it meanwhile
        if self.fleet.parallelism not in {None, parallelism}:
            self._end_generation(spark)
            self.fleet.end(self.epoch)
        return parallelism

    def _end_generation(self, spark: SparkSession) -> None:
        """Store and deliver results since the newest epoch; calls still under way are made again after the restore."""
        parallelism = self.fleet.parallelism if self.fleet.is_resident else None
        self._pauses.end()  # there is no later epoch for hosts that cannot be polled
        # After a failed epoch, what its hosts hold does not count.
        if parallelism is not None and self._is_clean and self._has_news():
            self._begin(spark)
            self._run_without_input(spark, parallelism, EpochEnd(0.0, is_final=True))

    def _run_without_input(self, spark: SparkSession, parallelism: int, end: EpochEnd) -> None:
        order = EpochOrder(replace(self.position, kind="drain"), parallelism, end)
        self._run(spark, no_rows(spark, parallelism), order)

    def _run(self, spark: SparkSession, frame: DataFrame, order: EpochOrder) -> None:
        pending = self.coordinator.begin()
        with self._watch.epoch(pending.version, order.parallelism):
            self._run_watched(spark, frame, order, pending)
        if self.fleet.is_loaded:
            self.coordinator.ended()

    def _run_watched(self, spark: SparkSession, frame: DataFrame, order: EpochOrder, pending: PendingSnapshot) -> None:
        started = time.monotonic()
        carried_over = self.in_flight
        with named_jobs(spark, self.coordinator.store.operator_id, pending.version, order.description):
            self._is_clean = False
            reports = self._run_subtasks(frame, pending, order)
        ran = time.monotonic()
        self._watch.enter("commit")
        metrics = EpochMetrics.total(report.metrics for report in reports)
        snapshot = self._commit(pending, reports, order.position, metrics)
        self._is_clean = True
        self.fleet.announce(snapshot)
        if order.end.is_final:
            self.fleet.committed(snapshot.version)
        committed = time.monotonic()
        self._watch.enter("sink")
        self.delivery.deliver(spark, snapshot, outputs_in(reports))
        seconds = ran - started, committed - ran, time.monotonic() - committed
        decided = self._log.add(self._progress(snapshot, metrics, seconds), carried_over, self.parallelism)
        if decided is not None:
            self.parallelism = decided

    def _run_subtasks(self, frame: DataFrame, pending: PendingSnapshot, order: EpochOrder) -> list[SubtaskReport]:
        """Run all subtasks, and run all of them again if a host was lost: nothing of a failed attempt counts."""
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            task = self._task(pending, order)
            try:
                # The tasks run even without rows, to bring the watermark, take what has returned, and cut.
                found = reports_in(run_in_partitions(frame, task.parallelism, task.for_workers(), REPORT_SCHEMA))
                self.fleet.locate(found)
                reports = checked(found)
                one_of_each([report.part for report in reports], task.job, task.parallelism)
            except (FeederFenced, HostLost, IncompleteEpoch) as error:
                of = f"attempt {attempt} of {_ATTEMPTS_MAX}"
                if attempt == _ATTEMPTS_MAX:
                    error.add_note(f"{of} at epoch {pending.version}: the next start runs it from the newest snapshot")
                    raise
                _log.warning("epoch %d is run again, because %s failed: %s", pending.version, of, error)
            else:
                if not order.end.is_final:  # its reports have no addresses, and `committed` needs them
                    self.fleet.report(reports)
                return reports
        raise AssertionError("the last attempt returns or raises")

    def _task(self, pending: PendingSnapshot, order: EpochOrder) -> EpochTask:
        return EpochTask(
            access=self.fleet.access(order.parallelism),
            version=pending.version,
            target=pickled(pending),
            newest=Newest.of(self._latest, order.parallelism),
            parallelism=order.parallelism,
            job=self.fleet.new_job(),
            epoch_id=order.input_name,
            event_time=self._settings.event_time,
            end=order.end,
            watermark=self._times.new_watermark,
            wait_strategies=self._settings.wait_strategies,
        )

    def _factory_for(self, parallelism: int) -> EpochOperatorFactory:
        return EpochOperatorFactory(
            options=self._settings.options,
            event_time=self._settings.event_time,
            parallelism=parallelism,
            max_parallelism=self._routing.max_parallelism,
            input_schema=self._input_schema,
            output_schema=self._output_schema,
            key_paths=tuple(key.path for key in self._routing.keys),
            identity=self._identity,
        )

    def _progress(
        self, snapshot: Snapshot, metrics: EpochMetrics, seconds: tuple[float, float, float]
    ) -> EpochProgress:
        """Return the progress of an epoch; `seconds` are for its run, its commit and its sink."""
        kind = self.position.kind
        assert kind is not None, "an epoch has committed the newest snapshot"
        run_seconds, commit_seconds, sink_seconds = seconds
        return EpochProgress(
            **asdict(metrics),
            epoch=snapshot.version,
            kind=kind,
            batch_id=self.position.batch_id if kind == "batch" else None,
            parallelism=snapshot.parallelism,
            run_seconds=run_seconds,
            commit_seconds=commit_seconds,
            sink_seconds=sink_seconds,
            refused=self.delivery.take_refused(),
            watermark=self._times.watermark,
            failed_collections=self.coordinator.failed_collections,
            hosts=self.fleet.hosts,
        )

    def _commit(
        self,
        pending: PendingSnapshot,
        reports: list[SubtaskReport],
        position: SourcePosition,
        metrics: EpochMetrics,
    ) -> Snapshot:
        position = replace(
            position,
            previous=self.position.ref,
            epoch=pending.version,
            attempt=pending.attempts_prefix,
            keys=self._routing.stored_keys,
            parallelism=len(reports),
            times=self._times.after([report.times for report in reports], self._watermark_delay_milliseconds),
            written=self.delivery.written_epochs,
        )
        return self.coordinator.commit(pending, [report.handle for report in reports], position, metrics.stored())


class _Pauses:
    """The pauses between epochs that run only because a host cannot be polled: longer while these have no outputs."""

    def __init__(self) -> None:
        self._seconds, self._not_before = 1.0, 0.0

    def is_over(self) -> bool:
        """Tell whether the next one may run."""
        return time.monotonic() >= self._not_before

    def begin(self, *, is_idle: bool) -> None:
        """Begin the next pause; `is_idle` tells whether the epoch before it had no outputs."""
        self._seconds = min(_PAUSE_SECONDS_MAX, 2 * self._seconds) if is_idle else 1.0
        self._not_before = time.monotonic() + self._seconds

    def end(self) -> None:
        """End the pause under way."""
        self._not_before = 0.0
