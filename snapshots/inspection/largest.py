"""Finds the keys with the most bytes in one pass over a state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from keygroups.representation import fields_repr
from snapshots.format.parquet import KEY_GROUP
from snapshots.restore.reader import decode_column
from snapshots.restore.snapshot import Snapshot
from snapshots.restore.streaming import StateStream, all_key_groups

_SIZE, _ROWS = "size", "rows"


@dataclass(frozen=True, slots=True)
class LargeKey:
    """A key with its size.

    Attributes
    ----------
    key : object
        The key.
    key_group : int
        The key group of the key.
    entries : int
        The number of elements of a list or entries of a map, else 1.
    bytes : int
        The size of all its values and map keys as Arrow data.
    """

    key: Any
    key_group: int
    entries: int
    bytes: int

    __repr__ = fields_repr


def largest_keys(snapshot: Snapshot, state_name: str, limit: int = 10) -> list[LargeKey]:
    """Read a state once and return its largest keys, the largest first.

    Memory holds a bounded piece of rows and, for a list or map, the keys of one key group.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    state_name : str
        The name of a state.
    limit : int
        How many keys to return.

    Raises
    ------
    ConfigError
        There is no such state.
    SnapshotCorrupted
        A file is damaged.
    """
    stream = StateStream.of(snapshot.folder, snapshot.manifest, state_name)
    best: pa.Table | None = None
    for sizes in _sizes_of_keys(stream.tables(all_key_groups(snapshot.manifest))):
        both = sizes if best is None else pa.concat_tables([best, sizes])
        best = both.take(pc.sort_indices(both, [(_SIZE, "descending")])[:limit])
    if best is None:
        return []
    columns = (best.column(name).to_pylist() for name in (KEY_GROUP, _ROWS, _SIZE))
    rows = zip(decode_column(best, "key"), *columns, strict=True)
    return [LargeKey(key, group, entries, bytes_) for key, group, entries, bytes_ in rows]


def row_bytes(array: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the size of each value of a column in bytes, without offsets and bitmaps; 0 for null.

    Examples
    --------
    >>> row_bytes(pa.array([["a", "bc"], None, []])).tolist()
    [3, 0, 0]
    """
    if isinstance(array, pa.ChunkedArray):
        chunks = [row_bytes(chunk) for chunk in array.chunks]
        return np.concatenate(chunks) if chunks else np.zeros(0, np.int64)
    type_ = array.type
    if types.is_list(type_) or types.is_large_list(type_) or types.is_map(type_):
        return _sums_of_children(array)
    if types.is_struct(type_):
        return sum((row_bytes(child) for child in array.flatten()), np.zeros(len(array), np.int64))
    if types.is_fixed_size_list(type_):
        children = row_bytes(array.flatten())
        present = np.flatnonzero(array.is_valid())
        sizes = np.zeros(len(array), np.int64)
        sizes[present] = children.reshape(len(present), -1).sum(axis=1) if len(present) else 0
        return sizes
    try:
        width = np.full(len(array), (type_.bit_width + 7) // 8, np.int64)
    except ValueError:
        width = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.where(array.is_valid().to_numpy(zero_copy_only=False), width, 0)


def _sums_of_children(array: pa.Array) -> NDArray[np.int64]:
    """Return the total size of the items of each list or map, from running sums; null and empty ones add nothing."""
    if types.is_map(array.type):
        children = row_bytes(array.keys) + row_bytes(array.items)
        offsets = array.offsets.to_numpy()
        # Keys and items cover the whole buffer, even if the array is a slice.
        running = np.concatenate([[0], np.cumsum(children)])
        return np.where(array.is_valid().to_numpy(zero_copy_only=False), np.diff(running[offsets]), 0)
    children = row_bytes(array.flatten())
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    running = np.concatenate([[0], np.cumsum(children)])
    ends = np.cumsum(lengths)
    sums: NDArray[np.int64] = running[ends] - running[ends - lengths]
    return sums


def _sizes_of_keys(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Return key group, key, bytes and rows of complete keys; a key group may continue in the next piece."""
    unfinished: pa.Table | None = None
    for table in tables:
        sizes = row_bytes(table.column("value")) + row_bytes(table.column("key"))
        if "map_key" in table.schema.names:
            sizes = sizes + row_bytes(table.column("map_key"))
        found = pa.table(
            [table.column(KEY_GROUP), table.column("key"), pa.array(sizes), pa.repeat(pa.scalar(1), table.num_rows)],
            schema=_schema(table.schema),
        )
        found = _by_key(found if unfinished is None else pa.concat_tables([unfinished, found]))
        is_last = pc.equal(found.column(KEY_GROUP), table.column(KEY_GROUP)[-1])
        unfinished = found.filter(is_last)
        yield found.filter(pc.invert(is_last))
    if unfinished is not None:
        yield unfinished


def _by_key(sizes: pa.Table) -> pa.Table:
    grouped = sizes.group_by([KEY_GROUP, "key"]).aggregate([(_SIZE, "sum"), (_ROWS, "sum")])
    return grouped.rename_columns([KEY_GROUP, "key", _SIZE, _ROWS]).cast(sizes.schema)


def _schema(schema: pa.Schema) -> pa.Schema:
    counts = [pa.field(_SIZE, pa.int64()), pa.field(_ROWS, pa.int64())]
    return pa.schema([schema.field(KEY_GROUP), schema.field("key"), *counts])
