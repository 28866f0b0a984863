"""Measures a snapshot: rows and bytes of each key group, the largest keys, and counts of the elements in flight."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from keygroups.ranges import KeyGroupRange
from keygroups.representation import fields_repr
from snapshots.daemon_threads import DaemonPool
from snapshots.format import compute as pc
from snapshots.format.manifest import DataFile
from snapshots.format.parquet import KEY_GROUP, ParquetReader, RowGroup
from snapshots.restore.reader import decode_column
from snapshots.restore.snapshot import Snapshot
from snapshots.restore.streaming import StateStream, all_key_groups
from snapshots.restore.tables import element_tables

REQUESTS_AT_ONCE = 16

COLUMN_READS_MAX = 4096
"""If more row groups than this hold several key groups, their column `key_group` is not read."""

_SIZE, _ROWS = "size", "rows"

AGES = (
    (1.0, "under 1 s"),
    (10.0, "1 s to 10 s"),
    (60.0, "10 s to 1 min"),
    (600.0, "1 min to 10 min"),
    (3600.0, "10 min to 1 h"),
    (86400.0, "1 h to 1 day"),
    (float("inf"), "over 1 day"),
)
"""The upper bound of each age in seconds, and its name."""

NO_AGE = "without a timestamp"


@dataclass(frozen=True, slots=True)
class KeyGroupSizes:
    """The rows and bytes of each key group; index *g* belongs to key group *g*.

    Attributes
    ----------
    rows : numpy.ndarray of int64
        The rows of base files.
    delta_rows : numpy.ndarray of int64
        The rows of deltas, which add, replace or remove rows of the base.
    bytes : numpy.ndarray of int64
        The share of the stored files.
    is_exact : bool
        False if there were too many shared row groups to read them; then their rows are assumed to be evenly spread.
    """

    rows: NDArray[np.int64]
    delta_rows: NDArray[np.int64]
    bytes: NDArray[np.int64]
    is_exact: bool = True

    __repr__ = fields_repr

    @property
    def skew(self) -> float:
        """The bytes of the largest key group divided by the average; 1.0 if all are equal."""
        return skew_of(self.bytes)

    def largest(self, limit: int) -> list[int]:
        """Return the key groups with the most bytes, the largest first; key groups without rows are left out."""
        order = np.argsort(-self.bytes, kind="stable")[:limit]
        return [int(group) for group in order if self.rows[group] + self.delta_rows[group]]

    def within(self, key_groups: KeyGroupRange) -> tuple[int, int, int]:
        """Return the rows, delta rows and bytes of a range."""
        part = slice(key_groups.start, key_groups.end + 1)
        return int(self.rows[part].sum()), int(self.delta_rows[part].sum()), int(self.bytes[part].sum())

    @classmethod
    def sum_of(cls, sizes: Iterable[KeyGroupSizes], max_parallelism: int) -> KeyGroupSizes:
        """Add up the sizes of several states."""
        found = list(sizes)
        nothing = np.zeros((1, max_parallelism), np.int64)
        return cls(
            np.vstack([nothing, *[one.rows for one in found]]).sum(axis=0),
            np.vstack([nothing, *[one.delta_rows for one in found]]).sum(axis=0),
            np.vstack([nothing, *[one.bytes for one in found]]).sum(axis=0),
            all(one.is_exact for one in found),
        )


def skew_of(values: NDArray[np.int64]) -> float:
    """Return the largest value divided by the average; 1.0 if all are zero."""
    total = float(values.sum())
    return 1.0 if total == 0 else float(values.max()) * len(values) / total


def key_group_sizes(snapshot: Snapshot) -> dict[str, KeyGroupSizes]:
    """Measure the keyed states of a snapshot, without reading a key or a value.

    It reads the footer of each file. If several key groups share a row group, it also reads the small column
    `key_group`. The bytes of a shared row group are divided among its key groups by rows.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.

    Returns
    -------
    dict of str to KeyGroupSizes
        The sizes by state, in the order of the snapshot.

    Raises
    ------
    SnapshotCorrupted
        A footer or a column is damaged.

    Examples
    --------
    >>> sizes = key_group_sizes(snapshot)["visits"]  # doctest: +SKIP
    >>> sizes.largest(3), sizes.skew  # doctest: +SKIP
    ([87, 12, 3], 4.2)
    """
    manifest = snapshot.manifest
    files = manifest.files_of("keyed", "delta")
    readers = {file.path: ParquetReader(snapshot.folder, file) for file in files}
    with DaemonPool(REQUESTS_AT_ONCE) as pool:
        layouts = dict(zip(readers, pool.map(ParquetReader.layout, readers.values()), strict=True))
        shared = [(path, group.number) for path, layout in layouts.items() for group in layout if _is_shared(group)]
        looked_into = shared if len(shared) <= COLUMN_READS_MAX else []
        columns = pool.map(lambda one: _counts(readers[one[0]], one[1]), looked_into)
        counts = dict(zip(looked_into, columns, strict=True))
    add_up = partial(_add_up, max_parallelism=manifest.max_parallelism, layouts=layouts, counts=counts)
    return {info.name: add_up(manifest.files_of("keyed", "delta", state=info.name)) for info in manifest.states}


_Counts = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Key groups and their numbers of rows."""


