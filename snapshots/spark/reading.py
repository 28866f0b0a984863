"""The reading side of the data source: a state, the elements in flight, or the list of files of a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from keygroups.errors import ConfigError, in_message
from keygroups.hashing import key_group_of
from keygroups.names import split_step
from keygroups.ranges import KeyGroupRange
from keygroups.values import Misfit
from keygroups.values.lossless_casts import cast_table
from snapshots.daemon_threads import DaemonPool
from snapshots.filesystem import Folder
from snapshots.format.columns import common_key_type, index_columns, is_packed, keyed_schema
from snapshots.format.layers import spans
from snapshots.format.manifest import DataFile, Manifest, OperatorStateInfo, StateInfo, manifest_name
from snapshots.format.parquet import KEY_GROUP, ParquetReader
from snapshots.format.schemas import without_field_ids
from snapshots.format.steps import of_step
from snapshots.format.subtask import NO_KEY_GROUP
from snapshots.restore.reader import StateReader, decode_column, in_schema, merged_pieces
from snapshots.restore.snapshot import Snapshot
from snapshots.restore.tables import ITEMS_SCHEMA, elements_schema, in_elements_schema, item_files, items_in
from snapshots.spark.types import arrow_schema_of, spark_schema_of

IN_FLIGHT = "in_flight"
METADATA = "metadata"

_METADATA_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("state", pa.string()),
        ("first_key_group", pa.int32()),
        ("last_key_group", pa.int32()),
        ("subtask", pa.int32()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("added_in_version", pa.int64()),
        ("version", pa.int64()),
        ("parallelism", pa.int32()),
        ("max_parallelism", pa.int32()),
        ("created_at", pa.string()),
    ]
)

REQUESTS_AT_ONCE = 16

KEYS_MAX = 10_000
"""A longer list of keys would match nearly all key groups anyway."""

_PYTHON_TYPES = {pa.int64(): int, pa.float64(): float, pa.string(): str, pa.binary(): bytes}
_COMPARISONS: dict[type[Filter], Any] = {
    GreaterThan: np.greater,
    GreaterThanOrEqual: np.greater_equal,
    LessThan: np.less,
    LessThanOrEqual: np.less_equal,
}


def stored_schema(snapshot: Snapshot, what: str) -> pa.Schema:
    """Return the Arrow schema of a state with or without a key, of the elements in flight, or of the metadata.

    Raises
    ------
    ConfigError
        There is no such state.
    """
    if what == METADATA:
        return _METADATA_SCHEMA
    if (elements := _manifest_of_elements(snapshot, what)) is not None:
        return elements_schema(snapshot.folder, elements)
    info = snapshot.manifest.state(what)
    if info is None and what in snapshot.operator_state_names:
        return ITEMS_SCHEMA
    if info is None:
        known = [*snapshot.state_names, *snapshot.operator_state_names, IN_FLIGHT, METADATA]
        raise ConfigError("what", what, f"the snapshot has {', '.join(known)}")
    return keyed_schema(info, *_key_types(snapshot, info))


def _manifest_of_elements(snapshot: Snapshot, what: str) -> Manifest | None:
    """Return what the manifest says of the elements of all steps, or of one; None if something else is read."""
    step, name = split_step(what)
    if what == IN_FLIGHT:
        return snapshot.manifest
    return of_step(snapshot.manifest, step) if name == IN_FLIGHT and step in snapshot.manifest.step_names else None


def spark_schema(schema: pa.Schema, what: str) -> StructType:
    """Return the Spark schema of the columns.

    Raises
    ------
    ConfigError
        Spark does not support one of the types.
    """
    try:
        return spark_schema_of(pa.schema([without_field_ids(field) for field in schema]))
    except PySparkException as error:
        reason = f"Spark does not support all of its types ({error}); read it with Snapshot.to_arrow"
        raise ConfigError("what", what, reason) from error


def reader_of(snapshot: Snapshot, what: str, schema: StructType) -> DataSourceReader:
    """Return the reader of a state with or without a key, of the elements in flight, or of the metadata."""
    wanted_schema = arrow_schema_of(schema, "UTC")
    if what == METADATA:
        return _MetadataReader(cast_table(_metadata(snapshot.manifest), wanted_schema))
    operator_state = snapshot.manifest.operator_state(what)
    if operator_state is not None and what not in snapshot.state_names:
        return OperatorStateReader(snapshot, operator_state, wanted_schema)
    return SnapshotReader(snapshot, what, wanted_schema)


@dataclass(frozen=True, slots=True)
class ReadPartition:
    """What one task reads.

    Attributes
    ----------
    runs : tuple of (int, int)
        The key groups, as first and last of each run.
    files : tuple of DataFile
        The files that hold them: for a state, a base and its deltas; otherwise one file.
    """

    runs: tuple[tuple[int, int], ...]
    files: tuple[DataFile, ...]


class SnapshotReader(DataSourceReader):
    """Reads a state, or the elements in flight, with one task per file, or per range with the same files.

    Filters on `key_group` and `key` prune key groups: each task reads only the row groups that hold the remaining ones.
    Spark still applies all filters itself.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot to read.
    what : str
        The name of a state, or `IN_FLIGHT`, for one step of a job with its name and a dot before it.
    schema : pyarrow.Schema
        The schema of the record batches that Spark expects.
    """

    def __init__(self, snapshot: Snapshot, what: str, schema: pa.Schema) -> None:
        elements = _manifest_of_elements(snapshot, what)
        manifest = snapshot.manifest if elements is None else elements
        self._folder = snapshot.folder
        self._manifest_path = self._folder.path(manifest_name(manifest.version))
        self._is_state = elements is None
        self._is_job = bool(manifest.step_names)
        self._stored_schema = stored_schema(snapshot, what)
        self._schema = schema
        self._all = KeyGroupRange(0, manifest.max_parallelism - 1)
        kept = manifest.files_of("keyed", "delta", state=what) if self._is_state else manifest.files_of("in_flight")
        self._files: tuple[DataFile, ...] = kept
        key_type = type_of(self._stored_schema.field("key"))
        self._wanted = WantedKeyGroups(manifest.max_parallelism, manifest.hash, key_type)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Remove the key groups that the filters exclude; returns all filters, because rows are not filtered here."""
        self._wanted.narrow(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per run of key groups with the same files; for in-flight elements, one per file."""
        parts = self._parts_of_state() if self._is_state else self._parts_in_flight()
        # Spark treats an empty list as one partition without a value.
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a partition."""
        part: ReadPartition | None = partition.value
        for table in () if part is None else self._tables(part):
            yield from _in_columns(table, self._schema).to_batches()

    def _parts_of_state(self) -> Iterator[ReadPartition]:
        for span, files in spans(self._files, self._all):
            runs = self._wanted.runs(span.start, span.end)
            if runs and any(file.rows for file in files):
                yield ReadPartition(runs, tuple(files))

    def _parts_in_flight(self) -> Iterator[ReadPartition]:
        for file in self._files:
            # Elements without a key are in every file's range.
            runs = self._wanted.runs(NO_KEY_GROUP, NO_KEY_GROUP)
            runs += self._wanted.runs(file.key_groups.start, file.key_groups.end)
            if runs:
                yield ReadPartition(runs, (file,))

    def _tables(self, part: ReadPartition) -> Iterator[pa.Table]:
        base, *deltas = part.files
        tables = self._merged(part) if deltas else _rows_of(ParquetReader(self._folder, base), part.runs)
        if self._is_state:
            return (in_schema(table, self._stored_schema) for table in tables)
        step = base.state if self._is_job else None
        return (in_elements_schema(table, step, self._stored_schema) for table in tables)

    def _merged(self, part: ReadPartition) -> Iterator[pa.Table]:
        reader = StateReader(self._folder, part.files, self._manifest_path)
        for first, last in part.runs:
            for span, layers in reader.spans(KeyGroupRange(first, last)):
                yield from merged_pieces(span, layers)


def _in_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    try:
        return cast_table(table, schema)
    except Misfit as misfit:
        (key,) = decode_column(table.slice(misfit.row, 1), "key")
        reason = f"{misfit.reason} (in the row of key {in_message(key)}); read it with Snapshot.to_arrow"
        raise ConfigError("schema", misfit.column, reason) from None


class _MetadataReader(DataSourceReader):
    """Returns a table that the driver has created."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(self._table.to_batches())


def _rows_of(parquet: ParquetReader, runs: Sequence[tuple[int, int]]) -> Iterator[pa.Table]:
    """Yield the rows of some key groups in bounded pieces; each row group is read only once."""
    numbers = sorted({number for first, last in runs for number in parquet.row_groups(first, last)})
    firsts, lasts = np.array(runs).T
    for batch in parquet.batches(numbers):
        table = parquet.read(batch)
        groups = table.column(KEY_GROUP).to_numpy()
        run = np.searchsorted(firsts, groups, side="right") - 1
        yield table.filter(pa.array((run >= 0) & (groups <= lasts[run])))


def _key_types(snapshot: Snapshot, info: StateInfo) -> list[pa.DataType | None]:
    """Return the types of a state's index columns, from the footers; None for msgpack."""
    files = [file for file in snapshot.manifest.files_of("keyed", "delta", state=info.name) if file.rows]
    with DaemonPool(REQUESTS_AT_ONCE) as pool:
        schemas = list(pool.map(lambda file: _file_schema(snapshot.folder, file), files))
    columns = index_columns(info.kind)
    return [common_key_type({type_of(schema.field(column)) for schema in schemas}) for column in columns]


def type_of(field: pa.Field) -> pa.DataType | None:
    """Return the type of an index column, None for msgpack."""
    return None if is_packed(field) else field.type


def _file_schema(folder: Folder, file: DataFile) -> pa.Schema:
    return ParquetReader(folder, file).schema


def _metadata(manifest: Manifest) -> pa.Table:
    rows = [
        {
            "kind": file.kind,
            "state": file.state,
            "first_key_group": file.key_groups.start,
            "last_key_group": file.key_groups.end,
            "subtask": file.subtask,
            "path": file.path,
            "rows": file.rows,
            "bytes": file.bytes,
            "added_in_version": file.version,
            "version": manifest.version,
            "parallelism": manifest.parallelism,
            "max_parallelism": manifest.max_parallelism,
            "created_at": manifest.created_at,
        }
        for file in manifest.files
    ]
    return pa.Table.from_pylist(rows, schema=_METADATA_SCHEMA)


class OperatorStateReader(DataSourceReader):
    """Reads an operator state, with one task for each file.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot to read.
    state : OperatorStateInfo
        The state.
    schema : pyarrow.Schema
        The schema of the record batches that Spark expects.
    """

    def __init__(self, snapshot: Snapshot, state: OperatorStateInfo, schema: pa.Schema) -> None:
        self._folder = snapshot.folder
        self._files = item_files(snapshot.manifest, state)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each file."""
        return [InputPartition(file) for file in self._files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the items of a partition."""
        file: DataFile | None = partition.value
        if file is not None:  # Spark treats an empty list of partitions as one without a value
            yield from cast_table(items_in(self._folder, file), self._schema).to_batches()


class WantedKeyGroups:
    """A set of key groups that filters narrow down. For use by one thread.

    Parameters
    ----------
    max_parallelism : int
        The number of key groups.
    hash : str
        The hash that maps keys to key groups.
    key_type : pyarrow.DataType or None
        The type of the column `key`; None if keys are msgpack, in which case filters on them cannot prune.
    """

    def __init__(self, max_parallelism: int, hash: str, key_type: pa.DataType | None) -> None:
        self._max_parallelism = max_parallelism
        # The other hash distinguishes 32-bit from 64-bit integers, but the column does not.
        self._python_type = _PYTHON_TYPES.get(key_type) if hash == "xxhash64" else None
        self._numbers = np.arange(NO_KEY_GROUP, max_parallelism)
        self._is_wanted = np.ones(max_parallelism + 1, np.bool_)

    def narrow(self, filters: Iterable[Filter]) -> None:
        """Remove the key groups that the filters exclude; all filters must hold."""
        for one in filters:
            column = getattr(one, "attribute", None)
            if column == (KEY_GROUP,):
                self._is_wanted &= self._with_group(one)
            elif column == ("key",) and self._python_type is not None:
                self._is_wanted &= self._with_key(one)

    def runs(self, first: int, last: int) -> tuple[tuple[int, int], ...]:
        """Return the remaining key groups from `first` to `last`, inclusive, as first and last of each run."""
        groups = self._numbers[self._is_wanted & (first <= self._numbers) & (self._numbers <= last)]
        runs = np.split(groups, np.flatnonzero(np.diff(groups) > 1) + 1)
        return tuple((int(run[0]), int(run[-1])) for run in runs if len(run))

    def _with_group(self, one: Filter) -> NDArray[np.bool_]:
        values = _values_of(one, int)
        if values is not None:
            return np.isin(self._numbers, values)
        compare = _COMPARISONS.get(type(one))
        if compare is None or type(one.value) is not int:  # type: ignore[attr-defined]
            return np.ones_like(self._is_wanted)
        found: NDArray[np.bool_] = compare(self._numbers, one.value)  # type: ignore[attr-defined]
        return found

    def _with_key(self, one: Filter) -> NDArray[np.bool_]:
        assert self._python_type is not None
        values = _values_of(one, self._python_type)
        if values is None or len(values) > KEYS_MAX:
            return np.ones_like(self._is_wanted)
        return np.isin(self._numbers, [key_group_of(key, self._max_parallelism) for key in values])


def _values_of(one: Filter, kind: type) -> list[Any] | None:
    """Return the values that a filter allows; None if it does not list values of this type."""
    match one:
        case EqualTo(value=value) | EqualNullSafe(value=value):
            values = [value]
        case In(value=listed):
            # A null in the list matches nothing.
            values = [value for value in listed if value is not None]
        case _:
            return None
    return values if all(type(value) is kind for value in values) else None
