"""Streams of Arrow data, such as data frames, as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Protocol

import pyarrow as pa

from async_op.errors import shorten
from keygroups.errors import ConfigError
from keygroups.safe_text import described, repr_of
from keygroups.values import values_of
from keygroups.values.lossless_casts import in_microseconds
from snapshots.format.subtask import RefusedValue

ROWS_AT_ONCE = 1024
BYTES_AT_ONCE = 8 * 2**20
"""How much of a table becomes Python objects at a time; its outputs are consumed before more rows are converted."""


class ArrowStream(Protocol):
    """Any object that exports Arrow data: a pandas or polars data frame, a pyarrow table, a DuckDB relation."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the data, as the Arrow PyCapsule interface defines it."""
        ...


def has_arrow_stream(stream: object) -> bool:
    """Return whether an object exports Arrow data; so does an array without columns, whose items are no values."""
    return hasattr(stream, "__arrow_c_stream__") or hasattr(stream, "__arrow_c_array__")


def rows_of_stream(stream: Any, name: str) -> Iterator[Any]:
    """Return the rows as dicts by column name, in the order of the stream; batches are pulled one by one.

    Parameters
    ----------
    stream : ArrowStream
        The frame or table.
    name : str
        The argument by which it was passed, for messages.

    Raises
    ------
    ConfigError
        The stream has no columns, or two columns have the same name.
    """
    try:
        reader = pa.RecordBatchReader.from_stream(stream)
    except (pa.ArrowException, TypeError, ValueError) as error:  # pandas raises the last for two columns of one name
        raise ConfigError(name, type(stream).__name__, f"pass a table with columns, or a list: {error}") from error
    names = reader.schema.names
    if len(set(names)) < len(names):
        raise ConfigError(name, names, "give each column its own name")
    return _rows(reader)


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Return the rows as dicts, converted column by column.

    Raises
    ------
    ConfigError
        A column has nanoseconds that Python's types cannot hold.
    """
    names = tuple(batch.schema.names)
    columns = [values_of(in_microseconds(name, column)) for name, column in zip(names, batch.columns, strict=True)]
    return _dicts_of(names)(zip(*columns, strict=True))


def readable_rows_of(batch: pa.RecordBatch) -> Iterator[Any]:
    """Return the rows as `rows_of` does, with a `RefusedValue` for each row that Python's types cannot hold.

    A date in the year 10000, nanoseconds or text that is no UTF-8 must not hold up the other rows.
    """
    try:
        return rows_of(batch)
    except Exception:  # noqa: BLE001 - Arrow and Python raise many kinds of errors
        return map(_row_of, (batch.slice(row, 1) for row in range(batch.num_rows)))


def _row_of(row: pa.RecordBatch) -> Any:
    """Return the row of a batch with one row, or what is known of a row that cannot be read."""
    try:
        return next(rows_of(row))
    except Exception as error:  # noqa: BLE001 - as above
        known = {name: _text_of(column) for name, column in zip(row.schema.names, row.columns, strict=True)}
        return RefusedValue(repr_of(known), described(error))


def _text_of(column: pa.Array) -> str:
    try:
        return shorten(values_of(column)[0])
    except Exception as error:  # noqa: BLE001 - as above
        return f"({column.type} that cannot be read: {type(error).__name__})"


def slices_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut batches into pieces of at most `ROWS_AT_ONCE` rows and `BYTES_AT_ONCE`, unless a single row is larger."""
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            yield from _small_slices(batch.slice(start, ROWS_AT_ONCE))


def _small_slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows <= 1 or batch.nbytes <= BYTES_AT_ONCE:
        yield batch
        return
    middle = batch.num_rows // 2
    for half in (batch.slice(0, middle), batch.slice(middle)):
        yield from _small_slices(half)


@lru_cache
def _dicts_of(names: tuple[str, ...]) -> Callable[[Iterable[tuple[Any, ...]]], Iterator[dict[str, Any]]]:
    """Return the function from tuples of values to dicts with these keys.

    It is made of a dict display, which takes half of the time that `dict(zip(names, values))` does.
    """
    # Of text from outside, the code has the `repr` of a `str` only, a literal whatever a column is called.
    values = [f"v{number}" for number in range(len(names))]
    items = ", ".join(f"{name!r}: {value}" for name, value in zip(names, values, strict=True))
    made: Callable[[Iterable[tuple[Any, ...]]], Iterator[dict[str, Any]]] = eval(  # noqa: S307 - no text but literals
        f"lambda rows: ({{{items}}} for [{', '.join(values)}] in rows)", {}
    )
    return made


def _rows(reader: pa.RecordBatchReader) -> Iterator[Any]:
    with reader:
        for piece in slices_of(reader):
            yield from readable_rows_of(piece)
