"""Sorts rows in any order into ranges of key groups, on local disk so that memory stays bounded.

This is the partitioning phase of an external bucket sort (D. Knuth, "The Art of Computer Programming", vol. 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from keygroups.ranges import KeyGroupRange, range_of
from snapshots.format import compute as pc
from snapshots.format.parquet import KEY_GROUP
from snapshots.restore.reader import divided

BUCKETS_MAX = 64
"""How many files are open at once."""

BUCKET_BYTES = 64 * 2**20
"""A bucket with more bytes (as Arrow data) is divided again, unless it holds a single key group."""

FLUSH_BYTES = 32 * 2**20
"""Rows are collected up to this size before they are written to the buckets. Smaller inputs need no files."""


class Buckets:
    """Takes rows of a range of key groups, and returns them in pieces of complete, ascending key groups.

    For use by one thread. First add all rows, then take them, once. It holds about `FLUSH_BYTES` in memory while rows
    are added, and a few times `BUCKET_BYTES` (or the largest key group, if that is larger) while they are taken.

    Parameters
    ----------
    directory : Path
        A local directory for its files only; the caller removes it.
    key_groups : KeyGroupRange
        The range of all rows that will be added.

    Attributes
    ----------
    bytes : int
        How many bytes of rows have been added.
    """

    def __init__(self, directory: Path, key_groups: KeyGroupRange) -> None:
        self._directory = directory
        self._start = key_groups.start
        self._count = min(BUCKETS_MAX, len(key_groups))
        self._size = len(key_groups)
        self._buckets: dict[int, _Bucket] = {}
        self._files = ExitStack()
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def add(self, table: pa.Table) -> None:
        """Add rows; all tables must have the same columns."""
        self._waiting.append(table)
        self._waiting_bytes += table.nbytes
        self.bytes += table.nbytes
        if self._waiting_bytes >= FLUSH_BYTES:
            self._flush()

    def take(self) -> Iterator[pa.Table]:
        """Yield all rows; the rows of a key group are in one table, in no particular order."""
        if not self._buckets:
            if self._waiting:
                yield pa.concat_tables(self._waiting)
            return
        self._flush()
        self._files.close()
        for number, bucket in sorted(self._buckets.items()):
            yield from self._divided(number, bucket)

    def _divided(self, number: int, bucket: _Bucket) -> Iterator[pa.Table]:
        local = range_of(number, self._count, self._size)
        if bucket.bytes <= BUCKET_BYTES or len(local) == 1:
            yield bucket.table()
            bucket.path.unlink()
            return
        directory = bucket.path.with_suffix("")
        directory.mkdir()
        with Buckets(directory, KeyGroupRange(self._start + local.start, self._start + local.end)) as smaller:
            for piece in bucket.pieces():
                smaller.add(piece)
            bucket.path.unlink()
            yield from smaller.take()
        directory.rmdir()

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        numbers = (key_groups_in(table) - self._start) * self._count // self._size
        assert numbers.min() >= 0, "all rows are in the range"
        assert numbers.max() < self._count, "all rows are in the range"
        # As 16-bit integers, which numpy sorts by radix sort.
        order = np.argsort(numbers.astype(np.int16), kind="stable")
        ordered = pc.take(table, order)
        found, starts = np.unique(numbers[order], return_index=True)
        ends = [*starts[1:].tolist(), len(numbers)]
        for number, start, end in zip(found.tolist(), starts.tolist(), ends, strict=True):
            self._bucket(number, table.schema).write(ordered.slice(start, end - start))

    def _bucket(self, number: int, schema: pa.Schema) -> _Bucket:
        if number not in self._buckets:
            self._buckets[number] = _Bucket(self._directory / f"{number}.arrow", schema, self._files)
        return self._buckets[number]


class _Bucket:
    """A file with the rows of one bucket."""

    def __init__(self, path: Path, schema: pa.Schema, files: ExitStack) -> None:
        self.path = path
        self.bytes = 0
        sink = files.enter_context(pa.OSFile(str(path), "wb"))
        self._writer = files.enter_context(pa.ipc.new_stream(sink, schema))

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table)
        self.bytes += table.nbytes

    def pieces(self) -> Iterator[pa.Table]:
        with pa.OSFile(str(self.path), "rb") as source, pa.ipc.open_stream(source) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])

    def table(self) -> pa.Table:
        with pa.OSFile(str(self.path), "rb") as source, pa.ipc.open_stream(source) as reader:
            return reader.read_all()


def key_groups_in(table: pa.Table) -> NDArray[np.int64]:
    """Return the key group of each row."""
    groups: NDArray[np.int64] = table.column(KEY_GROUP).to_numpy().astype(np.int64)
    return groups


def by_key_group(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield each key group with its rows, ascending; of a table without rows there are none."""
    groups = key_groups_in(table)
    if np.any(np.diff(groups) < 0):
        order = np.argsort(groups.astype(np.int16), kind="stable")
        table, groups = pc.take(table, order), groups[order]
    yield from divided(table, groups).items()
