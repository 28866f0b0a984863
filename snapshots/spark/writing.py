"""The writing side of the data source: writes a state of a first snapshot from the rows of a DataFrame.

Spark passes the partitions to a writer unchanged. So each task distributes its rows to files, one per subtask, under
names of its attempt. The driver makes the parts of the subtasks from these files, one after the other, and commits
them together. Nothing refers to the files of failed or superfluous attempts, so they are collected as garbage.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from keygroups.descriptors import AggregatingState, ListState, MapState, ReducingState, StateDescriptor, ValueState
from keygroups.errors import ConfigError
from keygroups.ranges import check_parallelism, default_max_parallelism, range_of
from snapshots.commit.part_writer import SubtaskHandle
from snapshots.commit.pending_snapshot import PendingSnapshot
from snapshots.errors import IncompatibleSnapshot
from snapshots.filesystem import Folder
from snapshots.format.columns import index_columns, keyed_schema
from snapshots.format.files import FileLabel, FileWriter, KeyedWriter
from snapshots.format.manifest import Channel, Manifest
from snapshots.format.parquet import KEY_GROUP
from snapshots.format.schemas import ENTRY_COLUMNS, state_info
from snapshots.spark.options import SourceOptions
from snapshots.spark.types import arrow_schema_of
from snapshots.upkeep.buckets import by_key_group
from snapshots.upkeep.user_rows import UserRowEncoding, check_whole

STAGED_BYTES = 64 * 2**20
"""How much a task collects in memory before it writes the rows of each subtask."""


@dataclass
class StagedFiles(WriterCommitMessage):
    """The files that one task has written, by subtask."""

    by_subtask: dict[int, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class WriteTarget:
    """How the rows of a write are encoded and distributed.

    Attributes
    ----------
    encoding : UserRowEncoding
        Converts the rows to the state's rows.
    parallelism : int
        The parallelism of the snapshot.
    """

    encoding: UserRowEncoding
    parallelism: int


class StateWriter(DataSourceArrowWriter):
    """Writes a state from the rows of a DataFrame; the driver and every task have their own copy.

    Parameters
    ----------
    options : SourceOptions
        The options of the write.
    schema : StructType
        The schema of the DataFrame.
    overwrite : bool
        Whether to replace an existing state of that name.

    Raises
    ------
    ConfigError
        An option is missing or invalid, or the columns do not fit a state.
    IncompatibleSnapshot
        An operator wrote the newest snapshot, or it already has that state and `overwrite` is false.
    """

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        self._pending = options.store().begin()
        parent = self._pending.parent
        name = options.required("state")
        if parent is not None:
            _check_parent(parent, name, overwrite)
        self._target = _target(options, arrow_schema_of(schema, "UTC"), name, parent)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedFiles:
        """Distribute the rows of a partition to files, one per subtask; no other attempt writes to them."""
        target, staging = self._target, _Staging(self._pending.folder)
        for batch in iterator:
            for rows in target.encoding.tables(batch):
                groups = rows.column(KEY_GROUP).to_numpy()
                subtasks = groups * target.parallelism // target.encoding.max_parallelism
                order = np.argsort(subtasks, kind="stable")
                found, starts = np.unique(subtasks[order], return_index=True)
                ordered = rows.take(pa.array(order))
                for subtask, (start, end) in zip(found.tolist(), pairwise([*starts, len(order)]), strict=True):
                    staging.add(subtask, ordered.slice(start, end - start))
        return staging.finish()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Write the part of every subtask from the files of the tasks, and commit all parts together."""
        staged = [message for message in messages if isinstance(message, StagedFiles)]
        pending, target = self._pending, self._target
        by_subtask = [
            [name for message in staged for name in message.by_subtask.get(subtask, ())]
            for subtask in range(target.parallelism)
        ]
        # The keys of a DataFrame have one type, so all files with rows have the same columns.
        some = next((names[0] for names in by_subtask if names), None)
        columns = index_columns(target.encoding.info.kind)
        schema = (
            keyed_schema(target.encoding.info, *(None for _ in columns))
            if some is None
            else _read(pending.folder, some).schema
        )
        pending.commit(
            [_write_subtask(pending, target, schema, subtask, names) for subtask, names in enumerate(by_subtask)]
        )
        self.abort(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the files that the tasks wrote for the driver; nothing refers to them."""
        staged = [message for message in messages if isinstance(message, StagedFiles)]
        self._pending.folder.delete([n for message in staged for names in message.by_subtask.values() for n in names])


class _Staging:
    """Collects the rows of one task attempt by subtask, in memory and then in Arrow files."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._prefix = f"data/{uuid.uuid4().hex}"
        self._rows: dict[int, list[pa.Table]] = {}
        self._bytes = self._files = 0
        self._written = StagedFiles()

    def add(self, subtask: int, rows: pa.Table) -> None:
        self._rows.setdefault(subtask, []).append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= STAGED_BYTES:
            self.finish()

    def finish(self) -> StagedFiles:
        for subtask, tables in self._rows.items():
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, tables[0].schema) as stream:
                for table in tables:
                    stream.write_table(table)
            name = f"{self._prefix}/staged-{subtask}-{self._files}.arrow"
            self._folder.write(name, sink.getvalue())
            self._written.by_subtask.setdefault(subtask, []).append(name)
            self._files += 1
        self._rows, self._bytes = {}, 0
        return self._written


