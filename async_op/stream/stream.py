"""`AsyncDataStream`, the entry point for streams: an iterable in this process, or a Spark DataFrame."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from os import PathLike
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    Protocol,
    Required,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from async_op.calls.value_checks import Unreadable
from async_op.clock import Clock
from async_op.connectors.arrow_input import ArrowStream, has_arrow_stream
from async_op.connectors.sink import Sink
from async_op.connectors.source import Source
from async_op.dead_letters import DeadLetter, OnError
from async_op.functions.base import Function
from async_op.functions.plain import AnyFunction
from async_op.operator.key_columns import KeyBy, key_getter
from async_op.options import CallOptions, Mode, OperatorOptions, StateBackend, takes_call_options
from async_op.stream.local_stream import LocalStream, Stream
from async_op.stream.timestamps import TimestampsBy, timestamps_of
from async_op.threads.wait_strategies import WaitStrategiesOption
from keygroups.arguments import Duration
from keygroups.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_In = TypeVar("_In")
_Out = TypeVar("_Out")

LocalInput: TypeAlias = Stream[_In] | ArrowStream | Source[_In]

CoroutineFunction: TypeAlias = Callable[Concatenate[_In, ...], Coroutine[Any, Any, _Out]]
"""A coroutine function, whose result is the one output."""

YieldedOutputs: TypeAlias = (
    Callable[Concatenate[_In, ...], AsyncIterator[_Out]] | Callable[Concatenate[_In, ...], Iterator[_Out]]
)
"""A generator function, asynchronous or not."""

ReturnedOutput: TypeAlias = Callable[Concatenate[_In, ...], _Out]
"""Any other function, which runs on threads."""


class LocalOptions(CallOptions, total=False):
    """The options for a stream in this process; `AsyncDataStream.ordered_wait` describes them."""

    key_by: KeyBy | None
    on_error: OnError
    dead_letters: Callable[[DeadLetter], object] | Sink[Any] | None
    state_backend: StateBackend
    timestamps: TimestampsBy | None
    watermark_delay: Duration | None
    clock: Clock | None
    snapshots: str | PathLike[str] | None
    job_id: str | None


class DataFrameOptions(CallOptions, total=False):
    """The options for a Spark DataFrame; `AsyncDataStream.ordered_wait` describes them."""

    output_schema: Required[StructType | str]
    key_by: str | list[str] | None
    on_error: OnError
    dead_letters: Literal["column"] | None
    wait_strategies: WaitStrategiesOption | None


def _wait(
    stream: Any,
    function: AnyFunction,
    *,
    mode: Mode,
    output_schema: StructType | str | None = None,
    key_by: Any = None,
    on_error: OnError = "fail",
    dead_letters: Any = None,
    state_backend: StateBackend = "memory",
    wait_strategies: WaitStrategiesOption | None = None,
    timestamps: TimestampsBy | None = None,
    watermark_delay: Duration | None = None,
    clock: Clock | None = None,
    snapshots: str | PathLike[str] | None = None,
    job_id: str | None = None,
    **options: Unpack[CallOptions],
) -> Any:
    """Return the outputs for a stream, with the parameters of `AsyncDataStream.ordered_wait`."""
    if type(stream).__module__.startswith("pyspark."):
        if state_backend != "memory":
            raise ConfigError("state_backend", state_backend, "keyed state needs snapshots: use AsyncPipeline")
        _refuse("each worker uses its own clock: leave it out", clock=clock)
        reason = "event time on Spark needs a pipeline: use AsyncPipeline's `event_time`"
        _refuse(reason, timestamps=timestamps, watermark_delay=watermark_delay)
        _refuse("snapshots on Spark need a pipeline: use AsyncPipeline", snapshots=snapshots, job_id=job_id)
        from async_op.spark.transform import transform

        return transform(
            stream,
            function,
            mode=mode,
            output_schema=output_schema,
            key_by=key_by,
            on_error=on_error,
            dead_letters=dead_letters,
            wait_strategies=wait_strategies,
            **options,
        )
    _refuse("only a Spark DataFrame needs it: leave it out", output_schema=output_schema)
    reason = "only threads of Spark's tasks wait as it says, an event loop never: leave it out"
    _refuse(reason, wait_strategies=wait_strategies)
    shared: dict[str, Any] = {"mode": mode, "on_error": on_error, "state_backend": state_backend, **options}
    if snapshots is not None or job_id is not None:
        _refuse("a stream with snapshots has none: leave it out", clock=clock)
        from async_op.job.step import Step
        from async_op.stream.job_stream import STEP, job_outputs

        step = Step(function, STEP, key_by=key_by, **shared)
        of_job: dict[str, Any] = {"snapshots": snapshots, "job_id": job_id, "dead_letters": dead_letters}
        return job_outputs(stream, step, timestamps=timestamps, watermark_delay=watermark_delay, **of_job)
    made = OperatorOptions.of(function, key_by=key_getter(key_by), dead_letters=dead_letters, **shared)
    times = timestamps_of(timestamps, watermark_delay)
    vet = Unreadable() if times is not None or has_arrow_stream(stream) else None
    return LocalStream(made, clock, times, vet).outputs(stream)


def _refuse(reason: str, **options: object) -> None:
    """Raise `ConfigError` for the first of these options that was given."""
    for name, given in options.items():
        if given is not None:
            raise ConfigError(name, given, reason)


class WaitMethod(Protocol):
    """What type checkers know of the three methods: which outputs a stream and a function give."""

    @overload
    def __call__(self, stream: DataFrame, function: AnyFunction, **options: Unpack[DataFrameOptions]) -> DataFrame: ...
    @overload
    def __call__(
        self, stream: LocalInput[_In], function: Function[_In, _Out], **options: Unpack[LocalOptions]
    ) -> AsyncGenerator[_Out, None]: ...
    @overload
    def __call__(
        self, stream: LocalInput[_In], function: CoroutineFunction[_In, _Out], **options: Unpack[LocalOptions]
    ) -> AsyncGenerator[_Out, None]: ...
    @overload
    def __call__(
        self, stream: LocalInput[_In], function: YieldedOutputs[_In, _Out], **options: Unpack[LocalOptions]
    ) -> AsyncGenerator[_Out, None]: ...
    @overload
    def __call__(
        self, stream: LocalInput[_In], function: ReturnedOutput[_In, _Out], **options: Unpack[LocalOptions]
    ) -> AsyncGenerator[_Out, None]: ...


def _typed(method: Callable[..., Any]) -> WaitMethod:
    """Return a method with the types of `WaitMethod`, which shows the options of `_wait` and refuses all others."""
    signature = inspect.signature(_wait)
    options = [one for one in signature.parameters.values() if one.name != "mode"]
    method.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    return cast("WaitMethod", takes_call_options(method))


class AsyncDataStream:
    """Applies a function to a stream, with many calls under way at once.

    Notes
    -----
    On a DataFrame, each partition (in a streaming query: each partition of a micro-batch) has its own operator in a
    Python worker. Nothing outlives the partition: it ends only after all calls and their retries. Outputs go to Spark
    in batches of 1,024, or after 0.1 s. Spark runs a failed task again, and its calls are repeated.

    Settings to know:

    - The service sees up to `capacity` calls from each task that runs at once; repartition the DataFrame first to have
      fewer or more tasks.
    - `spark.sql.execution.arrow.maxRecordsPerBatch` (10,000) and `arrow.maxBytesPerBatch` (64 MB) bound an input batch.
      A worker holds one such batch as Arrow data, and at most 1,024 of its rows plus `capacity` rows in flight as
      Python objects. A function with `arrow = True` holds `capacity` rows as Arrow data and no objects. Lower these
      settings for wide rows.
    - `spark.executor.memoryOverhead` or `spark.executor.pyspark.memory` provides the memory of Python workers.
    - `spark.python.worker.reuse` (true) keeps workers and their module globals between tasks; an idle worker ends after
      a minute. The event loop ends with the partition, and so does a client of asyncio, also one from `shared`.
    - `spark.sql.execution.pyspark.udf.idleTimeoutSeconds` may be shorter than a call: a waiting partition signals every
      0.1 s that it is alive, even during the function's `open`.

    Examples
    --------
    >>> import asyncio
    >>> async def double(value):
    ...     return 2 * value
    >>> async def main():
    ...     return [output async for output in AsyncDataStream.ordered_wait(range(3), double)]
    >>> asyncio.run(main())
    [0, 2, 4]
    """

    @staticmethod
    @_typed
    def ordered_wait(stream: Any, function: Any, **options: Any) -> Any:
        """Apply a function and emit outputs in input order (on Spark: within a partition).

        Parameters
        ----------
        stream : iterable, async iterable, table, Source or pyspark.sql.DataFrame
            The elements. The function gets the rows of a DataFrame as dicts, and likewise the rows of any object with
            Arrow's stream interface: pandas and polars data frames, pyarrow tables, DuckDB relations. A collection with
            a size, such as a list, range or set, is read on the event loop. Any other iterable may block, so a separate
            thread reads it some elements ahead; a generator is closed at the end. A `Source` needs `snapshots`.
        function : AsyncFunction, AsyncBatchFunction, BlockingFunction, CallbackFunction or a plain function
            What to invoke for each element; for plain functions see `function`.
        timeout : float or timedelta, optional
            The time budget of an element in seconds, for all its attempts together.
        capacity : int
            The most elements in flight at once (on Spark: rows per partition).
        retry : RetryPolicy, optional
            Which outcomes are retried, and when.
        key_by : callable (not on Spark), column name or list of them
            How to get the key of an element, for dicts by column name. A function with states needs it.
        on_error : {"fail", "skip", "dead_letter"}
            What happens to an element that fails for good.
        dead_letters : callable, or on Spark "column"
            Where dead letters go with `on_error="dead_letter"`: to a callable, as for `AsyncWaitOperator`. On Spark
            they go into a column `dead_letter`, a struct of value and key (as JSON), timestamp, idempotency_key,
            attempts, error_type, error_message and error_traceback. The column is null in rows with outputs, and a row
            with a dead letter has no outputs, so all columns become nullable. `async_op.spark.split_dead_letters`
            separates the two kinds of rows. With `snapshots`: a `Sink`, as for `Job`.
        resilience : Resilience, optional
            A cache, and limits of rate and concurrency. On Spark each partition has its own limits, so divide a rate by
            the number of tasks that run at once.
        state_backend : {"memory"} or DiskStateBackend
            Where keyed state lives, as for `AsyncWaitOperator`; only for a stream in this process.
        wait_strategies : WaitStrategies or dict, optional
            How the threads of Spark's tasks wait for each other, only for a DataFrame; a dict has settings with Storm's
            names. By default they park.
        timestamps : callable or column name, optional
            How to get the timestamp of an element: milliseconds since the epoch, a datetime (without a time zone it is
            in UTC), either of them as text, or None. Then `ctx` has it, and event time passes: before each element that
            is later than all others, a watermark goes in. No output passes a watermark, and timers of event time fire
            before it leaves. The calls for later elements may begin before that; with `capacity=1` they do not. At the
            end of the stream all timers of event time fire, so one that always registers the next one never ends. Late
            elements are called for like all others.
            With `snapshots`, watermarks go in five times a second instead. A `Source` gives its timestamps itself. Only
            for a stream in this process: `AsyncPipeline` has `event_time`.
        watermark_delay : float or timedelta, optional
            By how many seconds an element may come after a later one; by default elements come in order. The watermark
            stays as far behind.
        clock : Clock, optional
            For tests, and only for a stream in this process; the event loop's clock by default.
        snapshots : str or path, optional
            Where to keep snapshots: an fsspec URI or a local path. With `snapshots` and `job_id`, a `Job` of one step
            calls the function, and you get the outputs of an epoch once they are committed, about every second. An
            epoch counts as taken when you ask for the output after its last one. If you leave early, the job stops at a
            cut. The next iteration over the same stream, under the same `job_id`, first gives all outputs of the
            epochs that were not taken completely, then continues. After a crash it continues from the newest snapshot.
            So you get each output at least once, and no finished call in the snapshot is repeated. Outputs must be
            storable, and the stream must give the same elements again, or be a `Source`. Not with `clock`, and not for
            a DataFrame: use `AsyncPipeline`.
        job_id : str, optional
            The name of the job's folder in `snapshots`.
        output_schema : StructType or DDL string
            The schema of the outputs; required for a DataFrame, and only for a DataFrame.

        Returns
        -------
        async generator or pyspark.sql.DataFrame
            The outputs. To leave the generator early, close it with `contextlib.aclosing`: until then calls continue.

        Raises
        ------
        ConfigError
            An argument is invalid.
        ElementFailed, AsyncTimeoutError
            While you iterate: an element has failed for good, and `on_error` is "fail".
        """
        return _wait(stream, function, mode="ordered", **options)

    @staticmethod
    @_typed
    def unordered_wait(stream: Any, function: Any, **options: Any) -> Any:
        """Apply a function and emit outputs as their calls return. The options are as in `ordered_wait`."""
        return _wait(stream, function, mode="unordered", **options)

    @staticmethod
    @_typed
    def key_ordered_wait(stream: Any, function: Any, **options: Any) -> Any:
        """Apply a function and keep input order within each key. The options are as in `ordered_wait`."""
        return _wait(stream, function, mode="key_ordered", **options)
