"""Parquet files: their rows from any row on, and the content of a file with outputs."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from async_op.connectors.arrow_input import BYTES_AT_ONCE, ROWS_AT_ONCE, rows_of
from async_op.connectors.arrow_output import batches_of, schema_of
from async_op.connectors.errors import BrokenFile, FileShrank, MalformedRecord, UnwritableValue
from async_op.connectors.files.compression import Damaged, Incomplete
from async_op.connectors.files.text import Block
from async_op.connectors.source import Read, Undecodable
from keygroups.errors import ConfigError, KeyGroupsError

_SPARK = b"org.apache.spark.version"
"""What files have in their metadata that Spark has written."""
_INT96 = "INT96"

_NO_VALUE = (ValueError, KeyError, OverflowError, pa.ArrowException, KeyGroupsError)


def parquet_blocks(file: Any, path: str, position: int, *, grows: bool) -> Iterator[Block]:
    """Yield the rows from a position on, in blocks of bounded size; row groups before it are not read.

    Raises
    ------
    Incomplete
        The file has no footer, and may get one because it grows.
    Damaged
        It is no Parquet file, or a part of it cannot be read.
    BrokenFile
        Two columns have one name.
    FileShrank
        It has fewer rows than the position says.
    """
    from pyarrow import parquet  # not loaded by programs that read other files

    try:
        opened = parquet.ParquetFile(file)
        zoned = _zoned_by_spark(opened)
        if zoned is not None:
            opened = parquet.ParquetFile(file, metadata=opened.metadata, coerce_int96_timestamp_unit="us")
    except pa.ArrowInvalid as error:
        if grows:
            raise Incomplete from error
        raise Damaged(f"no Parquet file: {error}") from error
    with opened:
        names = opened.schema_arrow.names
        if len(set(names)) < len(names):
            raise BrokenFile(path, 0, f"two columns have one name: {names}")
        if opened.metadata.num_rows < position:
            raise FileShrank(path, position)
        try:
            yield from _rows_from(opened, path, position, zoned)
        except (OSError, pa.ArrowException) as error:
            if getattr(error, "errno", None) or type(error) not in (OSError, pa.ArrowInvalid, pa.ArrowException):
                raise  # the storage's own
            raise Damaged(str(error)) from error


def _zoned_by_spark(opened: Any) -> pa.Schema | None:
    """Return the schema of a file with times of Spark, whose form is INT96 by default; None for any other file.

    Arrow reads INT96 as nanoseconds without a zone, because some writers store local times. Spark stores microseconds
    of UTC, also in years that nanoseconds do not reach.
    """
    if _SPARK not in (opened.metadata.metadata or {}):
        return None
    physical = [opened.schema.column(number).physical_type for number in range(len(opened.schema))]
    if _INT96 not in physical:
        return None
    leaves = iter(physical)
    return pa.schema([field.with_type(_zoned(field.type, leaves)) for field in opened.schema_arrow])


def _zoned(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    """Return a type with a zone for each time of Spark in it; `leaves` are the forms of its leaves, in their order."""

    def within(field: pa.Field) -> pa.Field:
        return field.with_type(_zoned(field.type, leaves))

    if types.is_struct(kind):
        return pa.struct([within(kind.field(number)) for number in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(within(kind.key_field), within(kind.item_field))
    if types.is_list(kind):
        return pa.list_(within(kind.value_field))
    return pa.timestamp("us", "UTC") if next(leaves) == _INT96 else kind


def _rows_from(opened: Any, path: str, position: int, zoned: pa.Schema | None) -> Iterator[Block]:
    first_row = 0
    for number in range(opened.metadata.num_row_groups):
        group = opened.metadata.row_group(number)
        end = first_row + group.num_rows
        if position < end:
            row = first_row
            rows = max(1, min(ROWS_AT_ONCE, group.num_rows * BYTES_AT_ONCE // max(group.total_byte_size, 1)))
            for read in opened.iter_batches(rows, row_groups=[number]):
                batch = read if zoned is None else _cast(read, zoned)
                rest = batch.slice(max(position - row, 0))
                row += batch.num_rows
                if rest.num_rows:
                    yield _block(rest, path, row - rest.num_rows)
        first_row = end


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(batch.columns, schema.types, strict=True)
    return pa.RecordBatch.from_arrays([column.cast(kind) for column, kind in columns], schema=schema)


def _block(batch: pa.RecordBatch, path: str, first: int) -> Block:
    try:
        rows = list(rows_of(batch))
    except _NO_VALUE:
        return [_row(batch.slice(number, 1), path, first + number) for number in range(batch.num_rows)]
    return [(row, None, position) for position, row in enumerate(rows, first + 1)]


def _row(row: pa.RecordBatch, path: str, number: int) -> Read[Any]:
    """Return one row of a batch in which a value has no form in Python."""
    raw: dict[str, Any] = {}
    reason = ""
    for name, column in zip(row.schema.names, row.columns, strict=True):
        one = pa.RecordBatch.from_arrays([column], [name])
        try:
            raw |= next(rows_of(one))
        except _NO_VALUE as error:
            reason = reason or f"column {name!r} ({column.type}): {_reason_of_value(error)}"
            raw[name] = _raw_of(column)
    if not reason:
        return raw, None, number + 1
    return Undecodable(raw, number + 1, MalformedRecord(path, number, reason))


def _reason_of_value(error: Exception) -> str:
    if type(error) is KeyError:
        return "a map has a key twice"
    if isinstance(error, ConfigError):
        return error.reason  # it names the column, too
    return f"there is no time zone {error} here" if isinstance(error, KeyError) else str(error)


def _raw_of(column: pa.Array) -> Any:
    """Return the bytes of text, the number behind a time, or the pairs of a map; else the name of the type."""
    for kind in (pa.large_binary(), pa.int64(), pa.int32(), column.type):
        try:
            return column.cast(kind).to_pylist()[0]
        except _NO_VALUE:
            continue
    return str(column.type)


def parquet_of(values: Sequence[Any], schema: Any) -> bytes:
    """Return the content of a file with these outputs; without a schema, their own columns.

    Raises
    ------
    UnwritableValue
        An output does not fit into the columns.
    """
    from pyarrow import parquet  # as above

    if schema is None:
        schema = schema_of(values, partial=True)
        _check_structs(schema, values)
    content = io.BytesIO()
    with parquet.ParquetWriter(content, schema) as writer:
        for batch in batches_of(values, schema):
            writer.write_batch(batch)
    return content.getvalue()


def _check_structs(schema: Any, values: Sequence[Any]) -> None:
    """Raise for a column of dicts that are all empty, for which Parquet has no type."""
    for field in schema:
        if _has_empty_struct(field.type):
            index = next(index for index, value in enumerate(values) if value.get(field.name) is not None)
            reason = "it is or holds a dict that is empty in all rows, so it has no fields; pass a schema"
            raise UnwritableValue(values[index], reason, column=field.name, index=index)


def _has_empty_struct(type_: Any) -> bool:
    if types.is_struct(type_) and not type_.num_fields:
        return True
    return any(_has_empty_struct(type_.field(at).type) for at in range(type_.num_fields))
