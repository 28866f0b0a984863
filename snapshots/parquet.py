"""Parquet files of a snapshot: built whole in memory, put once, checked when read."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.parquet as pq

from keygroups.codec import UnreadableValue
from keygroups.ranges import KeyGroupRange
from snapshots.errors import SnapshotCorrupted
from snapshots.filesystem import Folder, is_transient
from snapshots.manifest import DataFile

KEY_GROUP = "key_group"
"""The column by which every file is sorted and its row groups are cut."""

_TAIL_BYTES = 8  # the footer's length and the magic, at the end of every Parquet file


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """A whole Parquet file in memory, with what a manifest says about it."""

    data: pa.Buffer
    rows: int
    footer_bytes: int

    @property
    def sha256(self) -> str:
        """Digest of the whole file."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def footer_sha256(self) -> str:
        """Digest of the footer, its length and the magic."""
        return hashlib.sha256(memoryview(self.data)[-self.footer_bytes :]).hexdigest()


def encode(schema: pa.Schema, row_groups: Iterable[pa.Table], path: str) -> EncodedFile:
    """Encode tables as one Parquet file, each table as one row group.

    The path stands in the footer, so that no two files have the same one: a file that was swapped for another whose
    values have the same sizes and bounds would be read otherwise.
    """
    sink = pa.BufferOutputStream()
    rows = 0
    with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer:
        for table in row_groups:
            writer.write_table(table, row_group_size=max(table.num_rows, 1))
            rows += table.num_rows
        writer.add_key_value_metadata({"keygroups.path": path})
    data = sink.getvalue()
    footer_length = int.from_bytes(memoryview(data)[-_TAIL_BYTES:-4], "little")
    return EncodedFile(data, rows, footer_length + _TAIL_BYTES)


@contextmanager
def damage_named(path: str, key_groups: KeyGroupRange) -> Iterator[None]:
    """Turn what storage, pyarrow and the codec raise on a bad file into `SnapshotCorrupted`.

    A storage that does not answer, or not this reader, says nothing about the file.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise SnapshotCorrupted(path, "the file is missing", key_groups) from error
    except PermissionError:
        raise
    except (pa.ArrowException, OSError, EOFError, IndexError, UnreadableValue) as error:
        if is_transient(error):
            raise
        raise SnapshotCorrupted(path, str(error) or type(error).__name__, key_groups) from error


class ParquetReader:
    """Reads the row groups of one data file that hold the asked key groups, and no more.

    The footer is checked against the manifest's digest, the pages against their checksums.
    """

    def __init__(self, folder: Folder, file: DataFile) -> None:
        self.file = file
        self._folder = folder
        self._metadata: pq.FileMetaData | None = None

    @property
    def path(self) -> str:
        """The whole path, for errors."""
        return self._folder.path(self.file.path)

    def metadata(self) -> pq.FileMetaData:
        """Read and check the footer, once."""
        if self._metadata is None:
            with damage_named(self.path, self.file.key_groups):
                self._metadata = self._read_footer()
        return self._metadata

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns as they were written; Parquet itself knows fewer types (no timestamp of seconds)."""
        encoded = self.metadata().metadata[b"ARROW:schema"]
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded)))

    def row_groups(self, first: int, last: int) -> list[int]:
        """Return the numbers of the row groups that may hold rows of the key groups, `last` included."""
        metadata = self.metadata()
        bounds = [_bounds(metadata.row_group(number)) for number in range(metadata.num_row_groups)]
        return [number for number, (low, high) in enumerate(bounds) if low <= last and high >= first]

    def read(self, row_groups: list[int]) -> pa.Table:
        """Read some row groups."""
        metadata, schema = self.metadata(), self.schema
        with damage_named(self.path, self.file.key_groups), self._folder.open(self.file.path) as source:
            parquet = pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True)
            return parquet.read_row_groups(row_groups, use_threads=False).cast(schema)

    def read_all(self) -> pa.Table:
        """Read the whole file."""
        return self.read(list(range(self.metadata().num_row_groups)))

    def _read_footer(self) -> pq.FileMetaData:
        file = self.file
        tail = self._folder.read(file.path, start=file.bytes - file.footer_bytes, end=file.bytes)
        if hashlib.sha256(tail).hexdigest() != file.footer_sha256:
            raise SnapshotCorrupted(self.path, "its footer is not what was written", file.key_groups)
        return pq.read_metadata(pa.BufferReader(tail))


def _bounds(row_group: pq.RowGroupMetaData) -> tuple[int, int]:
    statistics = row_group.column(0).statistics
    return statistics.min, statistics.max
