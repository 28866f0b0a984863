"""Reads keyed state: the key groups of files, and the merged layers of a key group."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise, takewhile
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from immutables import Map
from numpy.typing import NDArray

from keygroups.codec import unpack
from keygroups.descriptors import StateDescriptor
from keygroups.ranges import KeyGroupRange
from keygroups.state import MISSING, Expiring, MemoryGroup, TakeRows, identity_of
from keygroups.values import values_of
from snapshots.errors import SnapshotCorrupted
from snapshots.filesystem import Folder
from snapshots.format import compute as pc
from snapshots.format.columns import DELETED, PACKED, PieceSize, encode_column, index_columns, is_packed, key_kind_of
from snapshots.format.expiry import list_of, unexpired
from snapshots.format.layers import spans
from snapshots.format.manifest import DataFile
from snapshots.format.parquet import BATCH_BYTES, KEY_GROUP, ParquetReader, damage_named
from snapshots.format.schemas import ENTRY_COLUMNS, EXPIRES_AT

INDEX_COLUMNS = index_columns("map")


class KeyedReader:
    """Returns the key groups of one file; each row group is read once for all its key groups.

    Any thread may call it: every access to `_tables` is atomic, and at worst two threads read the same row group.
    """

    def __init__(self, parquet: ParquetReader) -> None:
        self._parquet = parquet
        self._tables: dict[int, pa.Table] = {}
        self._kinds: dict[str, frozenset[type]] = {}

    @property
    def file(self) -> DataFile:
        """The file."""
        return self._parquet.file

    @property
    def path(self) -> str:
        """The full path, for error messages."""
        return self._parquet.path

    @property
    def schema(self) -> pa.Schema:
        """The columns of the file."""
        return self._parquet.schema

    def take(self, key_group: int) -> pa.Table:
        """Return the rows of a key group, and keep the others of its row group for later calls."""
        table = self._tables.pop(key_group, None)
        return self._read_around(key_group) if table is None else table

    def has(self, key_group: int) -> bool:
        """Return whether `take` needs to read nothing."""
        return key_group in self._tables or not self._parquet.row_groups(key_group, key_group)

    def read(self, wanted: KeyGroupRange) -> pa.Table:
        """Return the rows of a range of key groups."""
        table = self._parquet.read(self._parquet.row_groups(wanted.start, wanted.end))
        groups = self._key_groups_of(table)
        start, end = np.searchsorted(groups, [wanted.start, wanted.end + 1]).tolist()
        return table.slice(start, end - start)

    def pieces(self, wanted: KeyGroupRange) -> Iterator[pa.Table]:
        """Yield the rows of a range, in pieces of a bounded number of row groups."""
        for numbers in self._parquet.batches(self._parquet.row_groups(wanted.start, wanted.end)):
            table = self._parquet.read(numbers)
            start, end = np.searchsorted(self._key_groups_of(table), [wanted.start, wanted.end + 1]).tolist()
            yield table.slice(start, end - start)

    def kinds(self, column: str) -> frozenset[type]:
        """Return the Python types of an index column, derived from the column's type; none without rows."""
        if column not in self._kinds:
            kinds = {key_kind_of(stored_key_type(self, column))} if self.file.rows else ()
            self._kinds[column] = frozenset(kinds)
        return self._kinds[column]

    @cached_property
    def _empty(self) -> pa.Table:
        return self._parquet.read([])

    def _read_around(self, key_group: int) -> pa.Table:
        numbers = self._parquet.row_groups(key_group, key_group)
        if not numbers:
            return self._empty
        table = self._parquet.read(numbers)
        found = divided(table, self._key_groups_of(table))
        tables = {
            group: rows
            for group, rows in found.items()
            # The first and the last key group may continue in a row group that was not read.
            if set(self._parquet.row_groups(group, group)) <= set(numbers)
        }
        if found:
            # Key groups in between without rows are remembered too; otherwise each would read the row group again.
            tables = dict.fromkeys(range(min(found) + 1, max(found)), self._empty) | tables
        wanted = tables.pop(key_group, self._empty)
        self._tables.update(tables)
        return wanted

    def _key_groups_of(self, table: pa.Table) -> Any:
        """Return the column by which rows are sorted, after checking that they are sorted."""
        groups = table.column(KEY_GROUP).to_numpy()
        owned = self.file.file_key_groups
        if len(groups) and not (owned.start <= groups[0] and groups[-1] <= owned.end and np.all(np.diff(groups) >= 0)):
            raise SnapshotCorrupted(self.path, "it has rows of key groups outside of its range, or unsorted", owned)
        return groups


