"""The Parquet files of a snapshot: built in memory, stored with one put, and checked on reading."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from keygroups.codec import UnreadableValue
from keygroups.context_managers import contextmanager
from keygroups.ranges import KeyGroupRange
from snapshots.errors import SnapshotCorrupted
from snapshots.filesystem import Folder, is_transient
from snapshots.format.manifest import DataFile, decode_schema

KEY_GROUP = "key_group"
"""The column by which every file is sorted and divided into row groups."""

REQUEST_BYTES_MAX = 64 * 2**20
"""One request reads neighbouring row groups up to this size, or a single larger row group."""

ROW_GROUP_ROWS_MAX = 2**20
ROW_GROUP_BYTES_MAX = 2**32
"""A footer that claims a larger row group, before compression, is refused: a row group must fit into memory."""

_ROW_GROUP_BYTES = 64 * 2**20
"""A larger table (as Arrow data) is divided into several row groups."""

BATCH_BYTES = 32 * 2**20
"""How much of a file is in memory while it is streamed."""

ROW_GROUP_DIGESTS = b"keygroups.row_groups"
"""The metadata key of the XXH3 digests of all row groups; page checksums do not cover the headers of pages."""

_DIGEST_CHARACTERS = 16

_TAIL_BYTES = 8  # the footer's length and the magic at the end of every Parquet file


class RowGroup(NamedTuple):
    """What the footer says about a row group: its number, its lowest and highest key group, and its stored size."""

    number: int
    first: int
    last: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """A complete Parquet file in memory, with its values for the manifest."""

    data: pa.Buffer
    rows: int
    footer_bytes: int

    @property
    def sha256(self) -> str:
        """The digest of the whole file."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def footer_sha256(self) -> str:
        """The digest of the footer with its length and the magic."""
        return hashlib.sha256(memoryview(self.data)[-self.footer_bytes :]).hexdigest()


