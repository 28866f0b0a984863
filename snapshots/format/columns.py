"""Encodes keyed state as Arrow columns, for writing files."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from keygroups.codec import pack
from keygroups.errors import UnstorableValue, in_message
from keygroups.state import (
    MISSING,
    Expiring,
    KeyGroupContent,
    StateCut,
    StateRows,
    TakeRows,
    TypedKey,
    original_of,
)
from keygroups.values import Misfit, array_of, in_pieces
from snapshots.format.manifest import StateInfo
from snapshots.format.parquet import KEY_GROUP
from snapshots.format.schemas import ENTRY_COLUMNS, EXPIRES_AT, with_field_ids

KEY_ENCODING = "columns-1"
"""If all keys have the same type, they are a column of that type, otherwise msgpack. The manifest stores this name."""

DELETED = "deleted"
"""The column of a delta that distinguishes removed keys from written ones."""

PIECE_ROWS_MAX = 8192
PIECE_BYTES = 4 * 2**20
"""How much is encoded at once: little, so that the interpreter lock is held briefly and memory stays bounded."""

GATHERED_ROWS_MAX = 1024
"""Small key groups are written together up to so many rows: enough for speed, and no row group grows by it."""

PACKED = {b"keygroups.encoding": b"msgpack"}
"""The metadata of a binary column with msgpack values."""

_KEY_TYPES: dict[type, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}
_KINDS: dict[pa.DataType | None, type] = {type_: kind for kind, type_ in _KEY_TYPES.items()}


def is_packed(field: pa.Field) -> bool:
    """Return whether a column's binary values are msgpack."""
    return (field.metadata or {}).get(b"keygroups.encoding") == b"msgpack"


def index_columns(kind: str) -> tuple[str, ...]:
    """Return the columns of a state whose type depends on the content of a file."""
    return ("key", "map_key") if kind == "map" else ("key",)


def keyed_schema(
    info: StateInfo, key_type: pa.DataType | None, map_key_type: pa.DataType | None = None, *, delta: bool = False
) -> pa.Schema:
    """Return the schema of a state's file; keys and map keys without a type are msgpack."""
    entry = {"list": pa.field("position", pa.int64()), "map": _field("map_key", map_key_type)}.get(info.kind)
    fields = [
        pa.field(KEY_GROUP, pa.int32(), False),
        _field("key", key_type).with_nullable(False),
        *([pa.field(DELETED, pa.bool_(), False)] if delta else []),
        *([] if entry is None else [entry]),
        _field("value", info.arrow_type),
        *([pa.field(EXPIRES_AT, pa.int64())] if EXPIRES_AT in info.field_ids else []),
    ]
    return pa.schema([with_field_ids(field, info.field_ids, field.name) for field in fields])


def _field(name: str, type_: pa.DataType | None) -> pa.Field:
    return pa.field(name, type_) if type_ else pa.field(name, pa.binary(), metadata=PACKED)


def changed_keys(changed: Collection[Any], column: str, kind: str) -> Iterable[Hashable]:
    """Return the content of an index column of a delta."""
    if kind not in ENTRY_COLUMNS:
        return changed
    if column == "key":
        return (key for key, _ in changed)
    return (entry for _, entry in changed if entry is not MISSING)


def key_types_of(keys: Iterable[Hashable]) -> set[pa.DataType | None]:
    """Return the types of the columns that can hold the keys; None stands for keys that only msgpack can hold."""
    keys = keys if isinstance(keys, Collection) else list(keys)  # it is iterated twice
    kinds = set(map(type, keys))
    if TypedKey in kinds:
        kinds = set(map(type, map(original_of, keys)))
    return column_types_of(kinds)


def column_types_of(kinds: Iterable[type]) -> set[pa.DataType | None]:
    """Return the types of the columns for keys of Python types; None stands for types that only msgpack can hold."""
    return {_KEY_TYPES.get(kind) for kind in kinds}


def common_key_type(types: set[pa.DataType | None]) -> pa.DataType | None:
    """Return the common type of all keys, or None if they have to be msgpack."""
    return next(iter(types)) if len(types) == 1 else None


def key_kind_of(type_: pa.DataType | None) -> type:
    """Return the Python type of the keys in a column; `object` if they are msgpack."""
    return _KINDS.get(type_, object)