Span: TypeAlias = tuple[KeyGroupRange, Sequence[KeyedReader]]
"""Key groups with the same layers, the base first."""


class LayeredReader:
    """Returns the current rows of key groups that have the same layers.

    Any thread may call it, as with `KeyedReader`.

    Parameters
    ----------
    key_groups : KeyGroupRange
        The key groups.
    layers : sequence of KeyedReader
        The layers, the base first.
    """

    def __init__(self, key_groups: KeyGroupRange, layers: Sequence[KeyedReader]) -> None:
        self.layers = layers
        self._last = key_groups.end
        self._merged: dict[int, pa.Table] = {}
        self._piece = PieceSize()

    def take(self, key_group: int) -> pa.Table:
        """Return the rows of a key group; neighbours that are merged with it are kept for later calls."""
        if len(self.layers) == 1:
            return self.layers[0].take(key_group)
        table = self._merged.pop(key_group, None)
        return self._merge_from(key_group) if table is None else table

    def _merge_from(self, key_group: int) -> pa.Table:
        in_memory = takewhile(self._has, range(key_group + 1, self._last + 1))
        key_groups, tables = next(runs(chain([key_group], in_memory), self.layers, self._piece))
        table = merge(tables)
        found = divided(table, table.column(KEY_GROUP).to_numpy())
        merged = dict.fromkeys(key_groups, table.slice(0, 0)) | found
        wanted = merged.pop(key_group)
        self._merged.update(merged)
        return wanted

    def _has(self, key_group: int) -> bool:
        return all(layer.has(key_group) for layer in self.layers)


