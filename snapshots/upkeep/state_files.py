"""Writes a keyed state from rows in any order: sorts them into buckets, checks them, and writes base files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from snapshots.filesystem import Folder
from snapshots.format.columns import index_columns, is_packed, keyed_schema
from snapshots.format.files import FileLabel, FileWriter, KeyedWriter
from snapshots.format.manifest import DataFile, Manifest, StateInfo
from snapshots.restore.reader import in_schema
from snapshots.restore.streaming import all_key_groups
from snapshots.temporary_files import temporary_directory
from snapshots.upkeep.buckets import Buckets, by_key_group
from snapshots.upkeep.user_rows import check_whole

_KeyTypes: TypeAlias = tuple[pa.DataType | None, ...]
"""The types of keys and map keys; None for msgpack."""


def write_state(
    folder: Folder, manifest: Manifest, info: StateInfo, tables: Iterator[pa.Table], *, is_first: bool = False
) -> tuple[DataFile, ...]:
    """Write a state from rows, as base files of all key groups.

    Memory is bounded as in `Buckets`; larger data wait on local disk.

    Parameters
    ----------
    folder : Folder
        The operator's folder.
    manifest : Manifest
        The snapshot to change; or the first one, which will name the files itself.
    info : StateInfo
        The state.
    tables : iterator of pyarrow.Table
        The rows of the state, from `RowEncoding.tables`.
    is_first : bool
        Whether the manifest is the first one.

    Raises
    ------
    DuplicateKey, ConfigError
        The rows are not valid content of the state.
    """
    label = FileLabel(kind="keyed", state=info.name, subtask=0, version=manifest.version + (not is_first))
    with (
        temporary_directory("rows") as directory,
        ExitStack() as buckets,
        FileWriter(folder, uuid.uuid4().hex) as files,
    ):
        kinds, ordered = _dealt(info, tables, directory, manifest, buckets)
        schema = keyed_schema(info, *kinds)
        writer = KeyedWriter(files, label, schema, all_key_groups(manifest))
        for table in ordered:
            for key_group, rows in by_key_group(table.cast(schema)):
                check_whole(info, rows)
                writer.add(key_group, [rows])
        writer.finish()
        return files.stored()


def _dealt(
    info: StateInfo, tables: Iterator[pa.Table], directory: Path, manifest: Manifest, open_buckets: ExitStack
) -> tuple[_KeyTypes, Iterator[pa.Table]]:
    """Sort rows into buckets, one set per encoding of the keys; if there are several, merge them into one."""
    columns, key_groups = index_columns(info.kind), all_key_groups(manifest)
    found: dict[_KeyTypes, Buckets] = {}
    for table in tables:
        kinds = tuple(_key_type(table, name) for name in columns)
        if kinds not in found:
            found[kinds] = open_buckets.enter_context(Buckets(_made(directory / str(len(found))), key_groups))
        found[kinds].add(table)
    if len(found) == 1:
        ((kinds, buckets),) = found.items()
        return kinds, buckets.take()
    kinds = tuple(one[0] if len(set(one)) == 1 else None for one in zip(*found, strict=True)) or (None,) * len(columns)
    schema = keyed_schema(info, *kinds)
    together = open_buckets.enter_context(Buckets(_made(directory / "all"), key_groups))
    for buckets in found.values():
        for table in buckets.take():
            together.add(in_schema(table, schema))
    return kinds, together.take()


def _key_type(table: pa.Table, name: str) -> pa.DataType | None:
    field = table.schema.field(name)
    return None if is_packed(field) else field.type


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
