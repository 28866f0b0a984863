"""A keyed state from rows in any order: dealt to buckets, checked, and written as base files."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from snapshots.buckets import Buckets, by_key_group
from snapshots.columns import index_columns, is_packed, keyed_schema
from snapshots.files import FileLabel, FileWriter, KeyedWriter
from snapshots.filesystem import Folder
from snapshots.manifest import DataFile, Manifest, StateInfo
from snapshots.reader import in_schema
from snapshots.rows import check_whole
from snapshots.streaming import all_key_groups

_KeyTypes: TypeAlias = tuple[pa.DataType | None, ...]
"""Of keys and map keys; None for msgpack."""


def write_state(
    folder: Folder, manifest: Manifest, info: StateInfo, tables: Iterator[pa.Table], *, is_first: bool = False
) -> tuple[DataFile, ...]:
    """Write a state from rows, as base files of all key groups.

    Memory is bounded as that of `Buckets` is; what does not fit waits on local disk.

    Parameters
    ----------
    folder : Folder
        The operator's folder.
    manifest : Manifest
        The snapshot that is changed; or the first one, which is to name the files itself.
    info : StateInfo
        The state.
    tables : iterator of pyarrow.Table
        Its rows, from `RowEncoding.tables`.
    is_first : bool
        Whether the manifest is the first one.

    Raises
    ------
    DuplicateKey, ConfigError
        The rows are not the content of a state.
    """
    label = FileLabel(kind="keyed", state=info.name, subtask=0, version=manifest.version + (not is_first))
    with (
        tempfile.TemporaryDirectory(prefix="keygroups-rows-") as directory,
        ExitStack() as buckets,
        FileWriter(folder, uuid.uuid4().hex) as files,
    ):
        kinds, ordered = _dealt(info, tables, Path(directory), manifest, buckets)
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
    """Deal rows to buckets, one set of them for each encoding of the keys, and all to one if there were several."""
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
