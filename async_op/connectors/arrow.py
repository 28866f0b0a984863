"""Outputs of a job as Arrow batches, without losing a field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from async_op.connectors.errors import UnwritableValue

ROWS_AT_ONCE = 8192
"""How many outputs become one batch."""


def names_of(values: Sequence[Any]) -> list[str]:
    """Return the names of all fields, in the order in which they first appear; raises `UnwritableValue` without any."""
    names: dict[str, None] = {}
    for value in values:
        names |= dict.fromkeys(_fields(value))
    return list(names)


def schema_of(values: Sequence[Any]) -> pa.Schema:
    """Return a schema in which all outputs fit: the fields of all of them, in the order in which they first appear.

    Raises
    ------
    UnwritableValue
        An output is not a dict with text as keys, or two outputs have different types under one name.
    """
    columns: dict[str, list[Any]] = {}
    for value in values:
        for name, field in _fields(value).items():
            columns.setdefault(name, []).append(field)
    return pa.schema([(name, _type_of(name, column)) for name, column in columns.items()])


def batches_of(values: Sequence[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield outputs as batches of bounded size; a field that an output does not have is null.

    Raises
    ------
    UnwritableValue
        An output has a field that the schema does not have, or one that does not fit into its type.
    """
    names = set(schema.names)
    for start in range(0, len(values), ROWS_AT_ONCE):
        rows = values[start : start + ROWS_AT_ONCE]
        for row in rows:
            if unknown := _fields(row).keys() - names:
                raise UnwritableValue(row, f"there is no column {min(unknown)!r}")
        yield _batch(rows, schema)


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns of a schema, by name; a column that it does not have is null.

    Raises
    ------
    UnwritableValue
        It has a column that the schema does not have, or one whose values do not fit.
    """
    if unknown := set(batch.schema.names) - set(schema.names):
        raise UnwritableValue(batch, f"there is no column {min(unknown)!r}")
    have = set(batch.schema.names)
    try:
        columns = [
            batch.column(field.name).cast(field.type) if field.name in have else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    except pa.ArrowException as error:
        raise UnwritableValue(batch, f"it does not fit into the columns: {error}") from error


def _batch(rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    try:
        return pa.RecordBatch.from_pylist(list(rows), schema=schema)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        wrong = next((row for row in rows if not _fits(row, schema)), rows[0])
        raise UnwritableValue(wrong, f"it does not fit into the columns: {error}") from error


def _fits(row: Any, schema: pa.Schema) -> bool:
    try:
        pa.RecordBatch.from_pylist([row], schema=schema)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return False
    return True


def _fields(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise UnwritableValue(value, "it is no dict of columns")
    return value


def _type_of(name: str, column: list[Any]) -> pa.DataType:
    try:
        return pa.infer_type(column)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise UnwritableValue(column[0], f"the type of {name!r} differs from output to output: {error}") from error
