"""Writes data files: bounded in size, cut at key groups, and named after their content."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from keygroups.names import DATA_PATH
from keygroups.ranges import KeyGroupRange
from snapshots.daemon_threads import DaemonPool
from snapshots.filesystem import Folder
from snapshots.format.manifest import DataFile
from snapshots.format.manifest_schema import FileKind
from snapshots.format.parquet import EncodedFile, ParquetEncoder

FILE_BYTES = 32 * 2**20
"""A file ends at the next key group once it has this many bytes …"""

LARGE_FILE_BYTES = 256 * 2**20
"""… or, in a large state, an eighth of the bytes written so far, up to this: a writer keeps two files in memory."""

ROW_GROUP_ROWS_MIN = 8192
"""Neighbouring key groups share a row group until it has this many rows."""

ROW_GROUP_BYTES = 16 * 2**20
"""A row group ends at this size (as Arrow data), even within a key group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLabel:
    """What a manifest says about a file, except for its size and digests."""

    kind: FileKind
    state: str | None = None
    subtask: int
    version: int
    parent_id: str | None = None
    folds: bool = False


class FileWriter:
    """Stores the files of one attempt in their own folder; it stores one file while the next is encoded.

    Parameters
    ----------
    folder : Folder
        The operator's folder.
    attempt_id : str
        The unique id of the attempt, which names the folder.
    """

    def __init__(self, folder: Folder, attempt_id: str) -> None:
        self._folder = folder
        self._prefix = f"data/{attempt_id}"
        self._stored: list[DataFile] = []
        self._storing: Future[DataFile] | None = None
        self._thread: DaemonPool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def write(
        self,
        label: FileLabel,
        name: str,
        key_groups: KeyGroupRange,
        encoder: ParquetEncoder,
        *,
        goes_on: bool = False,
    ) -> None:
        """End a file and store it after the previous one; with `goes_on`, on a thread, as more has to be encoded."""
        path = f"{self._prefix}/{name}.parquet"
        DATA_PATH.check("path", path)
        metadata = {
            "keygroups.path": path,
            "keygroups.kind": label.kind,
            "keygroups.state": label.state or "",
            "keygroups.key_groups": f"{key_groups.start}-{key_groups.end}",
            "keygroups.parent": label.parent_id or "",
        }
        encoded = encoder.finish(metadata)
        self._wait()
        if goes_on:
            self._thread = self._thread or DaemonPool(1, "snapshot-files")
            self._storing = self._thread.submit(self._store, label, path, key_groups, encoded)
        else:
            self._stored.append(self._store(label, path, key_groups, encoded))

    def stored(self) -> tuple[DataFile, ...]:
        """Wait until the last file is stored, and return all files."""
        self._wait()
        return tuple(self._stored)

    def _wait(self) -> None:
        if self._storing is not None:
            self._stored.append(self._storing.result())
            self._storing = None

    def _store(self, label: FileLabel, path: str, key_groups: KeyGroupRange, encoded: EncodedFile) -> DataFile:
        self._folder.write(path, encoded.data)
        return DataFile(
            kind=label.kind,
            state=label.state,
            subtask=label.subtask,
            version=label.version,
            parent_id=label.parent_id,
            folds=label.folds,
            key_groups=key_groups,
            file_key_groups=key_groups,
            path=path,
            rows=encoded.rows,
            bytes=encoded.data.size,
            sha256=encoded.sha256,
            footer_bytes=encoded.footer_bytes,
            footer_sha256=encoded.footer_sha256,
        )


def target_file_bytes(stored_bytes: int) -> int:
    """Return the target size of the next file, which grows so that a large state does not have too many files.

    Parameters
    ----------
    stored_bytes : int
        How many bytes of the state the subtask has already written.
    """
    return max(FILE_BYTES, min(stored_bytes // 8, LARGE_FILE_BYTES))


class KeyedWriter:
    """Writes rows of one state, given in the order of key groups, as files that together cover a range.

    Parameters
    ----------
    files : FileWriter
        Stores the files.
    label : FileLabel
        The label of every file.
    schema : pyarrow.Schema
        The schema of every file, unless `begin_again` changes it.
    key_groups : KeyGroupRange
        The range.
    """

    def __init__(self, files: FileWriter, label: FileLabel, schema: pa.Schema, key_groups: KeyGroupRange) -> None:
        self._files = files
        self._label = label
        self._schema = schema
        self._first = key_groups.start
        self._last = key_groups.end
        self._encoder = ParquetEncoder(schema)
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = self._stored_bytes = 0

    def add(self, key_group: int, tables: Iterable[pa.Table]) -> None:
        """Add the rows of a key group; if the current file is full, start a new one first."""
        if self._encoder.rows and self._encoder.bytes >= target_file_bytes(self._stored_bytes):
            self._end_file(key_group - 1, goes_on=True)
            self._encoder = ParquetEncoder(self._schema)
            self._first = key_group
        for table in tables:
            self._waiting.append(table)
            self._rows += table.num_rows
            self._bytes += table.nbytes
            if self._bytes >= ROW_GROUP_BYTES:
                self._end_row_group()
        if self._rows >= ROW_GROUP_ROWS_MIN:
            self._end_row_group()

    def begin_again(self, schema: pa.Schema) -> int:
        """Discard the current file, because it and all later ones need a different schema.

        Returns
        -------
        int
            The key group with which the current file begins; add its rows again from there.
        """
        self._schema = schema
        self._encoder = ParquetEncoder(schema)
        self._waiting, self._rows, self._bytes = [], 0, 0
        return self._first

    def finish(self) -> None:
        """Write the last file."""
        self._end_file(self._last, goes_on=False)

    def _end_row_group(self) -> None:
        if self._rows:
            self._encoder.write(pa.concat_tables(self._waiting))
        self._waiting, self._rows, self._bytes = [], 0, 0

    def _end_file(self, last: int, *, goes_on: bool) -> None:
        self._end_row_group()
        key_groups = KeyGroupRange(self._first, last)
        name = f"{self._label.kind}-{self._label.state}-{key_groups.start}-{key_groups.end}"
        self._stored_bytes += self._encoder.bytes
        self._files.write(self._label, name, key_groups, self._encoder, goes_on=goes_on)
