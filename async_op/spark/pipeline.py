"""The streaming pipeline: keyed state, and calls that may outlive a micro-batch."""

from __future__ import annotations

import threading
from dataclasses import asdict
from os import PathLike
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from async_op.dead_letters import OnError
from async_op.functions import Function
from async_op.resilience import Resilience
from async_op.retry import RetryPolicy
from async_op.settings import Mode, StateBackend
from async_op.spark.arrow import check_arrow
from async_op.spark.autoscale import AutoscalePolicy
from async_op.spark.dead_letters import DeadLetters, schema_with_letters
from async_op.spark.epoch import EpochProgress, EpochRunner, Sink
from async_op.spark.epoch_times import watermark_delay_of
from async_op.spark.transform import arrow_schema, parse_schema
from async_op.spark.worker import EpochSettings
from keygroups.errors import ConfigError, KeyGroupsError
from keygroups.ranges import check_parallelism, default_max_parallelism
from snapshots import SnapshotStore

_DRAIN_AFTER_IDLE_SECONDS = 1
"""How long a query must be idle before an epoch of its own drains what is in flight, or fires timers that are due."""


class AsyncPipeline:
    """Applies an `AsyncFunction` with keyed state to a streaming DataFrame, exactly once.

    Each micro-batch is an epoch: rows go to their subtasks, every subtask restores its key groups, runs, and waits at
    most `barrier_timeout` for calls that are still under way; those continue in the next epoch. State, in-flight
    elements and outputs are committed together, then the sink gets the outputs. A replayed epoch delivers the same
    outputs again, without a call. Methods may be called from any thread.

    Parameters
    ----------
    function : AsyncFunction
        Gets each row as a dict; returns dicts or tuples that fit `output_schema`. Pickled to the workers.
    key_by : str or list of str
        The key columns.
    output_schema : StructType or DDL string
        The schema of the outputs.
    snapshots : str or path
        Where snapshots are kept: an fsspec URI that the driver and all workers can reach.
    operator_id : str
        Names the operator's folder there.
    parallelism : int
        The number of subtasks. May differ from that of earlier runs.
    max_parallelism : int, optional
        The number of key groups: fixed once the first snapshot exists.
    order_by : str or list of str, optional
        Columns by which each subtask sorts an epoch's rows; without it their order is Spark's.
    mode : {"unordered", "ordered", "key_ordered"}
        As for `AsyncWaitOperator`.
    capacity : int
        Elements in flight per subtask.
    timeout : float, optional
        Seconds for all attempts at an element together.
    retry : RetryPolicy, optional
        Which outcomes are tried again, and when.
    barrier_timeout : float, optional
        Seconds that an epoch waits, at the end of its input, for calls under way; without it, until all have returned.
        A call that is carried over starts anew in the next epoch, with its attempt number and idempotency key: where
        micro-batches are shorter than the slowest calls, those come to their end only in a drain.
    on_error : {"fail", "skip", "dead_letter"}
        What becomes of a row that fails for good: it fails its epoch, is dropped, or becomes a dead letter.
    dead_letters : {"column"}, optional
        Where dead letters go, with `on_error="dead_letter"`: into a column of the sink's DataFrame, as described for
        `AsyncDataStream.ordered_wait`. They are committed with the epoch and delivered again with it.
    resilience : Resilience, optional
        A cache, and limits of rate and concurrency; a rate is that of all subtasks together. A new epoch knows nothing
        of what the limits of the one before have learnt.
    state_backend : {"memory"} or DiskStateBackend
        Where a task has the keyed state of its subtask during an epoch. In memory, a worker keeps key groups for the
        next epoch; with a `DiskStateBackend()`, for state that is larger than memory, each epoch reads those that it
        touches from the snapshot.
    storage_options : dict, optional
        Passed to the fsspec filesystem of `snapshots`.
    autoscale : AutoscalePolicy, optional
        Changes the parallelism between micro-batches by what they measured. The first run begins with `parallelism`,
        later ones with that of the newest snapshot. Each decision is logged, with its reason, and is in `progress()`.
    event_time : str, optional
        The column that has the timestamps of rows; a row where it is null has none. The input must have a watermark on
        it (`DataFrame.withWatermark`). Each epoch begins with the watermark of all epochs before: the greatest
        timestamp of their rows, less the delay. It makes timers of event time fire. Late rows are not dropped. In mode
        "unordered" no output passes it, so a call that is carried over also holds back what came in after it.

    Raises
    ------
    ConfigError
        An argument can never work.

    Examples
    --------
    >>> pipeline = AsyncPipeline(  # doctest: +SKIP
    ...     Enrich(), key_by="user", output_schema="user string, visits bigint",
    ...     snapshots="/data/snapshots", operator_id="enrich", parallelism=4)
    >>> query = pipeline.start(events, write_batch, checkpoint_location="/data/checkpoint")  # doctest: +SKIP

    With timers of event time:

    >>> pipeline = AsyncPipeline(  # doctest: +SKIP
    ...     Sessions(), key_by="user", output_schema="user string, clicks bigint", event_time="at",
    ...     snapshots="/data/snapshots", operator_id="sessions", parallelism=4)
    >>> query = pipeline.start(  # doctest: +SKIP
    ...     clicks.withWatermark("at", "10 minutes"), write_batch, checkpoint_location="/data/checkpoint")
    """

    def __init__(
        self,
        function: Function,
        *,
        key_by: str | list[str],
        output_schema: StructType | str,
        snapshots: str | PathLike[str],
        operator_id: str,
        parallelism: int,
        max_parallelism: int | None = None,
        order_by: str | list[str] | None = None,
        mode: Mode = "unordered",
        capacity: int = 100,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        barrier_timeout: float | None = None,
        on_error: OnError = "fail",
        dead_letters: DeadLetters | None = None,
        resilience: Resilience | None = None,
        state_backend: StateBackend = "memory",
        storage_options: dict[str, Any] | None = None,
        autoscale: AutoscalePolicy | None = None,
        event_time: str | None = None,
    ) -> None:
        check_arrow(function, key_by, mode)
        if resilience is not None:
            resilience.check_fits(function)
        self._store = SnapshotStore(snapshots, operator_id, storage_options=storage_options)
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        check_parallelism(parallelism, self._key_groups())
        self._autoscale = autoscale
        if autoscale is not None:
            check_parallelism(autoscale.max, self._key_groups())
        self._order_by = [order_by] if isinstance(order_by, str) else list(order_by or [])
        self._output_schema = schema_with_letters(parse_schema(output_schema), on_error, dead_letters)
        self._settings = EpochSettings(
            function=function,
            key_by=key_by,
            mode=mode,
            capacity=capacity,
            timeout=timeout,
            retry=retry,
            barrier_timeout=barrier_timeout,
            on_error=on_error,
            resilience=resilience,
            state_backend=state_backend,
            event_time=event_time,
        )
        self._query: PipelineQuery | None = None

    def start(
        self,
        stream_df: DataFrame,
        sink: Sink,
        *,
        checkpoint_location: str | PathLike[str],
        trigger: dict[str, Any] | None = None,
    ) -> PipelineQuery:
        """Start, or continue where the newest snapshot and the checkpoint stand.

        Parameters
        ----------
        stream_df : DataFrame
            The streaming input.
        sink : callable
            `sink(batch_df, epoch)`; an epoch may come again, with the same rows, and must then replace itself.
        checkpoint_location : str or path
            Spark's checkpoint.
        trigger : dict, optional
            Keywords of `DataStreamWriter.trigger`, such as `{"availableNow": True}`.

        Raises
        ------
        ConfigError
            The pipeline runs already, or the input has no watermark on the column of event time.
        IncompatibleSnapshot
            The newest snapshot has another max parallelism.
        """
        if type(stream_df).__module__.startswith("pyspark.sql.connect."):
            raise ConfigError("stream_df", stream_df, "a pipeline needs a classic Spark session, not a Connect one")
        if self._query is not None and self._query.isActive:
            raise ConfigError("pipeline", self._store.uri, "it runs already: stop its query first")
        spark = stream_df.sparkSession
        event_time = self._settings.event_time
        delay_milliseconds = 0 if event_time is None else watermark_delay_of(stream_df, event_time)
        runner = EpochRunner(
            self._store,
            self._settings,
            output_schema=arrow_schema(spark, self._output_schema),
            parallelism=self._parallelism,
            max_parallelism=self._key_groups(),
            order_by=self._order_by,
            sink=sink,
            watermark_delay_milliseconds=delay_milliseconds,
            autoscale=self._autoscale,
        )
        runner.deliver_latest(spark)
        self._query = PipelineQuery(runner, spark)
        self._query.start(stream_df, str(checkpoint_location), trigger or {})
        return self._query

    def rescale(self, parallelism: int) -> None:
        """Run with another parallelism from the next micro-batch on.

        Raises
        ------
        ConfigError
            It is not between 1 and the max parallelism.
        """
        check_parallelism(parallelism, self._key_groups())
        self._parallelism = parallelism
        if self._query is not None:
            self._query.runner.parallelism = parallelism

    def drain(self) -> None:
        """Finish what is in flight, and fire the timers that are due, without input; deliver the outputs.

        Raises
        ------
        ConfigError
            The pipeline was never started, so it has no sink.
        """
        if self._query is None:
            raise ConfigError("pipeline", self._store.uri, "start it before: draining needs its sink")
        self._query.drain()

    def progress(self) -> tuple[EpochProgress, ...]:
        """Return what the newest thousand epochs since `start` did, oldest first."""
        return () if self._query is None else tuple(self._query.runner.progress)

    def _key_groups(self) -> int:
        """Return the number of key groups: as asked for, else the newest snapshot's, else a default."""
        if self._max_parallelism is None:
            latest = self._store.latest()
            self._max_parallelism = (
                default_max_parallelism(self._parallelism) if latest is None else latest.max_parallelism
            )
        return self._max_parallelism


