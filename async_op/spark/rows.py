"""Rows between Spark's Arrow batches and the values of a function: dicts in, dicts or tuples out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from async_op.spark.errors import OutputMismatch


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Return the rows as dicts, converted column by column."""
    names = batch.schema.names
    columns = [column.to_pylist() for column in batch.columns]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def key_getter(key_by: str | list[str] | None) -> Callable[[dict[str, Any]], Hashable] | None:
    """Return the function from a row to its key: a value, or a tuple for several columns."""
    if key_by is None:
        return None
    return itemgetter(*([key_by] if isinstance(key_by, str) else key_by))


def batch_of(outputs: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return the outputs as one batch of exactly this schema.

    Raises
    ------
    OutputMismatch
        An output has another shape, or a value another type.
    """
    names = schema.names
    rows = [_row(output, names) for output in outputs]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    arrays = [_array(column, field, outputs) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _row(output: Any, names: list[str]) -> tuple[Any, ...]:
    if isinstance(output, Mapping):
        unknown = output.keys() - set(names)
        if unknown:
            raise OutputMismatch(output, str(min(unknown)), "there is no such column")
        return tuple(output.get(name) for name in names)
    if not isinstance(output, tuple):
        raise OutputMismatch(output, None, f"it is a {type(output).__name__}")
    if len(output) != len(names):
        raise OutputMismatch(output, None, f"{len(output)} values for {len(names)} columns")
    return output


def _array(values: tuple[Any, ...], field: pa.Field, outputs: Sequence[Any]) -> pa.Array:
    try:
        array = pa.array(values, field.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        for output, value in zip(outputs, values, strict=True):
            _check_value(output, value, field)
        raise
    if array.null_count and not field.nullable:
        raise OutputMismatch(outputs[values.index(None)], field.name, "null in a column that is not nullable")
    return array


def _check_value(output: Any, value: Any, field: pa.Field) -> None:
    try:
        pa.array([value], field.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise OutputMismatch(output, field.name, f"{error} (wanted {field.type})") from error
