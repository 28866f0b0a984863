"""The entry point for streams: an iterable in this process, or a Spark DataFrame."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Required, TypeAlias, TypedDict, Unpack, overload

from async_op.dead_letters import DeadLetter, OnError
from async_op.elements import Record, Watermark
from async_op.functions import Function
from async_op.operator import AsyncWaitOperator
from async_op.resilience import Resilience
from async_op.retry import RetryPolicy
from async_op.settings import Mode, StateBackend
from keygroups.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Stream: TypeAlias = Iterable[Any] | AsyncIterable[Any]


class StreamOptions(TypedDict, total=False):
    """The options for a stream in this process."""

    timeout: float | None
    capacity: int
    retry: RetryPolicy | None
    key_by: Callable[[Any], Hashable] | None
    on_error: OnError
    dead_letters: Callable[[DeadLetter], object] | None
    resilience: Resilience | None
    state_backend: StateBackend


class FrameOptions(TypedDict, total=False):
    """The options for a DataFrame."""

    output_schema: Required[StructType | str]
    timeout: float | None
    capacity: int
    retry: RetryPolicy | None
    key_by: str | list[str] | None
    on_error: OnError
    dead_letters: Literal["column"] | None
    resilience: Resilience | None


class AsyncDataStream:
    """Applies an `AsyncFunction` to a stream, many calls at once.

    Notes
    -----
    On a DataFrame each partition (of a streaming query: each partition of a micro-batch) has an operator of its own
    in a Python worker. Nothing outlives the partition: its end waits for all calls, with their retries. Outputs go on
    to Spark in batches of 1,024, or after 0.1 s. A failed task is run again by Spark, and its calls with it.

    What there is to set:

    - `capacity` times the number of tasks that run at once is what the service sees; repartition the DataFrame before
      to have fewer or more of them.
    - `spark.sql.execution.arrow.maxRecordsPerBatch` (10,000) and `arrow.maxBytesPerBatch` (64 MB) bound an input batch.
      A worker holds one of them as Arrow, at most 1,024 rows of it and `capacity` rows in flight as Python objects;
      a function with `arrow = True` holds `capacity` rows as Arrow and no objects. Lower them for wide rows.
    - `spark.executor.memoryOverhead`, or `spark.executor.pyspark.memory`, is where the memory of workers comes from.
    - `spark.python.worker.reuse` (true) keeps workers between tasks, and with them what a module holds globally, such
      as a client that is made on first use; an idle worker ends after a minute.
    - `spark.sql.execution.pyspark.udf.idleTimeoutSeconds` may be shorter than a call: a partition that waits, also for
      the function's `open`, shows every 0.1 s that it is alive.

    Examples
    --------
    >>> import asyncio
    >>> class Double(AsyncFunction):
    ...     async def async_invoke(self, value, ctx):
    ...         return [2 * value]
    >>> async def main():
    ...     return [output async for output in AsyncDataStream.ordered_wait(range(3), Double())]
    >>> asyncio.run(main())
    [0, 2, 4]
    """

    @overload
    @staticmethod
    def ordered_wait(stream: DataFrame, function: Function, **options: Unpack[FrameOptions]) -> DataFrame: ...

    @overload
    @staticmethod
    def ordered_wait(stream: Stream, function: Function, **options: Unpack[StreamOptions]) -> AsyncIterator[Any]: ...

    @staticmethod
    def ordered_wait(stream: Any, function: Function, **options: Any) -> Any:
        """Apply a function; outputs keep the order of the inputs (on Spark: within a partition).

        Parameters
        ----------
        stream : iterable, async iterable or pyspark.sql.DataFrame
            The elements. A DataFrame's rows reach the function as dicts.
        function : AsyncFunction, AsyncBatchFunction, BlockingFunction or CallbackFunction
            What to invoke for each element.
        timeout : float, optional
            Seconds for all attempts at an element together.
        capacity : int
            Elements in flight at once (on Spark: rows per partition).
        retry : RetryPolicy, optional
            Which outcomes are tried again, and when.
        key_by : callable, or on Spark a column name or a list of them
            The element's key; needed by a function that declares states.
        on_error : {"fail", "skip", "dead_letter"}
            What becomes of an element that fails for good.
        dead_letters : callable, or on Spark "column"
            Where dead letters go, with `on_error="dead_letter"`: to a callable, as for `AsyncWaitOperator`. On Spark
            into a column `dead_letter`, a struct of value and key (as JSON), timestamp, idempotency_key, attempts,
            error_type and error_message. It is null beside outputs; a row that has it has no outputs, so all columns
            become nullable. `async_op.spark.split_dead_letters` makes two DataFrames of one.
        resilience : Resilience, optional
            A cache, and limits of rate and concurrency. On Spark each partition has its own, so divide a rate by the
            number of tasks that run at once.
        state_backend : {"memory"} or DiskStateBackend
            Only for a stream in this process: where keyed state is while it runs, as for `AsyncWaitOperator`.
        output_schema : StructType or DDL string
            Only for a DataFrame: the schema of the outputs.

        Returns
        -------
        async iterator or pyspark.sql.DataFrame
            The outputs.

        Raises
        ------
        ConfigError
            An argument can never work.
        """
        return _apply(stream, function, "ordered", options)

    @overload
    @staticmethod
    def unordered_wait(stream: DataFrame, function: Function, **options: Unpack[FrameOptions]) -> DataFrame: ...

    @overload
    @staticmethod
    def unordered_wait(stream: Stream, function: Function, **options: Unpack[StreamOptions]) -> AsyncIterator[Any]: ...

    @staticmethod
    def unordered_wait(stream: Any, function: Function, **options: Any) -> Any:
        """Apply a function; outputs come as their calls return. Parameters as for `ordered_wait`."""
        return _apply(stream, function, "unordered", options)

    @overload
    @staticmethod
    def key_ordered_wait(stream: DataFrame, function: Function, **options: Unpack[FrameOptions]) -> DataFrame: ...

    @overload
    @staticmethod
    def key_ordered_wait(
        stream: Stream, function: Function, **options: Unpack[StreamOptions]
    ) -> AsyncIterator[Any]: ...

    @staticmethod
    def key_ordered_wait(stream: Any, function: Function, **options: Any) -> Any:
        """Apply a function; outputs of one key keep the order of its inputs. Parameters as for `ordered_wait`."""
        return _apply(stream, function, "key_ordered", options)


def _apply(stream: Any, function: Function, mode: Mode, options: dict[str, Any]) -> Any:
    if type(stream).__module__.startswith("pyspark."):
        from async_op.spark.transform import transform

        return transform(stream, function, mode=mode, **options)
    if not isinstance(stream, Iterable | AsyncIterable):
        raise ConfigError("stream", stream, "pass an iterable, an async iterable or a Spark DataFrame")
    return _LocalRun(function, mode, **options).outputs(stream)


class _LocalRun:
    """Feeds an operator from a stream and hands out what leaves it, at the pace of whoever iterates."""

    def __init__(self, function: Function, mode: Mode, *, capacity: int = 100, **options: Any) -> None:
        self._operator = AsyncWaitOperator(function, self._keep, mode=mode, capacity=capacity, **options)
        self._capacity = capacity
        self._kept = deque[Any]()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()

    async def outputs(self, stream: Stream) -> AsyncIterator[Any]:
        """Yield the outputs; closes the operator however the iteration ends."""
        feeder = None
        try:
            await self._operator.open()
            feeder = asyncio.create_task(self._feed(stream), name="keygroups feeder")
            feeder.add_done_callback(lambda _: self._changed.set())
            while True:
                while self._kept:
                    yield self._kept.popleft()
                self._taken.set()
                if feeder.done():
                    await feeder
                    if not self._kept:
                        return
                await self._changed.wait()
                self._changed.clear()
        finally:
            if feeder is not None:
                feeder.cancel()
                await asyncio.gather(feeder, return_exceptions=True)
            await self._operator.close()

    def _keep(self, element: Record | Watermark) -> None:
        assert isinstance(element, Record), "no watermark was put in"
        self._kept.append(element.value)
        self._changed.set()

    async def _feed(self, stream: Stream) -> None:
        process = self._operator.process
        if isinstance(stream, AsyncIterable):
            async for value in stream:
                await process(value)
                await self._wait_for_taker()
        else:
            for value in stream:
                await process(value)
                await self._wait_for_taker()
        await self._operator.finish()

    async def _wait_for_taker(self) -> None:
        while len(self._kept) >= self._capacity:
            self._taken.clear()
            await self._taken.wait()
