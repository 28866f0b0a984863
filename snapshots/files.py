"""The data files that a writer makes: bounded in size, cut at key groups, named after what they hold."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from keygroups.ranges import KeyGroupRange
from snapshots.filesystem import Folder
from snapshots.manifest import DataFile, FileKind
from snapshots.parquet import EncodedFile, ParquetEncoder

FILE_BYTES = 32 * 2**20
"""A file is ended at the next key group once it has so many bytes …"""

LARGE_FILE_BYTES = 256 * 2**20
"""… or, in a large state, an eighth of what is written of it, up to this: a writer keeps two files in memory."""

ROW_GROUP_ROWS_MIN = 8192
"""Neighbouring key groups share a row group until it has this many rows."""

ROW_GROUP_BYTES = 16 * 2**20
"""A row group is ended with so many bytes as Arrow has them, even within a key group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLabel:
    """What a manifest says about a file, before it is known how large it is."""

    kind: FileKind
    state: str | None = None
    subtask: int
    version: int
    parent_id: str | None = None
    folds: bool = False


class FileWriter:
    """Stores files in a folder of their own, so that no other attempt overwrites them; one while the next is encoded.

    Parameters
    ----------
    folder : Folder
        The operator's folder.
    attempt_id : str
        Unique.
    """

    def __init__(self, folder: Folder, attempt_id: str) -> None:
        self._folder = folder
        self._prefix = f"data/{attempt_id}"
        self._stored: list[DataFile] = []
        self._storing: Future[DataFile] | None = None
        self._thread: ThreadPoolExecutor | None = None

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
        """End a file and store it, once the one before it is stored; in a thread, if there is more to encode."""
        path = f"{self._prefix}/{name}.parquet"
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
            self._thread = self._thread or ThreadPoolExecutor(1, "snapshot-files")
            self._storing = self._thread.submit(self._store, label, path, key_groups, encoded)
        else:
            self._stored.append(self._store(label, path, key_groups, encoded))

    def stored(self) -> tuple[DataFile, ...]:
        """Return all files, once the last one is stored."""
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
    """Return how large the next file is to become, so that a large state does not have ever more files.

    Parameters
    ----------
    stored_bytes : int
        What the subtask has written of the state already.
    """
    return max(FILE_BYTES, min(stored_bytes // 8, LARGE_FILE_BYTES))


class KeyedWriter:
    """Writes rows of one state, which come in the order of key groups, as files that together cover a range.

    Parameters
    ----------
    files : FileWriter
        Stores them.
    label : FileLabel
        Of every file.
    schema : pyarrow.Schema
        Of every file, unless `begin_again` changes it.
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
        """Add the rows of a key group, after the file before it is ended if that is full."""
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
        """Forget the file that is being written; it, and all that follow, have other columns.

        Returns
        -------
        int
            The key group with which it begins.
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