def fitting_key_type(
    column: str, type_: pa.DataType | None, cut: StateCut, key_groups: Iterable[int]
) -> pa.DataType | None:
    """Return the type of an index column that can also hold some key groups: the same type, or None for msgpack."""
    for key_group in key_groups:
        if type_ is None:
            break
        type_ = common_key_type({type_} | column_types_of(cut.groups[key_group].kinds(column)))
    return type_


class PieceSize:
    """How many rows are handled at once, by the size of the rows that were last seen.

    Parameters
    ----------
    rows_max : int
        The most that it ever says; it never says more than `PIECE_ROWS_MAX`.

    Attributes
    ----------
    rows : int
        The most rows of the next piece.
    """

    __slots__ = ("_rows_max", "rows")

    def __init__(self, rows_max: int = PIECE_ROWS_MAX) -> None:
        self._rows_max = min(rows_max, PIECE_ROWS_MAX)
        self.rows = min(256, self._rows_max)

    def adapt(self, table: pa.Table) -> None:
        """Learn from a piece that has rows."""
        row_bytes = max(table.nbytes // table.num_rows, 1)
        self.rows = min(max(PIECE_BYTES // row_bytes, 1), self._rows_max)


class RowEncoder:
    """Encodes rows of one state in bounded pieces.

    Parameters
    ----------
    cut : StateCut
        The state at the cut.
    schema : pyarrow.Schema
        The result of `keyed_schema`.
    now : int
        The processing time of the cut: values that have expired by then are left out, or removed by a delta.

    Attributes
    ----------
    schema : pyarrow.Schema
        The schema of every piece.
    piece : PieceSize
        How many rows the next piece has at most.
    """

    def __init__(self, cut: StateCut, schema: pa.Schema, now: int) -> None:
        self._now = now
        self._expires = EXPIRES_AT in schema.names
        self._where = f"state {cut.descriptor.name!r}"
        self.schema = schema
        self._is_delta = DELETED in schema.names
        self._entry = ENTRY_COLUMNS.get(cut.descriptor.kind)
        # Keys of all other types equal their identities.
        self._has_typed_keys = is_packed(schema.field("key")) or schema.field("key").type == pa.float64()
        self.piece = PieceSize()

    def pieces(
        self, groups: Iterable[tuple[int, KeyGroupContent, Collection[Any] | None]]
    ) -> Iterator[tuple[int, Iterator[pa.Table]]]:
        """Encode key groups: small neighbours as one table, because a table for each of many takes long.

        Parameters
        ----------
        groups : iterable of (int, KeyGroupContent, collection or None)
            The key groups in their order; for a delta, each with its changed keys or entries.

        Yields
        ------
        (int, iterator of pyarrow.Table)
            The tables of some key groups, and the first of these key groups. Read them before the next ones.
        """
        gathered: list[tuple[int, StateRows]] = []
        count = 0
        for key_group, group, changed in groups:
            take, rows_max = group.rows(changed), min(self.piece.rows, GATHERED_ROWS_MAX)
            rows = take(rows_max)
            if gathered and count + len(rows.keys) > rows_max:
                yield gathered[0][0], self._piece(gathered)
                gathered, count = [], 0
            while rows.keys:
                gathered.append((key_group, rows))
                count += len(rows.keys)
                if count >= rows_max:
                    yield gathered[0][0], chain(self._piece(gathered), self._rest(key_group, take))
                    gathered, count = [], 0
                    break
                rows = take(rows_max - count)
        if gathered:
            yield gathered[0][0], self._piece(gathered)

    def _rest(self, key_group: int, take: TakeRows) -> Iterator[pa.Table]:
        while (rows := take(self.piece.rows)).keys:
            yield from self._piece([(key_group, rows)])

    def _piece(self, groups: list[tuple[int, StateRows]]) -> Iterator[pa.Table]:
        counts = [len(rows.keys) for _, rows in groups]
        key_groups = pa.array(np.repeat([key_group for key_group, _ in groups], counts), pa.int32())
        rows = groups[0][1] if len(groups) == 1 else _concatenated([rows for _, rows in groups])
        table = self._living(key_groups, rows) if self._expires else self._table(key_groups, rows, None)
        if table.num_rows:
            self.piece.adapt(table)
            yield table

    def _living(self, key_groups: pa.Array, rows: StateRows) -> pa.Table:
        """Encode the live rows; expired ones are left out, or removed by a delta."""
        now = self._now
        held = [value if isinstance(value, Expiring) and value.expires_at > now else None for value in rows.values]
        at = [at for at, value in enumerate(held) if value is not None or self._is_delta]
        living = [held[row] for row in at]
        values = [MISSING if value is None else value.value for value in living]
        entries = None if rows.entries is None else [rows.entries[row] for row in at]
        expires_at = [None if value is None else value.expires_at for value in living]
        living_rows = StateRows([rows.keys[row] for row in at], entries, values)
        return self._table(key_groups.take(pa.array(at, pa.int64())), living_rows, expires_at)

    def _table(self, key_groups: pa.Array, rows: StateRows, expires_at: list[int | None] | None) -> pa.Table:
        schema, keys, values = self.schema, rows.keys, rows.values
        if self._has_typed_keys:
            keys = list(map(original_of, keys))
        arrays = {}
        if self._is_delta:
            arrays[DELETED] = pa.array([value is MISSING for value in values], pa.bool_())
            values = _without_missing(values, schema.field("value"))
        if expires_at is not None:
            arrays[EXPIRES_AT] = pa.array(expires_at, pa.int64())
        arrays[KEY_GROUP] = key_groups
        arrays["key"] = _encode_keys(keys, schema.field("key"), f"a key of {self._where}")
        arrays["value"] = encode_column(values, schema.field("value"), self._where, keys)
        if self._entry is not None:
            assert rows.entries is not None, "the state has many entries per key"
            field = schema.field(self._entry)
            entries = _without_missing(list(map(original_of, rows.entries)), field)
            arrays[self._entry] = _encode_keys(entries, field, f"{self._entry} of {self._where}", keys)
        return pa.Table.from_arrays([arrays[name] for name in schema.names], schema=schema)


def _concatenated(parts: list[StateRows]) -> StateRows:
    """Return the rows of several key groups of one state as one."""
    keys = [*chain.from_iterable(one.keys for one in parts)]
    entries = [*chain.from_iterable(one.entries or () for one in parts)]
    values = [*chain.from_iterable(one.values for one in parts)]
    return StateRows(keys, None if parts[0].entries is None else entries, values)


def _without_missing(values: list[Any], field: pa.Field) -> list[Any]:
    """Replace the values that become null by None; in a msgpack column None itself is a value."""
    return values if is_packed(field) else [None if value is MISSING else value for value in values]


def _encode_keys(keys: list[Any], field: pa.Field, where: str, owners: list[Any] | None = None) -> pa.Array:
    """Encode keys, or raise `UnstorableValue` for a key of another type, even if the column has an equal value."""
    expected = None if is_packed(field) else _KINDS[field.type]
    kinds = set() if expected is None else set(map(type, keys)) - {expected, type(None)}
    for kind in kinds:
        raise UnstorableValue(f"{kind.__qualname__} beside others that are {field.type}", where)
    return encode_column(keys, field, where, owners)


def encode_column(values: list[Any], field: pa.Field, where: str, keys: list[Any] | None = None) -> pa.Array:
    """Encode values, or raise `UnstorableValue` for the first one that does not fit.

    Parameters
    ----------
    values : list
        The values; in a msgpack column `MISSING` becomes null, in other columns None does.
    field : pyarrow.Field
        The column.
    where : str
        What the values are, for the error message.
    keys : list, optional
        The keys of the values, for the error message.
    """
    try:
        return _array(values, field, where)
    except UnstorableValue:
        for index, value in enumerate(values):
            _array([value], field, where if keys is None else f"{where} of key {in_message(keys[index])}")
        raise


def _array(values: list[Any], field: pa.Field, where: str) -> pa.Array:
    if is_packed(field):
        return pa.array([None if value is MISSING else pack(value, where) for value in values], pa.binary())
    try:
        pieces = [*in_pieces(values, lambda some, _: array_of(some, field.type))]
        return pieces[0] if len(pieces) == 1 else pa.chunked_array(pieces)
    except Misfit as error:
        unfit = f"{type(values[error.row]).__qualname__} that does not fit {field.type}"
        raise UnstorableValue(unfit, where, error.place_and_reason) from error