class PipelineQuery:
    """The running query: a `StreamingQuery` whose end includes what is in flight. Any thread may call it.

    Spark starts no micro-batch without new input, so a thread drains what is in flight, and fires timers that are due,
    when none has come for a while, and at the end of a query with the trigger `availableNow` or `once`. Timers that are
    due later are kept: they hold up no end. Everything that this class does not have itself
    is the `StreamingQuery`'s. The progress of a micro-batch has that of its epoch among its `observedMetrics`, by the
    name `keygroups`; drains, which Spark knows nothing of, stand in `AsyncPipeline.progress()` only.
    """

    def __init__(self, runner: EpochRunner, spark: SparkSession) -> None:
        self.runner = runner
        self._spark = spark
        self._started = threading.Event()
        self._failure: Exception | None = None
        self._ends_drained = False
        self._drainer = threading.Thread(target=self._drain_when_idle, name="keygroups drain", daemon=True)

    def start(self, stream_df: DataFrame, checkpoint_location: str, trigger: dict[str, Any]) -> None:
        """Start the streaming query and the thread that drains."""
        writer = stream_df.writeStream.foreachBatch(self._run_batch).option("checkpointLocation", checkpoint_location)
        self._ends_drained = bool({"availableNow", "once"} & trigger.keys())
        self.query: StreamingQuery = (writer.trigger(**trigger) if trigger else writer).start()
        self._started.set()
        self._drainer.start()

    @property
    def isActive(self) -> bool:  # noqa: N802 - StreamingQuery's name
        """Whether micro-batches may still come, or what is in flight is being drained."""
        return self.query.isActive or (self._ends_drained and self._drainer.is_alive())

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802 - StreamingQuery's name
        """Spark's newest progress, with the epoch's."""
        newest = self.query.lastProgress
        return None if newest is None else self._with_epoch(newest)

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802 - StreamingQuery's name
        """Spark's recent progress, with that of the epochs."""
        return [self._with_epoch(one) for one in self.query.recentProgress]

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - StreamingQuery's name
        """Wait for the end of the query, then finish what is in flight.

        Raises
        ------
        KeyGroupsError
            What made an epoch fail.
        """
        try:
            ended = self.query.awaitTermination(timeout)
        except StreamingQueryException:
            if self._failure is not None:
                raise self._failure from None
            raise
        if ended is not False:
            self._drainer.join()
            if self._failure is not None:
                raise self._failure
            self.drain()
        return ended

    def stop(self) -> None:
        """Stop the query; what is in flight stays in the newest snapshot, unless somebody drains it."""
        self._ends_drained = False
        self.query.stop()

    def drain(self) -> None:
        """Finish what is in flight, and fire the timers that are due, without input."""
        self.runner.drain(self._spark)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.query, name)

    def _run_batch(self, frame: DataFrame, batch_id: int) -> None:
        self._started.wait()
        try:
            self.runner.run_batch(frame, str(self.query.id), batch_id)
        except KeyGroupsError as error:
            self._failure = error
            raise

    def _with_epoch(self, progress: StreamingQueryProgress) -> StreamingQueryProgress:
        epochs = (epoch for epoch in tuple(self.runner.progress) if epoch.batch_id == progress.batchId)
        for epoch in epochs:
            metrics = {**asdict(epoch), "scaling": None if epoch.scaling is None else epoch.scaling.reason}
            progress["observedMetrics"] = {**progress["observedMetrics"], "keygroups": Row(**metrics)}
        return progress

    def _drain_when_idle(self) -> None:
        """Drain after an idle interval, and at the end of a query that ends by itself."""
        try:
            idle_epoch = 0
            while not self.query.awaitTermination(_DRAIN_AFTER_IDLE_SECONDS):
                epoch = self.runner.epoch
                if epoch == idle_epoch and self.runner.has_pending_work and not self.query.status["isTriggerActive"]:
                    self.drain()
                idle_epoch = epoch
            if self._ends_drained:
                self.drain()
        except StreamingQueryException:
            return  # who waits for the query gets it
        except Exception as error:  # noqa: BLE001 - raised by `awaitTermination`
            self._failure = error
            self.query.stop()
