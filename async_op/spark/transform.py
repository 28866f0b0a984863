"""The stateless transform: a lazy DataFrame whose partitions each run an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from async_op.elements import Record, Watermark
from async_op.functions import Function
from async_op.operator import AsyncWaitOperator
from async_op.retry import RetryPolicy
from async_op.settings import Mode
from async_op.spark.loop import OperatorThread
from async_op.spark.rows import batch_of, key_getter, rows_of
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
) -> DataFrame:
    """Apply a function to each row of a DataFrame, batch or streaming; nothing survives a partition's end.

    Raises
    ------
    ConfigError
        The function declares keyed state, which needs `AsyncPipeline`, or a key column does not exist.
    """
    if function.states:
        raise ConfigError("function", function, "keyed state needs snapshots: use async_op.spark.AsyncPipeline")
    schema = parse_schema(output_schema)
    check_columns(frame, "key_by", key_by)
    task = _PartitionTask(function, arrow_schema(frame.sparkSession, schema), mode, timeout, capacity, key_by, retry)
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


@dataclass(frozen=True)
class _PartitionTask:
    """What each Python worker runs."""

    function: Function
    output_schema: pa.Schema
    mode: Mode
    timeout: float | None
    capacity: int
    key_by: str | list[str] | None
    retry: RetryPolicy | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        source = (((row, None) for row in rows_of(batch)) for batch in batches)
        with OperatorThread(self._make_operator) as thread:
            for outputs in thread.run(source):
                yield batch_of(outputs, self.output_schema)

    def _make_operator(self, output: Callable[[Record | Watermark], object]) -> AsyncWaitOperator:
        return AsyncWaitOperator(
            self.function,
            output,
            mode=self.mode,
            capacity=self.capacity,
            timeout=self.timeout,
            retry=self.retry,
            key_by=key_getter(self.key_by),
        )
