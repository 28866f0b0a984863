"""The stateless transform: a lazy DataFrame whose partitions each run an operator; an element is a row or a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, TypeAlias, Unpack

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from async_op.calls.checked_outputs import with_checked_outputs
from async_op.calls.value_checks import Unreadable
from async_op.connectors.arrow_input import readable_rows_of, slices_of
from async_op.dead_letters import InPlace, OnError
from async_op.elements import Element, Record, Watermark
from async_op.functions.base import AsyncBatchFunction, AsyncFunction, Function
from async_op.functions.context import InvocationContext
from async_op.functions.plain import AnyFunction, as_function
from async_op.functions.runtime import Runtime
from async_op.operator.operator import AsyncWaitOperator
from async_op.operator.subtask_info import SubtaskInfo
from async_op.options import CallOptions, Mode, OperatorOptions
from async_op.spark.rows.arrow_outputs import OutputWriter
from async_op.spark.rows.dead_letter_column import DeadLetters, batches_in_place, rows_in_place, schema_with_letters
from async_op.spark.rows.keys import key_columns, key_getter, names_of
from async_op.spark.rows.schemas import arrow_schema, check_input_columns, parse_schema
from async_op.spark.task.operator_thread import OUTPUTS_AT_ONCE, OperatorThread
from async_op.spark.task.pickling import check_pickles
from async_op.spark.worker_python import check_workers
from async_op.threads.garbage import quick_collections
from async_op.threads.wait_strategies import WaitStrategies, WaitStrategiesOption, as_wait_strategies
from keygroups.errors import ConfigError, KeyGroupsError, as_sent
from keygroups.spark.partitions import flusher, map_in_arrow


def transform(
    frame: DataFrame,
    function: AnyFunction,
    *,
    mode: Mode,
    output_schema: StructType | str | None = None,
    key_by: str | list[str] | None = None,
    on_error: OnError = "fail",
    dead_letters: DeadLetters | None = None,
    wait_strategies: WaitStrategiesOption | None = None,
    **options: Unpack[CallOptions],
) -> DataFrame:
    """Apply a function to each row of a DataFrame, batch or streaming; nothing is kept after the end of a partition.

    Raises
    ------
    ConfigError
        The function declares state or timers, which need `AsyncPipeline`, or an argument can never work.
    UnpicklableFunction
        The function holds what cannot be sent to the executors.
    UnsuitableWorkerPython, ModuleNotOnWorkers
        On a local master: Spark's workers cannot run the function.
    """
    function = as_function(function)
    if function.states or function.operator_states or function.has_timers:
        reason = "state and timers need snapshots: use async_op.spark.AsyncPipeline"
        raise ConfigError("function", function, reason)
    keys = () if key_by is None else key_columns(frame.schema, names_of("key_by", key_by))
    check_input_columns(frame.schema)
    check_arrow(function, key_by, mode)
    schema = schema_with_letters(parse_schema(output_schema), on_error, dead_letters)
    writer = OutputWriter(arrow_schema(frame.sparkSession, schema))
    made = OperatorOptions.of(function, mode=mode, key_by=key_getter(keys), **options)
    elements = elements_of(function, made.capacity, writer)
    letters = elements.dead_letters() if on_error == "dead_letter" else None
    made = replace(made, on_error=on_error, dead_letters=letters)
    if made.resilience is not None and made.resilience.budgets:
        reason = "each partition would spend all of it: use async_op.spark.AsyncPipeline, whose subtasks share it"
        raise ConfigError("budget", made.resilience.budget, reason)
    task = PartitionTask(elements, made, as_wait_strategies(wait_strategies))
    task.make_operator(lambda _: None)  # refuses here, on the driver, what can never work
    check_pickles(made, task.wait_strategies)
    check_workers(frame.sparkSession, task)
    return map_in_arrow(frame, task, schema)


@dataclass(frozen=True)
class RowElements:
    """An element is a row, as a dict; its outputs are rows, as dicts or tuples.

    Attributes
    ----------
    row_function : Function
        The function, which takes one row.
    capacity : int
        The number of rows that may be in flight.
    writer : OutputWriter
        Makes batches of output rows.
    """

    row_function: Function
    capacity: int
    writer: OutputWriter
    outputs_at_once = OUTPUTS_AT_ONCE

    def function(self) -> Function:
        """Return the function as the operator calls it, with its outputs checked."""
        return with_checked_outputs(self.row_function, self.writer)

    def elements_in(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Iterable[Element]]:
        """Return the elements, in portions that are fed together."""
        for part in slices_of(batches):
            yield zip(readable_rows_of(part), repeat(None), repeat(None), strict=False)

    def batches_of(self, outputs: Sequence[Any]) -> list[pa.RecordBatch]:
        """Return output rows as one batch, or as several if they are too large for one."""
        return self.writer.batches_of(outputs)

    def dead_letters(self) -> InPlace:
        """Return what turns a failed element into one row with only its dead letter."""
        return rows_in_place()


@dataclass(frozen=True)
class BatchElements:
    """An element is a record batch; its output is one, too.

    Attributes
    ----------
    batch_function : AsyncBatchFunction
        The function, with `arrow = True`.
    rows : int
        How many rows may be in flight; one batch always may.
    writer : OutputWriter
        Checks output batches.
    """

    batch_function: AsyncBatchFunction
    rows: int
    writer: OutputWriter
    outputs_at_once = 1

    def function(self) -> Function:
        """Return the function as the operator calls it, with its outputs checked."""
        return ArrowFunction(self.batch_function, self.writer)

    @property
    def capacity(self) -> int:
        """The number of batches that may be in flight."""
        return max(1, self.rows // self.batch_function.max_batch_size)

    def elements_in(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Iterable[Element]]:
        """Return the elements, in portions that are fed together."""
        for batch in recut(batches, self.batch_function.max_batch_size):
            yield ((batch, None, None),)

    def batches_of(self, outputs: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """Return output batches as they are."""
        return outputs

    def dead_letters(self) -> InPlace:
        """Return what turns a failed element into a batch with a dead letter for each of its rows."""
        return batches_in_place(self.writer)


PartitionElements: TypeAlias = RowElements | BatchElements


def elements_of(function: Function, capacity: int, writer: OutputWriter) -> PartitionElements:
    """Return the kind of elements that a function takes: record batches with `arrow = True`, else rows."""
    if isinstance(function, AsyncBatchFunction) and function.arrow:
        return BatchElements(function, capacity, writer)
    return RowElements(function, capacity, writer)


@dataclass(frozen=True)
class PartitionTask:
    """An operator for one partition, run by `mapInArrow` in a Python worker.

    Attributes
    ----------
    elements : PartitionElements
        What an element is: a row or a record batch.
    options : OperatorOptions
        The options of the operator, with the user's function.
    wait_strategies : WaitStrategies
        How the threads of the task wait for each other.
    """

    elements: PartitionElements
    options: OperatorOptions
    wait_strategies: WaitStrategies

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the operator; yields its outputs, and empty batches as signs of life."""
        flush = flusher()
        (empty,) = self.elements.writer.batches_of(())
        try:
            at_once = self.elements.outputs_at_once
            with (
                quick_collections(),
                OperatorThread(self.make_operator, self.wait_strategies, outputs_at_once=at_once) as thread,
            ):
                for outputs in thread.run(self.elements.elements_in(batches)):
                    yield from self.elements.batches_of(outputs) if outputs else [empty]
                    flush()
        except KeyGroupsError as failure:
            # PySpark sends the text of the traceback: the relevant one is the user's function's.
            raise as_sent(failure).with_traceback(None) from None

    def make_operator(self, output: Callable[[Record | Watermark], object]) -> AsyncWaitOperator:
        """Return the operator for one partition."""
        options = replace(self.options, function=self.elements.function(), capacity=self.elements.capacity)
        return AsyncWaitOperator.of(options, output, subtask_info=SubtaskInfo(vet=Unreadable(are_decoded=True)))


