"""What a snapshot holds as tables: elements in flight and items of operator states, one file at a time; data frames."""

from __future__ import annotations

import datetime as dt
import importlib
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from keygroups.errors import PackageNotInstalled
from keygroups.values import Misfit, array_of
from snapshots.daemon_threads import DaemonPool
from snapshots.filesystem import Folder
from snapshots.format.columns import PACKED, is_packed
from snapshots.format.file_lists import REQUESTS_AT_ONCE
from snapshots.format.in_flight_columns import common_schema, in_common_schema
from snapshots.format.manifest import DataFile, Manifest, OperatorStateInfo
from snapshots.format.parquet import ParquetReader
from snapshots.format.steps import step_of
from snapshots.restore.reader import decode_column

STEP = "step"
"""The last column of the elements of a job; a plain operator's elements lack it."""

_STEP = pa.field(STEP, pa.string(), False)

_SIMPLE = frozenset({bool, int, float, str, bytes, dt.date, dt.datetime, dt.time, dt.timedelta, Decimal})
"""Types whose values are a column of their own, if all values of a column have the same one."""


def elements_schema(folder: Folder, manifest: Manifest) -> pa.Schema:
    """Return the columns that hold the elements of all files; this reads the footers."""
    files = [file for file in manifest.files_of("in_flight") if file.rows]
    with DaemonPool(REQUESTS_AT_ONCE) as pool:
        schema = common_schema(pool.map(lambda file: ParquetReader(folder, file).schema, files))
    return schema.append(_STEP) if manifest.step_names else schema


def element_tables(folder: Folder, manifest: Manifest, schema: pa.Schema | None = None) -> Iterator[pa.Table]:
    """Yield the elements of each file, one file in memory at a time; in the columns of `elements_schema` if given."""
    for file in manifest.files_of("in_flight"):
        elements = ParquetReader(folder, file).read_all()
        yield in_elements_schema(elements, step_of(manifest, file), schema)


def in_elements_schema(elements: pa.Table, step: str | None, schema: pa.Schema | None) -> pa.Table:
    """Return the elements of one file in the columns of all, with the column `step` if they are of a job."""
    if schema is not None:
        elements = in_common_schema(elements, schema)
    if step is None:
        return elements
    return elements.append_column(_STEP, pa.repeat(pa.scalar(step, pa.string()), elements.num_rows))


ITEMS_SCHEMA = pa.schema(
    [
        pa.field("subtask", pa.int32(), False),
        pa.field("position", pa.int64(), False),
        pa.field("item", pa.binary(), False, PACKED),
    ]
)
"""The subtask that wrote an item, its place in the list of this subtask, and the item as msgpack."""


def item_files(manifest: Manifest, state: OperatorStateInfo) -> tuple[DataFile, ...]:
    """Return the files of an operator state, by subtask; of a broadcast state one copy, because all are the same."""
    files = sorted(manifest.files_of("operator", state=state.name), key=lambda file: file.subtask)
    return tuple(files[:1] if state.mode == "broadcast" else files)


def items_in(folder: Folder, file: DataFile) -> pa.Table:
    """Read one file of an operator state; with the columns of `ITEMS_SCHEMA`."""
    items = ParquetReader(folder, file).read_all().column("item")
    subtasks = pa.array(np.full(len(items), file.subtask, np.int32))
    return pa.Table.from_arrays([subtasks, pa.array(np.arange(len(items))), items], schema=ITEMS_SCHEMA)


def item_tables(folder: Folder, manifest: Manifest, state: OperatorStateInfo) -> Iterator[pa.Table]:
    """Read an operator state, one file at a time."""
    return (items_in(folder, file) for file in item_files(manifest, state))


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
