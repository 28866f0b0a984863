"""A state as a data frame of pandas or polars, with Python values in place of msgpack."""

from __future__ import annotations

import datetime as dt
import importlib
from decimal import Decimal
from typing import Any

import pyarrow as pa

from keygroups.errors import PackageNotInstalled
from keygroups.values import Misfit, array_of
from snapshots.format.columns import is_packed
from snapshots.restore.reader import decode_column

_SIMPLE = frozenset({bool, int, float, str, bytes, dt.date, dt.datetime, dt.time, dt.timedelta, Decimal})
"""Types whose values are a column of their own, if all values of a column have the same one."""


def pandas_frame(table: pa.Table) -> Any:
    """Return a table as a pandas DataFrame.

    Raises
    ------
    PackageNotInstalled
        pandas is not installed.
    """
    pandas = _package("pandas")
    # Whole numbers beside nulls would become floats, which lose digits.
    frame = table.to_pandas(integer_object_nulls=True)
    for place, field in enumerate(table.schema):
        if is_packed(field):
            frame.isetitem(place, pandas.Series(decode_column(table, field.name), dtype=object, index=frame.index))
    return frame


def polars_frame(table: pa.Table) -> Any:
    """Return a table as a polars DataFrame.

    Raises
    ------
    PackageNotInstalled
        polars is not installed.
    """
    polars = _package("polars")
    columns = []
    for field in table.schema:
        column = _simple_column(decode_column(table, field.name)) if is_packed(field) else table.column(field.name)
        if isinstance(column, list):
            columns.append(polars.Series(field.name, column, dtype=polars.Object))
        else:
            columns.append(polars.Series(field.name, polars.from_arrow(column)))
    return polars.DataFrame(columns)


def _simple_column(values: list[Any]) -> pa.Array | list[Any]:
    """Return values as an Arrow array if all of them have one simple type, and else as they are."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) != 1 or not kinds <= _SIMPLE:
        return values
    try:
        return array_of(values, pa.infer_type(values))
    except (Misfit, pa.ArrowException, OverflowError):
        return values  # such as an integer of more than 64 bits, or times with and without a zone


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PackageNotInstalled(name, f"Snapshot.to_{name}") from error