class ArrowGroup:
    """A key group of a snapshot, which is read on demand. Any thread may call it."""

    __slots__ = ("_descriptor", "_now", "_reader", "key_group")

    def __init__(self, reader: LayeredReader, key_group: int, descriptor: StateDescriptor, now: int) -> None:
        self._reader = reader
        self.key_group = key_group
        self._descriptor = descriptor
        self._now = now

    def load(self) -> dict[Hashable, object]:
        """Return the values by the identity of their key."""
        table = self.table()
        if not table.num_rows:  # so it is for most key groups where there are more of them than keys
            return {}
        base = self._reader.layers[0]
        if self._descriptor.ttl is not None:
            table = unexpired(table, self._now)
        with damage_named(base.path, base.file.key_groups):
            group, count = self._content_of(self._as_declared(table))
        if count != table.num_rows:
            raise SnapshotCorrupted(base.path, f"key group {self.key_group} has a key twice", base.file.key_groups)
        return group

    def in_memory(self) -> None:
        """Return None: the values are in files."""

    def kinds(self, column: str, keys_max: int | None = None) -> frozenset[type]:
        """Return the types of the keys or map keys, from the schemas of the files."""
        return frozenset[type]().union(*(layer.kinds(column) for layer in self._reader.layers))

    def rows(self, changed: Collection[Any] | None = None) -> TakeRows:
        """Return a function that returns the next rows; it loads the key group first."""
        return MemoryGroup(self.load(), self._descriptor.kind).rows(changed)

    def stored(self) -> pa.Table | None:
        """Read the stored rows; None if the rows have a time to live and the state does not, or vice versa."""
        is_as_declared = (EXPIRES_AT in self._reader.layers[0].schema.names) == (self._descriptor.ttl is not None)
        return self.table() if is_as_declared else None

    def table(self) -> pa.Table:
        """Return the stored rows."""
        return self._reader.take(self.key_group)

    def _content_of(self, table: pa.Table) -> tuple[dict[Hashable, object], int]:
        """Return the in-memory content for the rows of a key group, and its number of entries."""
        keys, values = _identities(table, "key"), self._values_of(table)
        column = next((name for name in ENTRY_COLUMNS.values() if name in table.schema.names), None)
        if column is None:
            content = dict(zip(keys, values, strict=True))
            return content, len(content)
        entries: dict[Hashable, dict[Any, object]] = {}
        for key, entry, value in zip(keys, _identities(table, column), values, strict=True):
            entries.setdefault(key, {})[entry] = value
        count = sum(map(len, entries.values()))
        if column == "map_key":
            return {key: Map(held) for key, held in entries.items()}, count
        is_stored, is_declared = EXPIRES_AT in table.schema.names, self._descriptor.ttl is not None
        lists = {key: list_of(held, stored_with_ttl=is_stored, has_ttl=is_declared) for key, held in entries.items()}
        return {**lists}, count

    def _values_of(self, table: pa.Table) -> list[Any]:
        """Return the values in their in-memory form: with an expiry if the state has a time to live now."""
        values, ttl = decode_column(table, "value"), self._descriptor.time_to_live
        if ttl is None:
            return values
        expires_at = self._now + ttl.milliseconds
        if EXPIRES_AT not in table.schema.names:
            return [Expiring(value, expires_at) for value in values]
        stored = pc.fill_null(table.column(EXPIRES_AT), expires_at).to_pylist()
        return list(map(Expiring, values, stored))

    def _as_declared(self, table: pa.Table) -> pa.Table:
        """Return a table whose values have the type that is declared now."""
        index, type_ = table.schema.get_field_index("value"), self._descriptor.value_type
        if type_ is None or table.schema.field(index).type == type_:
            return table
        # Only a declaration that is wider is restored (`schemas.widens`), so Arrow's cast keeps every value.
        return table.set_column(index, "value", table.column(index).cast(type_))


def _identities(table: pa.Table, column: str) -> list[Any]:
    keys = decode_column(table, column)
    if is_packed(table.schema.field(column)) or table.schema.field(column).type == pa.float64():
        return list(map(identity_of, keys))
    return keys


class StateReader:
    """Reads one state of a snapshot. Any thread may call it.

    Parameters
    ----------
    folder : Folder
        The operator's folder.
    files : iterable of DataFile
        The files of the state.
    manifest_path : str
        The path of the manifest, for error messages.
    """

    def __init__(self, folder: Folder, files: Iterable[DataFile], manifest_path: str) -> None:
        self._files = tuple(files)
        self._path = manifest_path
        self._readers = {file.path: KeyedReader(ParquetReader(folder, file)) for file in self._files}

    def groups(self, wanted: KeyGroupRange, descriptor: StateDescriptor, now: int) -> dict[int, ArrowGroup]:
        """Return the key groups of a range, for the current declaration of the state; nothing is read yet.

        Parameters
        ----------
        wanted : KeyGroupRange
            The range.
        descriptor : StateDescriptor
            The declaration.
        now : int
            The processing time, in milliseconds since the epoch.
        """
        groups: dict[int, ArrowGroup] = {}
        for span, layers in self.spans(wanted):
            reader = LayeredReader(span, layers)
            groups |= {key_group: ArrowGroup(reader, key_group, descriptor, now) for key_group in span}
        return groups

    def spans(self, wanted: KeyGroupRange) -> list[Span]:
        """Return the runs of key groups with the same layers; nothing is read."""
        try:
            found = list(spans(self._files, wanted))
        except ValueError as error:
            raise SnapshotCorrupted(self._path, str(error), wanted) from error
        return [(span, [self._readers[file.path] for file in layers]) for span, layers in found]

    def table(self, wanted: KeyGroupRange) -> pa.Table:
        """Read the rows of a range of key groups."""
        return unify([merge([layer.read(span) for layer in layers]) for span, layers in self.spans(wanted)])


