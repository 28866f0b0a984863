"""Measures each key group from the footers of files; where key groups share a row group, it reads one small column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from keygroups.ranges import KeyGroupRange
from keygroups.representation import fields_repr
from snapshots.daemon_threads import DaemonPool
from snapshots.format.manifest import DataFile
from snapshots.format.parquet import ParquetReader, RowGroup
from snapshots.restore.snapshot import Snapshot

REQUESTS_AT_ONCE = 16

COLUMN_READS_MAX = 4096
"""If more row groups than this hold several key groups, their column `key_group` is not read."""


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
