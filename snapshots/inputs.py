"""The input of a bounded run: stored in chunks before the first one is processed, so that retries see the same rows.

The rows are data files. The list ``inputs/<run>.json`` names them by chunk and is created once. Until it exists, the
mark ``inputs/<run>.<prefix>`` protects files below ``data/<prefix>`` from collections, however long storing takes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from keygroups.names import NameRule
from keygroups.ranges import KeyGroupRange
from snapshots.errors import SnapshotCorrupted
from snapshots.filesystem import FileInfo, Folder
from snapshots.format.files import FileLabel, FileWriter
from snapshots.format.manifest import MANIFEST_BYTES_MAX, DataFile
from snapshots.format.parquet import ParquetEncoder
from snapshots.format.sealing import canonical, fields_of, opened, sealed

RUN_ID = NameRule(
    re.compile("[A-Za-z0-9_][A-Za-z0-9_-]*"), 128, "use letters, digits, '_' and '-', at most 128 of them"
)
"""The id of a run, which is part of the names of its files."""

FINISHED = "finished_runs"
"""The field of a source position with the ids of runs that have finished."""

UNDER_WAY = "run"
"""The field with the run that has begun and not finished."""

_FOLDER = "inputs"
_IDLE_SECONDS_MAX = 7 * 24 * 3600.0
"""An older mark, or an older list of a run of which nothing is in the state, protects nothing: it was given up."""


@dataclass(frozen=True, slots=True)
class StoredInput:
    """The stored input of a run.

    Attributes
    ----------
    run_id : str
        The run.
    input_id : str
        Unique to this storing: rows that are stored again under the same run id are other rows.
    schema : str
        The schema of the rows, as their writer describes it.
    chunks : tuple of tuple of DataFile
        The files of each chunk, in their order.
    """

    run_id: str
    input_id: str
    schema: str
    chunks: tuple[tuple[DataFile, ...], ...]

    def to_bytes(self) -> bytes:
        """Encode as JSON with a checksum."""
        return sealed(canonical(fields_of(self)))

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> StoredInput:
        """Decode and check; `path` is for error messages.

        Raises
        ------
        SnapshotCorrupted
            The bytes are damaged.
        """
        body = opened(data, path, MANIFEST_BYTES_MAX)
        try:
            chunks = tuple(tuple(map(DataFile.from_fields, chunk)) for chunk in body["chunks"])
            return cls(str(body["run_id"]), str(body["input_id"]), str(body["schema"]), chunks)
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotCorrupted(path, f"a field is missing or wrong: {error}") from error


def begin_storing(folder: Folder, run_id: str, prefix: str) -> None:
    """Protect the files of a run's input from collections until `put_input` or `remove_input`."""
    folder.delete([name for name in _names_of(folder, run_id) if name != _list_name(run_id)])
    folder.write(f"{_FOLDER}/{run_id}.{prefix}", b"")


def write_rows(folder: Folder, attempt_id: str, number: int, partition: int, rows: pa.Table) -> DataFile:
    """Store some rows as one file; called by workers."""
    nowhere = KeyGroupRange(0, 0)
    with FileWriter(folder, attempt_id) as files:
        encoder = ParquetEncoder(rows.schema)
        encoder.write(rows)
        label = FileLabel(kind="output", subtask=partition, version=0)
        files.write(label, f"input-{partition}-{number}", nowhere, encoder)
        (stored,) = files.stored()
    return stored


def put_input(folder: Folder, stored: StoredInput) -> StoredInput:
    """Create the list of a run's chunks, or return the one that another process has created."""
    try:
        folder.create(_list_name(stored.run_id), stored.to_bytes())
    except FileExistsError:
        found = load_input(folder, stored.run_id)
        assert found is not None, "it exists"
        stored = found
    folder.delete([name for name in _names_of(folder, stored.run_id) if name != _list_name(stored.run_id)])
    return stored


def load_input(folder: Folder, run_id: str) -> StoredInput | None:
    """Return the stored input of a run, or None if it is not stored.

    Raises
    ------
    SnapshotCorrupted
        The list of its chunks is damaged.
    """
    name = _list_name(run_id)
    try:
        data = folder.read(name, 0, MANIFEST_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    return StoredInput.from_bytes(data, folder.path(name))


def remove_input(folder: Folder, run_id: str) -> None:
    """Remove what is stored of a run's input: first the list, so that it is never read without its files."""
    stored = load_input(folder, run_id)
    folder.delete(_names_of(folder, run_id))
    if stored is not None:
        folder.delete([file.path for chunk in stored.chunks for file in chunk])


def needed_inputs(
    folder: Folder, listed: Sequence[FileInfo], position: Mapping[str, Any], now: float
) -> tuple[set[str], tuple[str, ...]]:
    """Return the files that runs still need, by name and by prefix.

    Parameters
    ----------
    folder : Folder
        The operator's folder.
    listed : sequence of FileInfo
        What is in it.
    position : mapping
        The newest source position, which names the run under way and those that have finished.
    now : float
        The storage's time.
    """
    done, under_way = set(position.get(FINISHED, ())), (position.get(UNDER_WAY) or {}).get("run_id")
    names, prefixes = set[str](), list[str]()
    for file in listed:
        folder_name, _, name = file.name.rpartition("/")
        run_id, _, rest = name.partition(".")
        is_idle = run_id != under_way and file.modified <= now - _IDLE_SECONDS_MAX
        if folder_name != _FOLDER or run_id in done or is_idle:
            continue
        if rest != "json":
            prefixes += [f"data/{rest}", file.name]
            continue
        stored = load_input(folder, run_id)
        names.add(file.name)
        names.update(() if stored is None else (file.path for chunk in stored.chunks for file in chunk))
    return names, tuple(prefixes)


def _list_name(run_id: str) -> str:
    return f"{_FOLDER}/{run_id}.json"


def _names_of(folder: Folder, run_id: str) -> list[str]:
    return [f"{_FOLDER}/{name}" for name in folder.names(_FOLDER) if name.partition(".")[0] == run_id]
