"""Exports a state, or the in-flight elements, to one file in a common format; streaming and atomic."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from keygroups.arguments import check_location
from keygroups.context_managers import contextmanager
from keygroups.errors import ConfigError
from keygroups.ranges import KeyGroupRange
from keygroups.values.texts import csv_line
from snapshots.format.columns import is_packed
from snapshots.format.manifest import DataFile
from snapshots.format.parquet import KEY_GROUP
from snapshots.format.steps import check_step, of_step
from snapshots.inspection.target import replacing
from snapshots.progress import Progress, progress_of
from snapshots.restore.reader import decode_column
from snapshots.restore.snapshot import Snapshot
from snapshots.restore.streaming import StateStream, all_key_groups
from snapshots.restore.tables import ITEMS_SCHEMA, element_tables, elements_schema, item_files, item_tables


class _Sink(Protocol):
    def write(self, table: pa.Table) -> None: ...


def export(
    snapshot: Snapshot,
    state_name: str | None,
    path: str | os.PathLike[str],
    *,
    key_groups: KeyGroupRange | None = None,
    step: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Write a state, or the in-flight elements, to a local file. The ending of its name sets the format.

    ``.parquet`` and ``.arrow`` (an IPC file) have the columns of `Snapshot.to_arrow`, but those without an Arrow type
    are JSON text in place of msgpack, so that any program can read them. ``.csv`` and ``.jsonl`` are JSON throughout.
    In JSON, bytes are Base64 and other types that it lacks are text; in CSV only nested values are JSON. An existing
    file is replaced only when the new one is complete. Memory is bounded.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    state_name : str or None
        The name of a state, with or without a key; None for the in-flight elements.
    path : str or path
        The file to write.
    key_groups : KeyGroupRange, optional
        Export only these; elements without a key belong to no key group.
    step : str, optional
        Of the in-flight elements of a job only this step's, whose values often have a type of their own.
    progress : callable, optional
        Called with the number of bytes done and the total number of bytes.

    Returns
    -------
    int
        The number of rows written.

    Raises
    ------
    ConfigError
        There is no such state or format, or key groups are named for a state without a key.
    WrongStep
        There is no such step.
    SnapshotCorrupted
        A file of the snapshot is damaged; the target is unchanged.
    """
    tell = progress_of(progress)
    target = Path(check_location("path", path, reason="name the file to write"))
    sink_of = _SINKS.get(target.suffix)
    if sink_of is None:
        raise ConfigError("path", str(path), f"the ending sets the format: use one of {', '.join(sorted(_SINKS))}")
    content = (
        _elements_of(snapshot, key_groups, step)
        if state_name is None
        else _content_of(snapshot, state_name, key_groups)
    )
    rows_total, bytes_total = (
        max(sum(file.rows for file in content.files), 1),
        sum(file.bytes for file in content.files),
    )
    done = 0
    with replacing(target) as unfinished, sink_of(unfinished, content.schema) as sink:
        for table in content.tables:
            sink.write(table)
            done += table.num_rows
            tell(bytes_total * done // rows_total, bytes_total)
    return done


class _Content(NamedTuple):
    schema: pa.Schema
    tables: Iterator[pa.Table]
    files: tuple[DataFile, ...]


def _elements_of(snapshot: Snapshot, key_groups: KeyGroupRange | None, step: str | None) -> _Content:
    manifest = snapshot.manifest
    if step is not None:
        check_step(manifest, step)
        manifest = of_step(manifest, step)
    schema = elements_schema(snapshot.folder, manifest)
    tables = element_tables(snapshot.folder, manifest, schema)
    return _Content(schema, _within(tables, key_groups), manifest.files_of("in_flight"))


def _content_of(snapshot: Snapshot, state_name: str, key_groups: KeyGroupRange | None) -> _Content:
    manifest = snapshot.manifest
    operator_state = manifest.operator_state(state_name)
    if operator_state is not None and manifest.state(state_name) is None:
        if key_groups is not None:
            raise ConfigError("key_groups", key_groups, f"state {state_name!r} has no keys: leave them out")
        files = item_files(manifest, operator_state)
        return _Content(ITEMS_SCHEMA, item_tables(snapshot.folder, manifest, operator_state), files)
    stream = StateStream.of(snapshot.folder, manifest, state_name)
    tables = stream.tables(all_key_groups(manifest) if key_groups is None else key_groups)
    return _Content(stream.schema, tables, manifest.files_of("keyed", "delta", state=state_name))


def plain(value: Any) -> Any:
    """Return the JSON form of a value; types that JSON lacks become text, a list, or a list of pairs.

    Examples
    --------
    >>> plain({1: (b"a", 2.5)})
    [[1, ['YQ==', 2.5]]]
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if value - value == 0 else str(value)
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case list() | tuple():
            return [plain(item) for item in value]
        case set() | frozenset():
            return sorted((plain(item) for item in value), key=repr)
        case Mapping():
            if all(isinstance(key, str) for key in value):
                return {key: plain(item) for key, item in value.items()}
            return [[plain(key), plain(item)] for key, item in value.items()]
        case _ if hasattr(value, "isoformat"):
            return value.isoformat()
        case _:
            return str(value)


def _within(tables: Iterable[pa.Table], key_groups: KeyGroupRange | None) -> Iterator[pa.Table]:
    for table in tables:
        if key_groups is not None:
            groups = table.column(KEY_GROUP).to_numpy()
            yield table.filter(pa.array((groups >= key_groups.start) & (groups <= key_groups.end)))
        else:
            yield table


@contextmanager
def _parquet_sink(path: str, schema: pa.Schema) -> Iterator[_Sink]:
    text = _text_schema(schema)
    with pq.ParquetWriter(path, text, compression="zstd") as writer:
        yield _ColumnSink(writer, text)


@contextmanager
def _arrow_sink(path: str, schema: pa.Schema) -> Iterator[_Sink]:
    text = _text_schema(schema)
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, text) as writer:
        yield _ColumnSink(writer, text)


def _text_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema with text in place of msgpack."""
    return pa.schema(
        [pa.field(field.name, pa.string(), field.nullable) if is_packed(field) else field for field in schema]
    )


class _ColumnSink:
    """Writes typed columns as they are and the others as JSON text."""

    def __init__(self, file: _Sink, schema: pa.Schema) -> None:
        self._file = file
        self._schema = schema

    def write(self, table: pa.Table) -> None:
        """Write the rows."""
        columns = [_json_column(table, f.name) if is_packed(f) else table.column(f.name) for f in table.schema]
        self._file.write(pa.table(columns, schema=self._schema))


def _json_column(table: pa.Table, name: str) -> pa.Array:
    values = decode_column(table, name)
    texts = [None if value is None else json.dumps(plain(value), ensure_ascii=False) for value in values]
    return pa.array(texts, pa.string())


class _JsonLines:
    """Writes one JSON object per line."""

    def __init__(self, file: io.TextIOBase) -> None:
        self._file = file

    def write(self, table: pa.Table) -> None:
        """Write the rows."""
        columns = {name: decode_column(table, name) for name in table.schema.names}
        for row in zip(*columns.values(), strict=True):
            fields = {name: plain(value) for name, value in zip(columns, row, strict=True)}
            self._file.write(json.dumps(fields, ensure_ascii=False) + "\n")


class _Csv:
    """Writes CSV with a header; None is an empty cell, and empty text is a pair of quotes."""

    def __init__(self, file: io.TextIOBase, schema: pa.Schema) -> None:
        self._file = file
        self._file.write(csv_line(schema.names))

    def write(self, table: pa.Table) -> None:
        """Write the rows."""
        columns = [_cells(table, name) for name in table.schema.names]
        self._file.writelines(map(csv_line, zip(*columns, strict=True)))


def _cells(table: pa.Table, name: str) -> Iterable[str | None]:
    for value in map(plain, decode_column(table, name)):
        if value is None or isinstance(value, str):
            yield value
        else:
            yield json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def _text_sink(make: Callable[[io.TextIOBase, pa.Schema], _Sink]) -> Callable[[str, pa.Schema], Any]:
    @contextmanager
    def sink(path: str, schema: pa.Schema) -> Iterator[_Sink]:
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            yield make(file, schema)

    return sink


_SINKS: dict[str, Callable[[str, pa.Schema], AbstractContextManager[_Sink]]] = {
    ".parquet": _parquet_sink,
    ".arrow": _arrow_sink,
    ".csv": _text_sink(_Csv),
    ".jsonl": _text_sink(lambda file, _schema: _JsonLines(file)),
}
