"""Rows of Parquet files, from any row on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from async_op.arrow_stream import ROWS_AT_ONCE, rows_of
from async_op.connectors.errors import BrokenFile, FileShrank, MalformedRecord
from async_op.connectors.files.compression import Damaged, Incomplete
from async_op.connectors.files.text import Block
from async_op.connectors.source import Read, Undecodable
from keygroups.errors import KeyGroupsError

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
    from pyarrow import parquet

    try:
        opened = parquet.ParquetFile(file)
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
            yield from _rows_from(opened, path, position)
        except (OSError, pa.ArrowException) as error:
            if getattr(error, "errno", None) or type(error) not in (OSError, pa.ArrowInvalid, pa.ArrowException):
                raise  # the storage's own
            raise Damaged(str(error)) from error


def _rows_from(opened: Any, path: str, position: int) -> Iterator[Block]:
    first_row = 0
    for number in range(opened.metadata.num_row_groups):
        end = first_row + opened.metadata.row_group(number).num_rows
        if position < end:
            row = first_row
            for batch in opened.iter_batches(ROWS_AT_ONCE, row_groups=[number]):
                rest = batch.slice(max(position - row, 0))
                row += batch.num_rows
                if rest.num_rows:
                    yield _block(rest, path, row - rest.num_rows)
        first_row = end


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
            reason = reason or f"column {name!r} ({column.type}): {_reason_of(error)}"
            raw[name] = _raw_of(column)
    if not reason:
        return raw, None, number + 1
    return Undecodable(raw, number + 1, MalformedRecord(path, number, reason))


def _reason_of(error: Exception) -> str:
    if type(error) is KeyError:
        return "a map has a key twice"
    return f"there is no time zone {error} here" if isinstance(error, KeyError) else str(error)


def _raw_of(column: pa.Array) -> Any:
    """Return the bytes of text, the number behind a time, or the pairs of a map; else the name of the type."""
    for kind in (pa.large_binary(), pa.int64(), pa.int32(), column.type):
        try:
            return column.cast(kind).to_pylist()[0]
        except _NO_VALUE:
            continue
    return str(column.type)