def _counts(reader: ParquetReader, row_group: int) -> _Counts:
    groups, counts = np.unique(reader.read_key_groups(row_group), return_counts=True)
    return groups.astype(np.int64), counts


def _is_shared(group: RowGroup) -> bool:
    return group.first != group.last


def _add_up(
    files: Iterable[DataFile],
    *,
    max_parallelism: int,
    layouts: Mapping[str, list[RowGroup]],
    counts: Mapping[tuple[str, int], _Counts],
) -> KeyGroupSizes:
    rows, delta_rows, bytes_ = (np.zeros(max_parallelism) for _ in range(3))
    is_exact = True
    for file in files:
        held = slice(file.key_groups.start, file.key_groups.end + 1)
        file_rows, file_bytes = np.zeros(max_parallelism), np.zeros(max_parallelism)
        for group in layouts[file.path]:
            found = counts.get((file.path, group.number))
            if found is None:
                is_exact = is_exact and not _is_shared(group)
                places = np.arange(group.first, group.last + 1)
                found = places, np.full(len(places), group.rows / len(places))
            file_rows[found[0]] += found[1]
            file_bytes[found[0]] += found[1] * (group.bytes / group.rows)
        (delta_rows if file.kind == "delta" else rows)[held] += file_rows[held]
        bytes_[held] += _with_overhead(file, file_bytes)[held]
    return KeyGroupSizes(_rounded(rows), _rounded(delta_rows), _rounded(bytes_), is_exact)


def _rounded(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Round so that the total, and the total of each file's key groups, stay the same."""
    return np.diff(np.rint(np.cumsum(values)), prepend=0).astype(np.int64)


def _with_overhead(file: DataFile, bytes_: NDArray[np.float64]) -> NDArray[np.float64]:
    """Spread the bytes of the footer evenly, so that the key groups of a file add up to its size."""
    written = file.file_key_groups
    bytes_[written.start : written.end + 1] += (file.bytes - bytes_.sum()) / len(written)
    return bytes_


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
            schema=_schema_of_sizes(table.schema),
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


def _schema_of_sizes(schema: pa.Schema) -> pa.Schema:
    counts = [pa.field(_SIZE, pa.int64()), pa.field(_ROWS, pa.int64())]
    return pa.schema([schema.field(KEY_GROUP), schema.field("key"), *counts])


@dataclass(frozen=True, slots=True)
class InFlightSummary:
    """The counts of a snapshot's in-flight elements.

    Attributes
    ----------
    pending, completed : int
        Records whose call has not returned, and records whose call has.
    watermarks : int
        Watermarks between the records.
    by_key_group : numpy.ndarray
        Elements with a key, by key group.
    by_attempt : mapping of int to int
        Pending records by the number of the attempt that runs or is due.
    by_age : mapping of str to int
        Records by the time from their timestamp to the snapshot, from young to old; it contains every age.
    """

    pending: int
    completed: int
    watermarks: int
    by_key_group: NDArray[np.int64]
    by_attempt: Mapping[int, int]
    by_age: Mapping[str, int]

    __repr__ = fields_repr

    def count_in(self, key_groups: KeyGroupRange) -> int:
        """Return how many elements have a key in the range."""
        return int(self.by_key_group[key_groups.start : key_groups.end + 1].sum())


def in_flight_summary(snapshot: Snapshot) -> InFlightSummary:
    """Count the in-flight elements of a snapshot; one channel's are in memory at a time.

    The age of an element is the time from its timestamp to the creation of the snapshot. If timestamps are arrival
    times, the age shows how long the element has waited; otherwise it shows how late its event is.

    Raises
    ------
    SnapshotCorrupted
        A file is damaged.
    """
    manifest = snapshot.manifest
    pending = completed = watermarks = 0
    by_key_group = np.zeros(manifest.max_parallelism, np.int64)
    by_attempt, by_age = Counter[int](), Counter[str]()
    for elements in element_tables(snapshot.folder, manifest):
        records = elements.filter(pc.equal(elements.column("kind"), "record"))
        waiting = records.filter(pc.invert(records.column("completed")))
        watermarks += elements.num_rows - records.num_rows
        pending += waiting.num_rows
        completed += records.num_rows - waiting.num_rows
        key_groups = records.column(KEY_GROUP).to_numpy()
        by_key_group += np.bincount(key_groups[key_groups >= 0], minlength=manifest.max_parallelism)
        by_attempt.update(waiting.column("attempt").to_pylist())
        by_age.update(_ages(records, manifest.created_at))
    ages = {name: by_age[name] for name in (*(name for _, name in AGES), NO_AGE)}
    return InFlightSummary(pending, completed, watermarks, by_key_group, dict(sorted(by_attempt.items())), ages)


def _ages(records: pa.Table, created_at: str) -> list[str]:
    created = dt.datetime.fromisoformat(created_at).timestamp()
    timestamps = records.column("timestamp").to_pylist()
    return [NO_AGE if at is None else _age_named(created - at / 1000) for at in timestamps]


def _age_named(seconds: float) -> str:
    return next(name for limit, name in AGES if seconds < limit)
