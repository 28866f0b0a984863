"""The streaming pipeline: an operator with keyed state, whose calls may outlive a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from os import PathLike
from typing import Any, Unpack

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from async_op.connectors.sink import SINK_RETRY
from async_op.connectors.sink import Sink as AnySink
from async_op.dead_letters import OnError
from async_op.durations import check_delay
from async_op.epochs.retention import Retention
from async_op.explanation import Explanation
from async_op.functions.base import AsyncBatchFunction
from async_op.functions.plain import AnyFunction, as_function
from async_op.options import CallOptions, Mode, OperatorOptions, StateBackend, takes_call_options
from async_op.retry import RetryPolicy
from async_op.spark.autoscale import AutoscalePolicy
from async_op.spark.bounded import run_bounded
from async_op.spark.chain import PipelineChain, check_distinct, check_next, join_chain
from async_op.spark.connect.query import ConnectQuery
from async_op.spark.description import explained, facts_of
from async_op.spark.epoch.checkpoint import Checkpoint
from async_op.spark.epoch.delivery import IntoSink, Sink, refuse_in_sink
from async_op.spark.epoch.history import Adopt, join_histories
from async_op.spark.epoch.inputs import EpochSettings
from async_op.spark.progress import PipelineProgress
from async_op.spark.query import PipelineQuery
from async_op.spark.rows.dead_letter_column import DeadLetters, rows_in_place, schema_with_letters
from async_op.spark.rows.keys import names_of
from async_op.spark.rows.routing import Routing
from async_op.spark.rows.schemas import check_event_time, parse_schema, watermark_delay_of
from async_op.spark.stage import Running, Stage
from async_op.spark.start_arguments import TableFormat, check_run, check_start, prepare_table, table_sink
from async_op.threads.wait_strategies import WaitStrategiesOption, as_wait_strategies
from keygroups.arguments import Duration, check_flag, check_instance, check_location
from keygroups.errors import ConfigError
from keygroups.names import LINEAGE_NAME
from keygroups.representation import html_facts, representation
from keygroups.spark.session import is_connect
from snapshots import SnapshotStore
from snapshots.host_logs import logs_of, tails_of

DEFAULT_RETENTION = Retention()


_NEVER_STARTED = "start it first: a drain needs its sink"

_COPIED = "this is a copy of it in another process, without its query: drain it in the program that has started it"


class AsyncPipeline:
    """Applies an `AsyncFunction` with keyed state to a streaming DataFrame, exactly once.

    Each micro-batch is an epoch. Its rows go to the operators of their subtasks, which live as long as the query. The
    epoch waits at most `barrier_timeout` for calls under way. Calls that take longer continue, and their outputs leave
    with the next epoch, which needs no input. State, in-flight elements and outputs are committed together; then the
    sink gets the outputs. If the sink fails, it gets the same outputs again, without a call, before another epoch
    begins. Methods may be called from any thread.

    Parameters
    ----------
    function : AsyncFunction, AsyncBatchFunction, BlockingFunction, CallbackFunction or a plain function
        Gets each row as a dict; returns dicts or tuples that fit `output_schema`. It is pickled and sent to executors.
    key_by : str or list of str, optional
        The key columns. Without them there is no keyed state. Rows are distributed by a hash of the whole row; their
        order holds within a subtask and ends at a change of parallelism.
    output_schema : StructType or DDL string
        The schema of the outputs.
    snapshots : str or path
        Where snapshots are kept: an fsspec URI that the driver and all workers can reach.
    operator_id : str
        The name of the operator's folder there.
    parallelism : int, optional
        The number of subtasks. By default what the newest snapshot has, so that `keygroups repartition` counts; without
        a snapshot the default parallelism of the session, as a rule its cores. May differ from earlier runs.
    max_parallelism : int, optional
        The number of key groups, which is fixed once the first snapshot exists.
    order_by : str or list of str, optional
        Columns by which each subtask sorts an epoch's rows; by default they come in the order of Spark's shuffle.
    mode, capacity : str, int
        As for `AsyncWaitOperator`; the capacity is per subtask. Rows that wait for calls come on top of it.
    timeout : float or timedelta, optional
        Seconds for all attempts at an element together.
    retry : RetryPolicy, optional
        Which failed calls are retried, and when.
    barrier_timeout : float or timedelta, optional
        Seconds that an epoch waits for room for its rows and for calls under way. None waits until all calls have
        returned. It decides how soon an epoch is delivered, not how often a call is made. With `resident=False` it
        begins at the end of the input, and a call that is carried over is repeated in the next epoch, which waits
        for it as long as it takes: so a row is called at most twice, apart from retries. Set a `timeout` if a call
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
        `parallelism`, later runs with what the run before has decided; measurements are stored beside the snapshots.
        The log and `progress()` show each decision with its reason.
    event_time : str, optional
        The column with the timestamps of rows; a row has no timestamp if it is null. The input must have a watermark on
        it (`DataFrame.withWatermark`). Each epoch begins with the watermark of all epochs before it: the greatest
        timestamp of their rows, minus the delay. The watermark fires timers of event time. Late rows are not dropped.
        No output passes a watermark, so a call that is carried over also holds back the outputs of later rows.
    retention : Retention, optional
        Which versions stay while the pipeline runs; the others are removed in the background. None keeps all.
    hash : {"xxhash64", "flink"}
        The hash that maps keys to key groups. Flink's is computed by Python workers. Integers of any width are Longs
        for it, and several key columns are one of Flink's tuples.
    idempotency_namespace : str, optional
        The first part of all idempotency keys, in place of a random one that the pipeline keeps with its snapshots, as
        for `Job`. After it come the ids of Spark's query and micro-batch, so a service recognises a row after a loss of
        the snapshots only if the checkpoint still names them.
    resident : bool
        Whether operators outlive micro-batches, each in its own process on an executor's machine. Then calls continue
        while an epoch is committed and while there is no input, `open` runs once for each process, and state stays
        loaded. If false, each epoch opens its operators in Spark's tasks and closes them at its end. Outputs and state
        are the same.
    wait_strategies : WaitStrategies or dict, optional
        How tasks wait for their operators, also with Storm's names; by default they park.

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

    @takes_call_options
    def __init__(
        self,
        function: AnyFunction,
        *,
        key_by: str | list[str] | None = None,
        output_schema: StructType | str | None = None,
        snapshots: str | PathLike[str],
        operator_id: str,
        parallelism: int | None = None,
        max_parallelism: int | None = None,
        order_by: str | list[str] | None = None,
        mode: Mode = "unordered",
        barrier_timeout: Duration | None = 1.0,
        on_error: OnError = "fail",
        dead_letters: DeadLetters | None = None,
        state_backend: StateBackend = "memory",
        storage_options: dict[str, Any] | None = None,
        autoscale: AutoscalePolicy | None = None,
        event_time: str | None = None,
        retention: Retention | None = DEFAULT_RETENTION,
        hash: str = "xxhash64",
        idempotency_namespace: str | None = None,
        resident: bool = True,
        wait_strategies: WaitStrategiesOption | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        keys = names_of("key_by", key_by)
        if idempotency_namespace is not None:
            LINEAGE_NAME.check("idempotency_namespace", idempotency_namespace)
        folder = check_location("snapshots", snapshots, reason="name a folder for snapshots")
        function = as_function(function)
        if isinstance(function, AsyncBatchFunction) and function.arrow:
            raise ConfigError("function", function, "a pipeline calls functions with rows: set arrow = False")
        check_flag("resident", resident)
        check_instance("event_time", event_time, (str, type(None)), reason="name the column, or pass None")
        if barrier_timeout is not None:
            barrier_timeout = check_delay("barrier_timeout", barrier_timeout, reason="None waits for all calls")
        for name, value, kind in (("autoscale", autoscale, AutoscalePolicy), ("retention", retention, Retention)):
            check_instance(
                name, value, (kind, type(None)), reason=f"pass an object of the class {kind.__name__}, or None"
            )
        made = OperatorOptions.of(
            function,
            mode=mode,
            key_by=itemgetter(*keys) if keys else None,  # `start` replaces it: structs have fields
            hash=hash,
            on_error=on_error,
            dead_letters=rows_in_place() if on_error == "dead_letter" else None,
            state_backend=state_backend,
            **options,
        )
        stage = Stage(
            store=SnapshotStore(folder, operator_id, storage_options=storage_options),
            settings=EpochSettings(
                options=made,
                barrier_timeout=barrier_timeout,
                event_time=event_time,
                is_resident=resident,
                wait_strategies=as_wait_strategies(wait_strategies),
            ),
            key_by=keys,
            order_by=names_of("order_by", order_by),
            output_schema=schema_with_letters(parse_schema(output_schema), on_error, dead_letters),
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            autoscale=autoscale,
            retention=retention,
            namespace=idempotency_namespace,
        )
        self._stages: tuple[Stage, ...] = (stage,)

    def start(
        self,
        stream_df: DataFrame,
        sink: Sink,
        *,
        checkpoint_location: str | PathLike[str],
        trigger: dict[str, Any] | None = None,
        adopt: Adopt | None = None,
    ) -> PipelineQuery | ConnectQuery:
        """Start, or continue from the newest snapshot and the checkpoint.

        The two belong together: the snapshots have the results of the rows that the checkpoint records as processed. If
        one of them was lost, replaced or taken from another query, nothing starts unless `adopt` says which one counts.
        If they belong together, `adopt` has no effect.

        Parameters
        ----------
        stream_df : DataFrame
            The streaming input.
        sink : callable
            `sink(batch_df, epoch)`. An epoch may come again with the same rows; the sink must then replace it. Over
            Spark Connect it is pickled, and called in a process beside the server. For tables there is `to_table`;
            for a topic of Kafka, pass a `KafkaSink`.
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
            An argument can never work, the pipeline is already running, a column does not exist, or the input has no
            watermark on the column of event time. Over Spark Connect also: the sink cannot be sent to the server.
        UnwritableValue
            The sink is a `KafkaSink`, and rows with the columns of `output_schema` are no records.
        UnpicklableFunction
            The function holds what cannot be sent to the executors.
        UnsuitableWorkerPython, ModuleNotOnWorkers
            Spark's workers cannot run the function. Known on a local master, and of a module over Spark Connect; on a
            cluster `explain` asks a worker.
        UnsupportedKey
            The type of a key column has no hash.
        UnrelatedHistories
            The checkpoint and the snapshots do not belong together.
        IncompatibleSnapshot
            The newest snapshot is a job's, or has another max parallelism, hash or lineage, other key columns, or other
            types of them, or a state that the function does not declare.

        Warns
        -----
        RepartitionUndone
            Since the last run the newest snapshot was repartitioned, and the pipeline was given another number.
        """
        check_start(stream_df, sink, self._stages[-1].output_schema, checkpoint_location, trigger)
        spark, first = stream_df.sparkSession, self._stages[0]
        routings = self._routings(spark, stream_df.schema)
        event_time = first.settings.event_time
        delay_milliseconds = 0 if event_time is None else watermark_delay_of(stream_df, event_time)
        checkpoint = Checkpoint.read(spark, str(checkpoint_location))
        join_histories(first.store, checkpoint, routings[0], adopt, parallelism=first.starting)
        join_chain(self._stages, routings, adopt)
        self._check_fits(routings)
        for stage in self._stages:
            stage.tell_of_takeover()
        query: PipelineQuery | ConnectQuery
        if is_connect(spark):
            query = ConnectQuery(self._stages, routings, IntoSink(sink), delay_milliseconds)
        else:
            chain = PipelineChain.begin(spark, self._stages, routings, IntoSink(sink), delay_milliseconds)
            query = PipelineQuery(chain, spark)
        # Before it starts, because a sink may call `rescale` in the first epoch.
        before = first.query
        self._note(query)
        try:
            query.start(stream_df, str(checkpoint_location), trigger or {})
        except BaseException:
            self._note(before)
            query.abandon()
            raise
        self._stages[-1].sink = sink
        return query

    def to_table(
        self,
        stream_df: DataFrame,
        table: str | PathLike[str],
        *,
        format: TableFormat,
        checkpoint_location: str | PathLike[str],
        trigger: dict[str, Any] | None = None,
        adopt: Adopt | None = None,
        name: str | None = None,
        storage_options: dict[str, str] | None = None,
        catalog: dict[str, Any] | None = None,
        url: str | None = None,
        on_error: OnError = "fail",
        retry: RetryPolicy | None = SINK_RETRY,
        dead_letters: AnySink[Any] | None = None,
    ) -> PipelineQuery | ConnectQuery:
        """Start, or continue, and append the outputs to a table: each epoch once, through crashes and restarts.

        A Delta or Iceberg table that does not exist is made, with the columns of `output_schema`. A table of PostgreSQL
        must exist. Parquet files are written by the executors, into a folder ``epoch=…`` for each epoch, which is
        replaced if the epoch comes again. For the other formats rows come to the driver, batch by batch.

        Parameters
        ----------
        stream_df : DataFrame
            The streaming input.
        table : str or path
            The folder or URI of Parquet or Delta; the identifier for Iceberg (``"sales.orders"``); the table of
            PostgreSQL, with its schema if needed.
        format : {"delta", "iceberg", "parquet", "postgres"}
            What the table is; all but Parquet need the extra of that name.
        checkpoint_location, trigger, adopt
            As for `start`.
        name : str, optional
            The name under which the table keeps the newest epoch; by default the id of the operator, or of the last
            operator in a chain. Pipelines with one id that write to one table need different names, and so does a
            pipeline whose snapshots and checkpoint were both removed. Not for Parquet.
        storage_options : dict, optional
            Passed to deltalake.
        catalog : dict, optional
            The properties of Iceberg's catalog, which it needs.
        url : str, optional
            The PostgreSQL database, which it needs. It is never shown.
        on_error : {"fail", "skip", "dead_letter"}
            What becomes of a row that the table refuses, such as one that violates a constraint: it fails the epoch, is
            left out, or goes to `dead_letters` with its epoch. Not for Parquet.
        retry : RetryPolicy, optional
            How often an epoch is written, and how long the query waits in between, if the table does not answer: by
            default 20 attempts, two minutes on average. None for one attempt. Parquet is written once; Spark repeats
            its tasks.
        dead_letters : Sink, optional
            Where the refused rows go, such as a `FileSink`.

        Raises
        ------
        ConfigError
            As for `start`; also an option that the format does not take, or one that it needs, or an output column
            called ``epoch`` for Parquet, whose folders have that name.
        ConnectorNotInstalled
            A package is missing. Over Spark Connect the server's packages count, and this comes with the first epoch;
            so do the next two.
        TargetMissing
            The database has no such table.
        UnwritableValue
            The table does not have all columns of `output_schema`.
        UnpicklableFunction, UnsupportedKey, UnrelatedHistories, IncompatibleSnapshot
            As for `start`.

        Examples
        --------
        >>> query = pipeline.to_table(  # doctest: +SKIP
        ...     events, "s3://lake/visits", format="delta", checkpoint_location="/data/checkpoint")
        """
        options = {"name": name, "storage_options": storage_options, "catalog": catalog, "url": url}
        delivery = {"on_error": on_error, "retry": retry, "dead_letters": dead_letters}
        last = self._stages[-1]
        sink = table_sink(last, table, format, options, delivery)
        check_start(stream_df, sink, last.output_schema, checkpoint_location, trigger)
        prepare_table(sink, stream_df, last)
        return self.start(stream_df, sink, checkpoint_location=checkpoint_location, trigger=trigger, adopt=adopt)

    def run(self, df: DataFrame, sink: Sink, *, run_id: str, chunk_rows: int | None = None) -> None:
        """Run a bounded DataFrame through the same operators and state: history, or rows to process again.

        Returns when nothing is in flight. The rows are first stored, in chunks, in the operator's folder; each chunk is
        the input of an epoch, and epochs without input finish what is in flight then. If `run` fails or is killed, call
        it again with the same `run_id`: it continues from the newest epoch. Once the run has finished, it does nothing.
        A query that runs elsewhere is stopped, as by another start. A query that you start afterwards continues where
        it was.

        Parameters
        ----------
        df : DataFrame
            The input; with `order_by` it is sorted as a whole. With `event_time` its rows come in the order of their
            timestamps first; it needs no watermark.
        sink : callable
            `sink(batch_df, epoch)`, as for `start`. Epoch numbers continue from the newest version.
        run_id : str
            The name of the run: letters, digits, `_` and `-`.
        chunk_rows : int, optional
            How many rows a chunk has at most; by default 100,000. The outputs of a chunk must fit into memory.

        Raises
        ------
        ConfigError
            An argument can never work, the pipeline is running, or the run has stored rows with other columns.
        UnfinishedRun
            Another run has not finished, or the stored input of this one is lost.
        IncompatibleSnapshot, UnpicklableFunction, UnrelatedPipelines, UnsupportedKey, UnwritableValue
            As for `start`.

        Examples
        --------
        >>> pipeline.run(history, write_batch, run_id="history-2026")  # doctest: +SKIP
        """
        check_run(df, sink, self._stages[-1].output_schema, run_id, chunk_rows)
        check_event_time(df.schema, self._stages[0].settings.event_time)
        routings = self._routings(df.sparkSession, df.schema)
        self._check_fits(routings)
        for stage in self._stages:
            stage.tell_of_takeover()
        run_bounded(df, self._stages, routings, IntoSink(sink), run_id=run_id, chunk_rows=chunk_rows)

    def then(self, pipeline: AsyncPipeline) -> AsyncPipeline:
        """Return a chain: the outputs of this pipeline are the input of another one, epoch by epoch.

        `start` and `run` of the chain run both. Each has its own snapshots, and the outputs of an epoch are kept until
        the next pipeline has committed them. So a failure of the second repeats no call of the first.
        `rescale` and `progress` of each pipeline are its own; the chain's are its first one's. A drain goes from
        first to last.

        Parameters
        ----------
        pipeline : AsyncPipeline
            The next pipeline, or a chain. Its rows come in no order of their own: pass it `order_by` if it needs one.

        Raises
        ------
        ConfigError
            It is no pipeline, it is in the chain already, its columns are not among the outputs, it has an
            `event_time` (outputs have no watermark), or this one has dead letters, which only the last may have.

        Examples
        --------
        >>> query = geocode.then(enrich).start(  # doctest: +SKIP
        ...     addresses, write_batch, checkpoint_location="/data/checkpoint")
        """
        if not isinstance(pipeline, AsyncPipeline):
            raise ConfigError("pipeline", pipeline, "pass an AsyncPipeline")
        check_next(self._stages[-1], pipeline._stages[0])
        chain = object.__new__(AsyncPipeline)
        chain._stages = (*self._stages, *pipeline._stages)
        check_distinct(chain._stages)
        return chain

    def rescale(self, parallelism: int) -> None:
        """Change the parallelism from the next micro-batch on; of a chain, its first pipeline's.

        Raises
        ------
        ConfigError
            The parallelism is not between 1 and the max parallelism, or not between the bounds of the autoscaler.
        """
        self._stages[0].rescale(parallelism)

    def drain(self) -> None:
        """Finish what is in flight and fire timers that are due, in an epoch without input; deliver its outputs.

        Raises
        ------
        ConfigError
            The pipeline was never started, so it has no sink, or this is a copy in another process, such as beside a
            Spark Connect server: only the client can drain it.
        CalledInSink
            The sink itself calls it.
        """
        for stage in self._stages:  # first: beside a Spark Connect server, a sink's pipeline has no query
            refuse_in_sink("drain", stage.store.uri)
        if (query := self._stages[0].query) is None:
            raise ConfigError(
                "pipeline", self._stages[0].store.uri, _COPIED if self._stages[0].is_copy else _NEVER_STARTED
            )
        query.drain()

    def progress(self) -> PipelineProgress:
        """Return what the newest thousand epochs since `start` did, oldest first; a hundred over Spark Connect.

        Its `under_way` is what the epoch that has not ended does: calls in flight, the oldest of them, calls a second.
        """
        runner = self._stages[0].runner
        return PipelineProgress() if runner is None else runner.progress

    def __repr__(self) -> str:
        return representation(self, facts_of(self._stages))

    def _repr_html_(self) -> str:
        title = f"pipeline {' then '.join(stage.store.operator_id for stage in self._stages)}"
        return html_facts(title, facts_of(self._stages))

    def explain(self, df: DataFrame | None = None, sink: Sink | None = None) -> Explanation:
        """Return what the pipeline would do with its next epoch, and what looks wrong; nothing is started or claimed.

        It reads the newest snapshots, and the settings of the active Spark session if there is one. Unless that has a
        local master, it runs one task, which tells whether workers can load the function.

        Parameters
        ----------
        df : DataFrame, optional
            The input, streaming or not: then its columns are checked, and whether its rows change when Spark reads them
            again.
        sink : callable, optional
            What `start` or `run` will get: then a sink of this package looks at its target from this machine, once and
            without retries. Nothing is written, and no other run is fenced.

        Examples
        --------
        >>> print(pipeline.explain())  # doctest: +SKIP
        """
        return explained(self._stages, df, sink)

    def logs(self) -> dict[str, str]:
        """Return what the function prints and logs: the last 64 KiB of each log by its path, the newest last.

        Each host writes a log on the machine where it runs, and this machine's are shown: on a cluster run `keygroups
        logs` on the others. The levels of the
        driver's loggers hold in hosts. With `resident=False` the function prints to the log of Spark's executor.

        Examples
        --------
        >>> for path, text in pipeline.logs().items():  # doctest: +SKIP
        ...     print(f"{path}: {text}")
        """
        return tails_of(log for stage in self._stages for log in logs_of(stage.store.uri))

    def _routings(self, spark: SparkSession, schema: StructType) -> list[Routing]:
        """Return how rows find their subtasks in each pipeline; raises what can be known to fail before any claim."""
        for stage in self._stages:
            stage.check(spark)
        schemas = [schema, *(stage.output_schema for stage in self._stages)]
        return [stage.routing(one) for stage, one in zip(self._stages, schemas, strict=False)]

    def _check_fits(self, routings: Sequence[Routing]) -> None:
        """Check that each pipeline fits its newest snapshot."""
        for stage, routing in zip(self._stages, routings, strict=True):
            stage.check_fits(routing)

    def _note(self, query: Running | None) -> None:
        for stage in self._stages:
            stage.query = query
