"""The items of operator states as tables, one file at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from snapshots.filesystem import Folder
from snapshots.format.columns import PACKED
from snapshots.format.manifest import DataFile, Manifest, OperatorStateInfo
from snapshots.format.parquet import ParquetReader

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
    """Read one file of an operator state; the columns are those of `ITEMS_SCHEMA`."""
    items = ParquetReader(folder, file).read_all().column("item")
    subtasks = pa.array(np.full(len(items), file.subtask, np.int32))
    return pa.Table.from_arrays([subtasks, pa.array(np.arange(len(items))), items], schema=ITEMS_SCHEMA)


def item_tables(folder: Folder, manifest: Manifest, state: OperatorStateInfo) -> Iterator[pa.Table]:
    """Read an operator state, one file at a time."""
    return (items_in(folder, file) for file in item_files(manifest, state))