def runs(
    key_groups: Iterable[int],
    layers: Sequence[KeyedReader],
    piece: PieceSize,
    changed: Mapping[int, Collection[Any]] = MappingProxyType({}),
) -> Iterator[tuple[KeyGroupRange, list[pa.Table]]]:
    """Yield small neighbouring key groups together, because a table for each of many takes long.

    Parameters
    ----------
    key_groups : iterable of int
        Neighbouring key groups, ascending; all have the same layers.
    layers : sequence of KeyedReader
        The layers.
    piece : PieceSize
        How many rows end a run of key groups; it learns from what is read.
    changed : mapping of int to collection
        Further rows of a key group, which count, too.

    Yields
    ------
    (KeyGroupRange, list of pyarrow.Table)
        Some key groups, and their rows in each layer.
    """
    run: list[int] = []
    rows = 0
    held: list[list[pa.Table]] = [[] for _ in layers]
    for key_group in key_groups:
        run.append(key_group)
        rows += len(changed.get(key_group, ()))
        for tables, layer in zip(held, layers, strict=True):
            table = layer.take(key_group)
            rows += table.num_rows
            if table.num_rows or not tables:
                tables.append(table)
        if rows >= piece.rows:
            yield KeyGroupRange(run[0], key_group), _joined(held, piece)
            run, rows, held = [], 0, [[] for _ in layers]
    if run:
        yield KeyGroupRange(run[0], run[-1]), _joined(held, piece)


