"""The stateless transform: a lazy DataFrame whose partitions each run an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from async_op.dead_letters import OnError
from async_op.elements import Record, Watermark
from async_op.errors import ElementFailed
from async_op.functions import AsyncBatchFunction, Function
from async_op.operator import AsyncWaitOperator
from async_op.retry import RetryPolicy
from async_op.settings import Mode
from async_op.spark.arrow import check_arrow
from async_op.spark.dead_letters import DeadLetters, schema_with_letters
from async_op.spark.formats import ArrowFormat, Format, RowFormat
from async_op.spark.loop import OperatorThread
from async_op.spark.rows import OutputWriter, key_getter
from async_op.spark.task_output import flusher
from keygroups.errors import ConfigError


def transform(
    frame: DataFrame,
    function: Function,
    *,
    mode: Mode,
    output_schema: StructType | str,
    timeout: float | None = None,
    capacity: int = 100,
    key_by: str | list[str] | None = None,
    retry: RetryPolicy | None = None,
    on_error: OnError = "fail",
    dead_letters: DeadLetters | None = None,
) -> DataFrame:
    """Apply a function to each row of a DataFrame, batch or streaming; nothing survives a partition's end.

    Raises
    ------
    ConfigError
        The function declares keyed state or timers, which need `AsyncPipeline`, or an argument can never work.
    """
    if function.states or function.has_timers:
        reason = "keyed state and timers need snapshots: use async_op.spark.AsyncPipeline"
        raise ConfigError("function", function, reason)
    check_columns(frame, "key_by", key_by)
    check_arrow(function, key_by, mode)
    schema = schema_with_letters(parse_schema(output_schema), on_error, dead_letters)
    writer = OutputWriter(arrow_schema(frame.sparkSession, schema))
    task = _PartitionTask(_format_of(function, capacity, writer), mode, timeout, key_by, retry, on_error)
    task.make_operator(lambda _: None)  # so that what can never work is refused here
    return frame.mapInArrow(task, schema)


def parse_schema(schema: StructType | str) -> StructType:
    """Return a schema given as such or as a DDL string."""
    parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, StructType):
        raise ConfigError("output_schema", schema, "name the columns, as in 'id bigint, city string'")
    return parsed


def arrow_schema(spark: SparkSession, schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark takes rows; timestamps are in the session's time zone."""
    return to_arrow_schema(schema, timezone=str(spark.conf.get("spark.sql.session.timeZone")))


def check_columns(frame: DataFrame, argument: str, columns: str | list[str] | None) -> None:
    """Raise `ConfigError` unless the frame has the columns."""
    for column in [columns] if isinstance(columns, str) else columns or []:
        if column not in frame.columns:
            raise ConfigError(argument, column, f"the columns are {frame.columns}")


def _format_of(function: Function, capacity: int, writer: OutputWriter) -> Format:
    if isinstance(function, AsyncBatchFunction) and function.arrow:
        return ArrowFormat(function, capacity, writer)
    return RowFormat(function, capacity, writer)


@dataclass(frozen=True)
class _PartitionTask:
    """What each Python worker runs."""

    format: Format
    mode: Mode
    timeout: float | None
    key_by: str | list[str] | None
    retry: RetryPolicy | None
    on_error: OnError

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        flush = flusher()
        empty = self.format.writer.batch_of(())
        try:
            with OperatorThread(self.make_operator, outputs_at_once=self.format.outputs_at_once) as thread:
                for outputs in thread.run(self.format.elements(batches)):
                    yield from self.format.batches_of(outputs) if outputs else [empty]
                    flush()
        except ElementFailed as failure:
            # The driver gets one traceback only: let it be that of the user's function.
            cause = failure.__cause__
            raise failure.with_traceback(None if cause is None else cause.__traceback__)  # noqa: B904 - it is the same

    def make_operator(self, output: Callable[[Record | Watermark], object]) -> AsyncWaitOperator:
        """Return the operator for one partition."""
        return AsyncWaitOperator(
            self.format.function(),
            output,
            mode=self.mode,
            capacity=self.format.capacity,
            timeout=self.timeout,
            retry=self.retry,
            key_by=key_getter(self.key_by),
            on_error=self.on_error,
            dead_letters=self.format.dead_letters() if self.on_error == "dead_letter" else None,
        )