class ArrowFunction(AsyncFunction):
    """A function of record batches as the operator sees it: each batch is one element with one output.

    Parameters
    ----------
    function : AsyncBatchFunction
        The user's function, with `arrow = True`.
    writer : OutputWriter
        Checks the batches that it returns.
    """

    def __init__(self, function: AsyncBatchFunction, writer: OutputWriter) -> None:
        self._function = function
        self._writer = writer

    async def open(self, runtime: Runtime) -> None:
        """Open the function."""
        await self._function.open(runtime)

    async def async_invoke(self, value: pa.RecordBatch, ctx: InvocationContext) -> list[pa.RecordBatch]:
        """Invoke the function for a batch."""
        invoke: Any = self._function.async_invoke_batch
        return [self._writer.fit(await invoke(value, ctx))]

    async def timeout(self, value: pa.RecordBatch, ctx: InvocationContext) -> list[pa.RecordBatch]:
        """Ask the function for the fallback of a batch that timed out."""
        return [self._writer.fit(await self._function.timeout(value, ctx))]

    async def close(self) -> None:
        """Close the function."""
        await self._function.close()


def recut(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Cut and join batches so that all but the last have `size` rows; only joined rows are copied."""
    parts: list[pa.RecordBatch] = []
    missing = size
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, missing)
            parts.append(part)
            start += part.num_rows
            missing -= part.num_rows
            if not missing:
                yield _joined(parts)
                parts, missing = [], size
    if parts:
        yield _joined(parts)


def check_arrow(function: Function, key_by: str | list[str] | None, mode: str) -> None:
    """Raise `ConfigError` if a function of record batches is used with keys."""
    if not isinstance(function, AsyncBatchFunction) or not function.arrow:
        return
    if key_by is not None or mode == "key_ordered":
        raise ConfigError("function", function, "a record batch has many keys: set arrow = False, or pass no key_by")


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