def merged_pieces(span: KeyGroupRange, layers: Sequence[KeyedReader]) -> Iterator[pa.Table]:
    """Yield the current rows of key groups that have deltas, in pieces of at most `BATCH_BYTES`."""
    for _, tables in runs(span, layers, PieceSize()):
        rows = merge(tables)
        for start in range(0, rows.num_rows, step := max(rows.num_rows * BATCH_BYTES // max(rows.nbytes, 1), 1)):
            yield rows.slice(start, step)


def divided(table: pa.Table, key_groups: NDArray[np.integer]) -> dict[int, pa.Table]:
    """Divide rows, which are sorted by key group, into a table for each; the key groups ascend."""
    found, starts = np.unique(key_groups, return_index=True)
    bounds = [*starts.tolist(), table.num_rows]
    return {
        group: table.slice(start, end - start)
        for group, (start, end) in zip(found.tolist(), pairwise(bounds), strict=True)
    }


def _joined(held: list[list[pa.Table]], piece: PieceSize) -> list[pa.Table]:
    joined = [tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks() for tables in held]
    for table in joined:
        if table.num_rows:
            piece.adapt(table)
    return joined


def stored_key_type(layer: KeyedReader, column: str = "key") -> pa.DataType | None:
    """Return the type of a file's keys or map keys; None if they are msgpack."""
    field = layer.schema.field(column)
    return None if is_packed(field) else field.type


def merge(layers: Sequence[pa.Table], *, keep_deleted: bool = False) -> pa.Table:
    """Merge a base and its deltas: for each key, the row of the newest layer counts.

    Parameters
    ----------
    layers : sequence of pyarrow.Table
        The layers of one range of key groups, the base first.
    keep_deleted : bool
        Whether removed keys stay as rows, because all layers are deltas and the result is a delta too.
    """
    if len(layers) == 1 or not any(table.num_rows for table in layers[1:]):
        return layers[0]
    tables = with_one_key_type(layers)
    newer = tables[-1]
    for older in reversed(tables[:-1]):
        if older.num_rows:
            kept = older.filter(pc.invert(_hidden(older, newer)))
            newer = pa.concat_tables([_as_delta(kept, newer.schema), newer])
    merged = newer if keep_deleted else newer.filter(pc.invert(newer.column(DELETED))).drop_columns(DELETED)
    return pc.take(merged, np.argsort(merged.column(KEY_GROUP).to_numpy(), kind="stable"))


def _hidden(older: pa.Table, newer: pa.Table) -> pa.ChunkedArray | pa.Array:
    """Return for each row of a layer whether a newer layer overrides its key or its entry."""
    entry = next((name for name in ENTRY_COLUMNS.values() if name in newer.schema.names), None)
    if entry is None:
        return _is_in(older.column("key"), newer.column("key"))
    gone = newer.filter(pc.is_null(newer.column(entry))).column("key")
    keys, entries = newer.column("key").unique(), newer.column(entry).unique()
    # Pairs of key and entry become single numbers, so that rows can be matched in one step.
    places = [(_places(table.column("key"), keys), _places(table.column(entry), entries)) for table in (older, newer)]
    pairs_older, pairs_newer = (key * len(entries) + entry for key, entry in places)
    known = (places[0][0] >= 0) & (places[0][1] >= 0)
    return pc.or_(_is_in(older.column("key"), gone), pa.array(known & np.isin(pairs_older, pairs_newer)))


def _is_in(values: pa.ChunkedArray, among: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.is_in(values, value_set=among.combine_chunks())


def _places(values: pa.ChunkedArray, among: pa.Array) -> NDArray[np.int64]:
    """Return the index of each value in an array of distinct values, which may contain null; -1 if it is absent."""
    places = pc.fill_null(pc.index_in(values, value_set=among), -1)
    return places.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def unify(tables: Sequence[pa.Table]) -> pa.Table:
    """Join tables of one state whose keys may be encoded differently."""
    # A file without rows says nothing about the type of the keys.
    return pa.concat_tables(with_one_key_type([table for table in tables if table.num_rows] or tables[:1]))


def with_one_key_type(tables: Sequence[pa.Table]) -> Sequence[pa.Table]:
    """Return the tables with equally encoded keys and map keys: unchanged, or all as msgpack."""
    for column in INDEX_COLUMNS:
        if column in tables[0].schema.names:
            tables = _with_one_type(tables, column)
    return tables


def _with_one_type(tables: Sequence[pa.Table], column: str) -> Sequence[pa.Table]:
    fields = [table.schema.field(column) for table in tables if table.num_rows]
    if len({(field.type, is_packed(field)) for field in fields}) <= 1:
        used = next(iter(fields), tables[0].schema.field(column))
        return [table if table.num_rows else _with_keys(table, used, pa.array([], used.type)) for table in tables]
    return [_packed(table, column) for table in tables]


def in_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert rows to a schema, whose keys may be msgpack and whose values may have a wider type."""
    if not table.num_rows:
        return schema.empty_table()
    for column in INDEX_COLUMNS:
        if column in schema.names and is_packed(schema.field(column)):
            table = _packed(table, column)
    return table.cast(schema)  # the same types or, of an older file, narrower ones (`schemas.widens`)


def decode_column(table: pa.Table, name: str) -> list[Any]:
    """Return the Python values of a column."""
    values = values_of(table.column(name))
    if is_packed(table.schema.field(name)):
        return [None if value is None else unpack(value) for value in values]
    return values


def _packed(table: pa.Table, column: str) -> pa.Table:
    field = table.schema.field(column)
    if is_packed(field):
        return table
    packed = pa.field(column, pa.binary(), field.nullable, (field.metadata or {}) | PACKED)
    # Columns of keys are integers, doubles, text or bytes.
    keys = [MISSING if key is None else key for key in table.column(column).to_pylist()]
    return _with_keys(table, packed, encode_column(keys, packed, f"a {column}"))


def _with_keys(table: pa.Table, field: pa.Field, keys: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(field.name), field, keys)


def _as_delta(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if DELETED not in table.schema.names:
        table = table.add_column(2, schema.field(DELETED), pa.repeat(pa.scalar(False), table.num_rows))
    return table.cast(schema)
