"""The streaming pipeline: an operator with keyed state, whose calls may outlive a micro-batch."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from os import PathLike
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from async_op.dead_letters import OnError
from async_op.durations import check_delay, check_timeout
from async_op.options import Mode, OperatorOptions, StateBackend
from async_op.plain import AnyFunction, as_function
from async_op.resilience import Resilience
from async_op.retry import RetryPolicy
from async_op.spark.autoscale import AutoscalePolicy
from async_op.spark.epoch.checkpoint import Checkpoint
from async_op.spark.epoch.delivery import Sink
from async_op.spark.epoch.history import Adopt, join_histories
from async_op.spark.epoch.runner import EpochRunner
from async_op.spark.epoch.settings import EpochSettings
from async_op.spark.epoch.times import watermark_delay_of
from async_op.spark.progress import EpochProgress
from async_op.spark.query import PipelineQuery
from async_op.spark.retention import Retention
from async_op.spark.rows.arrow_function import check_arrow
from async_op.spark.rows.dead_letter_column import DeadLetters, rows_in_place, schema_with_letters
from async_op.spark.rows.keys import key_columns, key_getter, names_of
from async_op.spark.rows.schemas import arrow_schema, check_columns, parse_schema
from async_op.spark.task.pickling import check_pickles
from keygroups.arguments import Duration
from keygroups.errors import ConfigError
from keygroups.ranges import check_parallelism, default_max_parallelism
from snapshots import SnapshotStore

DEFAULT_RETENTION = Retention()


class AsyncPipeline:
    """Applies an `AsyncFunction` with keyed state to a streaming DataFrame, exactly once.

    Each micro-batch is an epoch. Its rows go to the operators of their subtasks, which live as long as the query. The
    epoch waits at most `barrier_timeout` for calls under way. Calls that take longer go on, and their outputs leave
    with the next epoch, which needs no input. State, in-flight elements and outputs are committed together; then the
    sink gets the outputs. If the sink fails, it gets the same outputs again, without a call, before another epoch
    begins. Methods may be called from any thread.

    Parameters
    ----------
    function : AsyncFunction, AsyncBatchFunction, BlockingFunction, CallbackFunction or a plain function
        Gets each row as a dict; returns dicts or tuples that fit `output_schema`. It is pickled and sent to executors.
    key_by : str or list of str
        The key columns.
    output_schema : StructType or DDL string
        The schema of the outputs.
    snapshots : str or path
        Where snapshots are kept: an fsspec URI that the driver and all workers can reach.
    operator_id : str
        The name of the operator's folder there.
    parallelism : int
        The number of subtasks. May differ from that of earlier runs.
    max_parallelism : int, optional
        The number of key groups, which is fixed once the first snapshot exists.
    order_by : str or list of str, optional
        Columns by which each subtask sorts an epoch's rows; by default they come in the order of Spark's shuffle.
    mode : {"unordered", "ordered", "key_ordered"}
        As for `AsyncWaitOperator`.
    capacity : int
        Elements in flight per subtask.
    timeout : float or timedelta, optional
        Seconds for all attempts at an element together.
    retry : RetryPolicy, optional
        Which failed calls are made again, and when.
    barrier_timeout : float or timedelta, optional
        Seconds that an epoch waits for room for its rows and for calls under way; by default, until all calls have
        returned. It decides how soon an epoch is delivered, not how often a call is made. With `resident=False` it
        begins at the end of the input, and a call that is carried over is made again in the next epoch, which waits
        for it as long as it takes: so a row is called for at most twice, apart from retries. Set a `timeout` if a call
        may never return.
    on_error : {"fail", "skip", "dead_letter"}
        What happens to a row that fails for good: it fails its epoch, is dropped, or becomes a dead letter.
    dead_letters : {"column"}, optional
        Where dead letters go with `on_error="dead_letter"`: into a column of the sink's DataFrame, as described for
        `AsyncDataStream.ordered_wait`. They are committed and delivered with their epoch.
    resilience : Resilience, optional
        A cache, and limits of rate and concurrency; a rate is for all subtasks together. The cache and the limits live
        as long as the operators.
    state_backend : {"memory"} or DiskStateBackend
        Where operators keep their state: a `DiskStateBackend()` is for state that is larger than memory.
    storage_options : dict, optional
        Passed to the fsspec filesystem of `snapshots`.
    autoscale : AutoscalePolicy, optional
        Changes the parallelism between micro-batches, as their measurements suggest. The first run begins with
        `parallelism`, later runs with that of the newest snapshot. The log and `progress()` show each decision with its
        reason.
    event_time : str, optional
        The column with the timestamps of rows; a row has no timestamp if it is null. The input must have a watermark on
        it (`DataFrame.withWatermark`). Each epoch begins with the watermark of all epochs before it: the greatest
        timestamp of their rows, minus the delay. The watermark fires timers of event time. Late rows are not dropped.
        No output passes a watermark, so a call that is carried over also holds back the outputs of later rows.
    retention : Retention, optional
        Which versions stay while the pipeline runs; the others are removed in the background. None keeps all.
    resident : bool
        Whether operators outlive micro-batches, each in a process of its own on an executor's machine. Then calls go on
        while an epoch is committed and while there is no input, `open` runs once for each process, and state stays
        loaded. If false, each epoch opens its operators in Spark's tasks and closes them at its end. Outputs and state
        are the same.

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
        function: AnyFunction,
        *,
        key_by: str | list[str] | None = None,
        output_schema: StructType | str | None = None,
        snapshots: str | PathLike[str],
        operator_id: str,
        parallelism: int,
        max_parallelism: int | None = None,
        order_by: str | list[str] | None = None,
        mode: Mode = "unordered",
        capacity: int = 100,
        timeout: Duration | None = None,
        retry: RetryPolicy | None = None,
        barrier_timeout: Duration | None = None,
        on_error: OnError = "fail",
        dead_letters: DeadLetters | None = None,
        resilience: Resilience | None = None,
        state_backend: StateBackend = "memory",
        storage_options: dict[str, Any] | None = None,
        autoscale: AutoscalePolicy | None = None,
        event_time: str | None = None,
        retention: Retention | None = DEFAULT_RETENTION,
        resident: bool = True,
    ) -> None:
        self._key_by = names_of(key_by)
        function = as_function(function)
        check_arrow(function, key_by, mode)
        if barrier_timeout is not None:
            barrier_timeout = check_delay("barrier_timeout", barrier_timeout, reason="None waits for all calls")
        self._store = SnapshotStore(snapshots, operator_id, storage_options=storage_options)
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        check_parallelism(parallelism, self._key_groups())
        self._retention = retention
        self._autoscale = autoscale
        if autoscale is not None:
            check_parallelism(autoscale.max, self._key_groups())
        self._order_by = [order_by] if isinstance(order_by, str) else list(order_by or [])
        self._output_schema = schema_with_letters(parse_schema(output_schema), on_error, dead_letters)
        options = OperatorOptions(
            function=function,
            mode=mode,
            capacity=capacity,
            timeout=check_timeout("timeout", timeout),
            retry=retry,
            key_by=itemgetter(*self._key_by),  # `start` replaces it, once the fields of struct columns are known
            on_error=on_error,
            dead_letters=rows_in_place() if on_error == "dead_letter" else None,
            resilience=resilience,
            state_backend=state_backend,
        )
        self._settings = EpochSettings(
            options=options, barrier_timeout=barrier_timeout, event_time=event_time, is_resident=resident
        )
        self._query: PipelineQuery | None = None

    def start(
        self,
        stream_df: DataFrame,
        sink: Sink,
        *,
        checkpoint_location: str | PathLike[str],
        trigger: dict[str, Any] | None = None,
        adopt: Adopt | None = None,
    ) -> PipelineQuery:
        """Start, or continue from the newest snapshot and the checkpoint.

        The two belong together: the snapshots have the results of the rows that the checkpoint records as processed. If
        one of them was lost, replaced or taken from another query, nothing starts unless `adopt` says which one counts.
        If they belong together, `adopt` has no effect.

        Parameters
        ----------
        stream_df : DataFrame
            The streaming input.
        sink : callable
            `sink(batch_df, epoch)`. An epoch may come again with the same rows; the sink must then replace it.
        checkpoint_location : str or path
            Spark's checkpoint.
        trigger : dict, optional
            Keywords of `DataStreamWriter.trigger`, such as `{"availableNow": True}`.
        adopt : {"state", "checkpoint"}, optional
            With "state", the state of the newest snapshot continues with this checkpoint; if that is new, rows that are
            in the state may count again. With "checkpoint", the state begins empty where the checkpoint
            stands; epoch numbers are never reused. State of other keys cannot be adopted.

        Raises
        ------
        ConfigError
            The pipeline is already running, a column does not exist, the input has no watermark on the column of event
            time, or the session is a Spark Connect one.
        UnpicklableFunction
            The function holds what cannot be sent to the executors.
        UnsupportedKey
            The type of a key column has no hash.
        UnrelatedHistories
            The checkpoint and the snapshots do not belong together.
        IncompatibleSnapshot
            The newest snapshot has another max parallelism, other key columns, or other types of key columns.
        """
        if type(stream_df).__module__.startswith("pyspark.sql.connect."):
            raise ConfigError("stream_df", stream_df, "a pipeline needs a classic Spark session, not a Connect one")
        if self._query is not None and self._query.isActive:
            raise ConfigError("pipeline", self._store.uri, "it is already running: stop its query first")
        check_pickles(self._settings.options.function)
        spark = stream_df.sparkSession
        keys = key_columns(stream_df.schema, self._key_by)
        check_columns(stream_df, "order_by", self._order_by)
        event_time = self._settings.event_time
        delay_milliseconds = 0 if event_time is None else watermark_delay_of(stream_df, event_time)
        sizes = {"parallelism": self._parallelism, "max_parallelism": self._key_groups()}
        join_histories(self._store, Checkpoint.read(spark, str(checkpoint_location)), keys, adopt, **sizes)
        options = replace(self._settings.options, key_by=key_getter(keys))
        runner = EpochRunner(
            spark,
            self._store,
            replace(self._settings, options=options),
            keys=keys,
            output_schema=arrow_schema(spark, self._output_schema),
            parallelism=self._parallelism,
            max_parallelism=self._key_groups(),
            order_by=self._order_by,
            sink=sink,
            watermark_delay_milliseconds=delay_milliseconds,
            autoscale=self._autoscale,
            retention=self._retention,
        )
        runner.deliver_latest(spark)
        # Before it starts, because a sink may call `rescale` in the first epoch.
        before, self._query = self._query, PipelineQuery(runner, spark)
        try:
            self._query.start(stream_df, str(checkpoint_location), trigger or {})
        except BaseException:
            self._query = before
            raise
        return self._query

    def rescale(self, parallelism: int) -> None:
        """Change the parallelism from the next micro-batch on.

        Raises
        ------
        ConfigError
            The parallelism is not between 1 and the max parallelism.
        """
        check_parallelism(parallelism, self._key_groups())
        self._parallelism = parallelism
        if self._query is not None:
            self._query.runner.parallelism = parallelism

    def drain(self) -> None:
        """Finish what is in flight and fire timers that are due, in an epoch without input; deliver its outputs.

        Raises
        ------
        ConfigError
            The pipeline was never started, so it has no sink.
        """
        if self._query is None:
            raise ConfigError("pipeline", self._store.uri, "start it first: a drain needs its sink")
        self._query.drain()

    def progress(self) -> tuple[EpochProgress, ...]:
        """Return what the newest thousand epochs since `start` did, oldest first."""
        return () if self._query is None else tuple(self._query.runner.progress)

    def _key_groups(self) -> int:
        """Return the number of key groups: the one passed, else the newest snapshot's, else a default."""
        if self._max_parallelism is None:
            latest = self._store.latest()
            self._max_parallelism = (
                default_max_parallelism(self._parallelism) if latest is None else latest.max_parallelism
            )
        return self._max_parallelism
