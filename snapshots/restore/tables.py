"""The in-flight elements of a snapshot, and the items of its operator states, as tables; one file at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from snapshots.daemon_threads import DaemonPool
from snapshots.filesystem import Folder
from snapshots.format.columns import PACKED
from snapshots.format.file_lists import REQUESTS_AT_ONCE
from snapshots.format.in_flight_columns import common_schema, in_common_schema
from snapshots.format.manifest import DataFile, Manifest, OperatorStateInfo
from snapshots.format.parquet import ParquetReader
from snapshots.format.steps import step_of

STEP = "step"
"""The last column of the elements of a job; a plain operator's elements lack it."""

_STEP = pa.field(STEP, pa.string(), False)


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