def _check_parent(parent: Manifest, name: str, overwrite: bool) -> None:
    has_run = (
        parent.source_position is not None or parent.in_flight_count or parent.operator_states or parent.step_names
    )
    if has_run:
        # Its source position, outputs and in-flight elements belong to the state of the same cut.
        raise IncompatibleSnapshot("the writer", "no operator", "an operator", "write to the folder of a new operator")
    if parent.state(name) is not None and not overwrite:
        raise IncompatibleSnapshot("a state", "not there yet", name, "use .mode('overwrite'), or another name")


def _target(options: SourceOptions, columns: pa.Schema, name: str, parent: Manifest | None) -> WriteTarget:
    parallelism = options.number("parallelism") or (None if parent is None else parent.parallelism)
    if parallelism is None:
        raise ConfigError("parallelism", None, "there is no snapshot yet to take it from: .option('parallelism', …)")
    key_groups = options.number("max_parallelism") or (
        default_max_parallelism(parallelism) if parent is None else parent.max_parallelism
    )
    check_parallelism(parallelism, key_groups)
    descriptor = _descriptor(options, columns, name)
    info = state_info(descriptor, None if parent is None else parent.state(name))
    encoding = UserRowEncoding(info, key_groups, "xxhash64" if parent is None else parent.hash)
    allowed = keyed_schema(info, *(None for _ in index_columns(info.kind))).names
    if not set(columns.names) <= set(allowed):
        raise ConfigError("columns", columns.names, f"a {info.kind} state has {', '.join(allowed)}: select those")
    return WriteTarget(encoding, parallelism)


def _descriptor(options: SourceOptions, columns: pa.Schema, name: str) -> StateDescriptor:
    kinds = {column: kind for kind, column in ENTRY_COLUMNS.items()}
    entry = [kinds[column] for column in columns.names if column in kinds]
    kind = options.text("kind") or (entry[0] if entry else "value")
    needed = {"key", "value", *([ENTRY_COLUMNS[kind]] if kind in ENTRY_COLUMNS else [])}
    if not needed <= set(columns.names):
        reason = f"a {kind} state needs the columns {', '.join(sorted(needed))}: rename yours"
        raise ConfigError("columns", columns.names, reason)
    type_ = columns.field("value").type
    match kind:
        case "value":
            return ValueState(name, type_)
        case "list":
            return ListState(name, type_)
        case "map":
            return MapState(name, type_)
        case "reducing":
            return ReducingState(name, max, type_)
        case "aggregating":
            return AggregatingState(name, int, max, int, type_)
    raise ConfigError("kind", kind, "use one of value, list, map, reducing, aggregating")


def _read(folder: Folder, name: str) -> pa.Table:
    return pa.ipc.open_stream(folder.read(name)).read_all()


def _write_subtask(
    pending: PendingSnapshot, target: WriteTarget, schema: pa.Schema, subtask: int, names: Sequence[str]
) -> SubtaskHandle:
    """Write a subtask's part; all its rows are in memory during the call."""
    encoding, parent = target.encoding, pending.parent
    info, owned = encoding.info, range_of(subtask, target.parallelism, encoding.max_parallelism)
    staged = [_read(pending.folder, name) for name in names]
    rows = pa.concat_tables([schema.empty_table(), *staged])
    with FileWriter(pending.folder, uuid.uuid4().hex) as files:
        label = FileLabel(kind="keyed", state=info.name, subtask=subtask, version=pending.version)
        writer = KeyedWriter(files, label, schema, owned)
        for key_group, group in by_key_group(rows) if rows.num_rows else ():
            check_whole(info, group)
            writer.add(key_group, [group])
        writer.finish()
        stored = files.stored()
    others = () if parent is None else tuple(other for other in parent.states if other.name != info.name)
    states = (*others, info)
    return SubtaskHandle(
        subtask_index=subtask,
        parallelism=target.parallelism,
        max_parallelism=encoding.max_parallelism,
        hash=encoding.hash,
        key_groups=owned,
        parent_id=None if parent is None else parent.snapshot_id,
        states=states,
        codecs={state.name: frozenset(state.codecs) for state in states},
        operator_states=(),
        files=stored,
        channel=Channel(subtask=subtask, key_groups=owned, watermark=None, cut_id=None, keyless=0),
        in_flight_count=0,
    )