class ParquetEncoder:
    """Encodes tables as one Parquet file, each table as one row group."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = pa.BufferOutputStream()
        # Most values are distinct: a dictionary of them would take longer than everything else together, and more room.
        # Where values repeat, the compression finds them.
        self._writer = pq.ParquetWriter(
            self._sink, schema, compression="zstd", use_dictionary=[KEY_GROUP], write_page_checksum=True
        )
        self.rows = 0
        self._row_groups = 0

    @property
    def bytes(self) -> int:
        """How many bytes have been encoded so far."""
        return int(self._sink.tell())

    def write(self, table: pa.Table) -> None:
        """Encode a table as a row group, or as several if it is large."""
        for part in _row_groups(table):
            self._writer.write_table(part, row_group_size=ROW_GROUP_ROWS_MAX)
            self._row_groups += 1
        self.rows += table.num_rows

    def finish(self, metadata: Mapping[str, str]) -> EncodedFile:
        """End the file with its metadata.

        The metadata must contain the file's path, so that no two files have the same footer. Otherwise a file could be
        swapped unnoticed for another one whose values have the same sizes and bounds.
        """
        # The length of the footer must not change when the digests are filled in.
        reserved = "?" * (_DIGEST_CHARACTERS * self._row_groups)
        self._writer.add_key_value_metadata({**metadata, ROW_GROUP_DIGESTS.decode(): reserved})
        self._writer.close()
        data = self._sink.getvalue()
        footer_bytes = int.from_bytes(memoryview(data)[-_TAIL_BYTES:-4], "little") + _TAIL_BYTES
        if reserved:
            _fill_in_digests(memoryview(data).cast("B"), footer_bytes, reserved.encode())
        return EncodedFile(data, self.rows, footer_bytes)


def _row_groups(table: pa.Table) -> Iterator[pa.Table]:
    """Divide a table by its bytes, not by their average: readers refuse a row group of more than they let in."""
    is_small = table.nbytes <= _ROW_GROUP_BYTES and table.num_rows <= ROW_GROUP_ROWS_MAX
    if is_small or table.num_rows <= 1:
        yield table
        return
    middle = table.num_rows // 2
    for half in (table.slice(0, middle), table.slice(middle)):
        yield from _row_groups(half)


def _fill_in_digests(data: memoryview, footer_bytes: int, reserved: bytes) -> None:
    metadata = pq.read_metadata(pa.py_buffer(data))
    spans = [_span(metadata.row_group(number)) for number in range(metadata.num_row_groups)]
    digests = "".join(_digest(data[start:end]) for start, end in spans).encode()
    footer = data[-footer_bytes:]
    # The statistics before it may contain the same text.
    at = bytes(footer).index(reserved, bytes(footer).rindex(ROW_GROUP_DIGESTS))
    assert len(digests) == len(reserved), "one digest per row group"
    footer[at : at + len(reserved)] = digests


@contextmanager
def damage_named(path: str, key_groups: KeyGroupRange) -> Iterator[None]:
    """Turn the errors of storage, pyarrow and the codec about a bad file into `SnapshotCorrupted`.

    If the storage does not answer, or refuses this reader, that is not a sign of damage.
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
    """Reads only those row groups of a data file that hold the requested key groups. Any thread may call it.

    The footer is checked against the digest in the manifest, and row groups against the digests in the footer.
    """

    def __init__(self, folder: Folder, file: DataFile) -> None:
        self.file = file
        self._folder = folder
        self._metadata: pq.FileMetaData | None = None

    @property
    def path(self) -> str:
        """The full path, for error messages."""
        return self._folder.path(self.file.path)

    def metadata(self) -> pq.FileMetaData:
        """Read and check the footer, once."""
        if self._metadata is None:
            with damage_named(self.path, self.file.key_groups):
                self._metadata = self._read_footer()
        return self._metadata

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema as it was written; Parquet itself has fewer types (no timestamps in seconds)."""
        return decode_schema(self.metadata().metadata[b"ARROW:schema"])

    def row_groups(self, first: int, last: int) -> list[int]:
        """Return the numbers of the row groups that may hold rows of key groups from `first` to `last`, inclusive."""
        low, high = self._bounds
        numbers: list[int] = np.flatnonzero((low <= last) & (high >= first)).tolist()
        return numbers

    def layout(self) -> list[RowGroup]:
        """Return the footer's description of each row group."""
        metadata, (low, high) = self.metadata(), self._bounds
        spans = [_span(metadata.row_group(number)) for number in range(metadata.num_row_groups)]
        return [
            RowGroup(number, int(low[number]), int(high[number]), metadata.row_group(number).num_rows, end - start)
            for number, (start, end) in enumerate(spans)
        ]

    def read_key_groups(self, row_group: int) -> NDArray[np.int32]:
        """Read only the key groups of the rows of a row group."""
        metadata = self.metadata()
        with damage_named(self.path, self.file.key_groups):
            start, end = _chunk_span(metadata.row_group(row_group).column(0))
            source = pa.PythonFile(_Pieces([self._read_bytes(start, end)], self.file.bytes), mode="r")
            parquet = self._open(source, metadata, verifies=True)
            table = parquet.read_row_group(row_group, columns=[KEY_GROUP], use_threads=False)
            return table.column(0).to_numpy()  # type: ignore[no-any-return]

    def read(self, row_groups: list[int]) -> pa.Table:
        """Read some row groups in ascending order; one request reads neighbours."""
        metadata, schema = self.metadata(), self.schema
        with damage_named(self.path, self.file.key_groups):
            pieces = [self._read_bytes(start, end) for start, end in self._spans(row_groups)]
            source = pa.PythonFile(_Pieces(pieces, self.file.bytes), mode="r")
            for piece in pieces:
                self._check_digests(piece, row_groups)
            parquet = self._open(source, metadata, verifies=False)
            # `stored_types` has refused types that Parquet does not give back.
            return parquet.read_row_groups(row_groups, use_threads=False).cast(schema)

    def _open(self, source: pa.PythonFile, metadata: pq.FileMetaData, *, verifies: bool) -> pq.ParquetFile:
        # The bytes are in memory. Reading ahead would call `source` from a thread of Arrow's, which aborts the process
        # if the interpreter ends at that moment.
        return pq.ParquetFile(source, metadata=metadata, page_checksum_verification=verifies, pre_buffer=False)

    def read_all(self) -> pa.Table:
        """Read the whole file."""
        return self.read(list(range(self.metadata().num_row_groups)))

    def batches(self, row_groups: list[int]) -> Iterator[list[int]]:
        """Divide row groups into runs of at most `BATCH_BYTES` in memory; a larger row group is a separate run."""
        batch: list[int] = []
        bytes_ = 0
        for number in row_groups:
            size = self.metadata().row_group(number).total_byte_size
            if batch and bytes_ + size > BATCH_BYTES:
                yield batch
                batch, bytes_ = [], 0
            batch.append(number)
            bytes_ += size
        if batch:
            yield batch

    @cached_property
    def _bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The lowest and highest key group of each row group."""
        metadata = self.metadata()
        statistics = [metadata.row_group(number).column(0).statistics for number in range(metadata.num_row_groups)]
        return np.array([one.min for one in statistics], np.int64), np.array([one.max for one in statistics], np.int64)

    @cached_property
    def _digests(self) -> str:
        """The digests of all row groups."""
        metadata = self.metadata()
        digests: str = metadata.metadata.get(ROW_GROUP_DIGESTS, b"").decode()
        if len(digests) != _DIGEST_CHARACTERS * metadata.num_row_groups:
            raise EOFError("its footer has not one digest for each row group")
        return digests

    def _check_digests(self, piece: tuple[int, bytes], row_groups: list[int]) -> None:
        """Compare the row groups of a piece with their digests, which cover the headers that control decoding."""
        first, data = piece
        for number in row_groups:
            start, end = _span(self.metadata().row_group(number))
            if first <= start and end <= first + len(data):
                expected = self._digests[number * _DIGEST_CHARACTERS :][:_DIGEST_CHARACTERS]
                if _digest(memoryview(data)[start - first : end - first]) != expected:
                    raise EOFError(f"row group {number} is not what was written")

    def _spans(self, row_groups: list[int]) -> list[tuple[int, int]]:
        spans: list[tuple[int, int]] = []
        metadata = self.metadata()
        for start, end in (_span(metadata.row_group(number)) for number in row_groups):
            if spans and spans[-1][1] == start and end - spans[-1][0] <= REQUEST_BYTES_MAX:
                spans[-1] = spans[-1][0], end
            else:
                spans.append((start, end))
        return spans

    def _read_bytes(self, start: int, end: int) -> tuple[int, bytes]:
        data = self._folder.read(self.file.path, start=start, end=end)
        if len(data) != end - start:
            raise EOFError(f"the file ends before byte {end}")
        return start, data

    def _read_footer(self) -> pq.FileMetaData:
        file = self.file
        tail = self._folder.read(file.path, start=file.bytes - file.footer_bytes, end=file.bytes)
        if hashlib.sha256(tail).hexdigest() != file.footer_sha256:
            raise SnapshotCorrupted(self.path, "its footer is not what was written", file.key_groups)
        metadata = pq.read_metadata(pa.BufferReader(tail))
        self._check_sizes(metadata)
        return metadata

    def _check_sizes(self, metadata: pq.FileMetaData) -> None:
        """Refuse a footer that contradicts the manifest, or claims more than fits into memory."""
        if metadata.num_rows != self.file.rows:
            raise EOFError(f"{metadata.num_rows} rows instead of {self.file.rows}")
        pages = range(self.file.bytes - self.file.footer_bytes + 1)
        for number in range(metadata.num_row_groups):
            row_group = metadata.row_group(number)
            if not (0 <= row_group.num_rows <= ROW_GROUP_ROWS_MAX):
                raise EOFError(f"a row group has {row_group.num_rows} rows, at most {ROW_GROUP_ROWS_MAX}")
            if not 0 <= row_group.total_byte_size <= ROW_GROUP_BYTES_MAX:
                raise EOFError(f"a row group has {row_group.total_byte_size} bytes, at most {ROW_GROUP_BYTES_MAX}")
            start, end = _span(row_group)
            if not (start in pages and end in pages and start <= end):
                raise EOFError(f"a row group lies at the bytes {start} to {end} of {len(pages)}")


def _digest(data: memoryview) -> str:
    digest: str = xxhash.xxh3_64_hexdigest(data)
    return digest


def _span(row_group: pq.RowGroupMetaData) -> tuple[int, int]:
    """Return the start and end of a row group in the file."""
    spans = [_chunk_span(row_group.column(column)) for column in range(row_group.num_columns)]
    start = min(start for start, _ in spans)
    return start, start + sum(end - start for start, end in spans)


def _chunk_span(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    return start, start + chunk.total_compressed_size


class _Pieces:
    """A file-like object that has only some pieces of a file."""

    closed = False

    def __init__(self, pieces: list[tuple[int, bytes]], size: int) -> None:
        assert all(one[0] + len(one[1]) <= other[0] for one, other in pairwise(pieces)), "pieces ascend"
        self._pieces = pieces
        self._size = size
        self._position = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> memoryview:
        for start, data in self._pieces:
            if start <= self._position < start + len(data):
                found = memoryview(data)[self._position - start :][:size]
                self._position += len(found)
                return found
        raise EOFError(f"no row group that was asked for is at byte {self._position}")

    def close(self) -> None:
        self._pieces = []
