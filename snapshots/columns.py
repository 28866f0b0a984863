"""Keyed state as Arrow columns: the rows of a file that is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, TypeAlias

import pyarrow as pa

from keygroups.codec import pack
from keygroups.errors import UnstorableValue
from keygroups.state import (
    MISSING,
    Expiring,
    LayeredGroup,
    SharedList,
    StateCut,
    StateRows,
    StreamedGroup,
    TypedKey,
    entries_of,
    entry_of,
    original_of,
)
from keygroups.values import Misfit, array_of
from snapshots.manifest import StateInfo
from snapshots.parquet import KEY_GROUP
from snapshots.schemas import ENTRY_COLUMNS, EXPIRES_AT, with_field_ids

KEY_ENCODING = "columns-1"
"""Keys are a column of their own type where all are of one, else msgpack; named in the manifest."""

DELETED = "deleted"
"""The column of a delta that tells a removed key from a written one."""

PIECE_ROWS_MAX = 8192
PIECE_BYTES = 4 * 2**20
"""So much is encoded at once: the interpreter lock is not held long, and large values do not fill the memory."""

PACKED = {b"keygroups.encoding": b"msgpack"}
"""The metadata of a binary column whose values are msgpack."""

_Group: TypeAlias = "dict[Hashable, Any] | LayeredGroup"

_Take: TypeAlias = Callable[[int], dict[str, list[Any]]]

_KEY_TYPES: dict[type, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}
_KINDS: dict[pa.DataType, type] = {type_: kind for kind, type_ in _KEY_TYPES.items()}


def is_packed(field: pa.Field) -> bool:
    """Tell whether a column's binary values are msgpack."""
    return (field.metadata or {}).get(b"keygroups.encoding") == b"msgpack"


def index_columns(kind: str) -> tuple[str, ...]:
    """Return the columns of a state whose type depends on what is in a file."""
    return ("key", "map_key") if kind == "map" else ("key",)


def keyed_schema(
    info: StateInfo, key_type: pa.DataType | None, map_key_type: pa.DataType | None = None, *, delta: bool = False
) -> pa.Schema:
    """Return the columns of a state's file; keys and map keys without a type are msgpack."""
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


def held_keys(group: Mapping[Hashable, Any], column: str) -> Iterable[Hashable]:
    """Return what an index column of a whole key group holds."""
    return group if column == "key" else chain.from_iterable(content.keys() for content in group.values())


def changed_keys(changed: Collection[Any], column: str, kind: str) -> Iterable[Hashable]:
    """Return what an index column of a delta holds."""
    if kind not in ENTRY_COLUMNS:
        return changed
    if column == "key":
        return (key for key, _ in changed)
    return (entry for _, entry in changed if entry is not MISSING)


def key_types_of(keys: Iterable[Hashable]) -> set[pa.DataType | None]:
    """Return the types of the columns that could hold the keys, None for those that only msgpack can."""
    keys = keys if isinstance(keys, Collection) else list(keys)  # it is gone through twice
    kinds = set(map(type, keys))
    if TypedKey in kinds:
        kinds = set(map(type, map(original_of, keys)))
    return column_types_of(kinds)


def column_types_of(kinds: Iterable[type]) -> set[pa.DataType | None]:
    """Return the types of the columns that could hold keys of Python types, None for those that only msgpack can."""
    return {_KEY_TYPES.get(kind) for kind in kinds}


def common_key_type(types: set[pa.DataType | None]) -> pa.DataType | None:
    """Return the one type of all keys, None if they are to be msgpack."""
    return next(iter(types)) if len(types) == 1 else None


def fitting_key_type(
    column: str, type_: pa.DataType | None, group: Mapping[Hashable, Any] | StreamedGroup
) -> pa.DataType | None:
    """Return the type of an index column that takes a whole key group as well: the same, or None for msgpack."""
    if type_ is None:
        return None
    held = (
        column_types_of(group.kinds(column))
        if isinstance(group, StreamedGroup)
        else key_types_of(held_keys(group, column))
    )
    return common_key_type({type_} | held)


class RowEncoder:
    """Encodes rows of one state, a bounded piece at a time.

    Parameters
    ----------
    cut : StateCut
        The state.
    schema : pyarrow.Schema
        From `keyed_schema`.
    now : int
        The processing time of the cut: what has expired by then is left out, or removed by a delta.

    Attributes
    ----------
    schema : pyarrow.Schema
        Of every piece.
    """

    def __init__(self, cut: StateCut, schema: pa.Schema, now: int) -> None:
        self._now = now
        self._expires = EXPIRES_AT in schema.names
        self._where = f"state {cut.descriptor.name!r}"
        self.schema = schema
        self._is_delta = DELETED in schema.names
        self._entry = ENTRY_COLUMNS.get(cut.descriptor.kind)
        # Keys of one of the other types are what they are.
        self._has_typed_keys = is_packed(schema.field("key")) or schema.field("key").type == pa.float64()
        self._piece_rows = 256

    def rows(
        self, key_group: int, group: _Group | StreamedGroup, changed: Collection[Any] | None = None
    ) -> Iterator[pa.Table]:
        """Encode a key group, or of a delta what became of its changed keys or entries."""
        if isinstance(group, StreamedGroup):
            take = _by_piece(group.pieces(changed))
        else:
            take = _by_key(group, changed) if self._entry is None else _by_entry(group, changed)
        while (columns := take(self._piece_rows))["key"]:
            if self._expires:
                columns = _living(columns, self._now, keep_deleted=self._is_delta)
                if not columns["key"]:
                    continue
            table = self._table(key_group, columns)
            row_bytes = max(table.nbytes // table.num_rows, 1)
            self._piece_rows = min(max(PIECE_BYTES // row_bytes, 1), PIECE_ROWS_MAX)
            yield table

    def _table(self, key_group: int, columns: dict[str, list[Any]]) -> pa.Table:
        schema, keys, values = self.schema, columns["key"], columns["value"]
        if self._has_typed_keys:
            keys = list(map(original_of, keys))
        arrays = {}
        if self._is_delta:
            arrays[DELETED] = pa.array([value is MISSING for value in values], pa.bool_())
            values = _without_missing(values, schema.field("value"))
        if self._expires:
            arrays[EXPIRES_AT] = pa.array(columns[EXPIRES_AT], pa.int64())
        arrays[KEY_GROUP] = pa.repeat(pa.scalar(key_group, pa.int32()), len(keys))
        arrays["key"] = _encode_keys(keys, schema.field("key"), f"a key of {self._where}")
        arrays["value"] = encode_column(values, schema.field("value"), self._where, keys)
        if self._entry is not None:
            field = schema.field(self._entry)
            entries = _without_missing(list(map(original_of, columns["entry"])), field)
            arrays[self._entry] = _encode_keys(entries, field, f"{self._entry} of {self._where}", keys)
        return pa.Table.from_arrays([arrays[name] for name in schema.names], schema=schema)


def _by_piece(pieces: Iterable[StateRows]) -> _Take:
    """Return what gives so many rows at a time, by column, and none in the end."""
    return _taker(
        row for piece in pieces for row in zip(piece.keys, piece.entries or piece.keys, piece.values, strict=True)
    )


def _by_key(group: _Group, changed: Collection[Any] | None) -> _Take:
    """Return the same for a row per key."""
    keys: Iterator[Hashable]
    values: Iterator[Any]
    if changed is None:
        assert isinstance(group, dict), "a whole group is one dict"
        keys, values = iter(group), iter(group.values())
    else:
        keys, values = iter(changed), (group.get(key, MISSING) for key in changed)
    return lambda count: {"key": list(islice(keys, count)), "value": list(islice(values, count))}


def _by_entry(group: _Group, changed: Collection[Any] | None) -> _Take:
    """Return the same for a row per entry, and one without an entry for a key whose older entries are gone."""
    rows: Iterator[tuple[Hashable, Hashable, Any]]
    if changed is None:
        assert isinstance(group, dict), "a whole group is one dict"
        rows = ((key, entry, value) for key, content in group.items() for entry, value in entries_of(content))
    else:
        nothing: Any = SharedList([])
        held: Callable[[Hashable, Any], Any] = group.get
        rows = ((key, entry, entry_of(held(key, nothing), entry, MISSING)) for key, entry in changed)
    return _taker(rows)


def _taker(rows: Iterator[tuple[Hashable, Hashable, Any]]) -> _Take:
    def take(count: int) -> dict[str, list[Any]]:
        taken = list(islice(rows, count))
        return {name: [row[at] for row in taken] for at, name in enumerate(("key", "entry", "value"))}

    return take


def _without_missing(values: list[Any], field: pa.Field) -> list[Any]:
    """Return what becomes null as None; in a column of msgpack None is a value."""
    return values if is_packed(field) else [None if value is MISSING else value for value in values]


def _encode_keys(keys: list[Any], field: pa.Field, where: str, owners: list[Any] | None = None) -> pa.Array:
    """Encode keys, or raise `UnstorableValue` if one has another type, even if the column had an equal value."""
    expected = None if is_packed(field) else _KINDS[field.type]
    kinds = set() if expected is None else set(map(type, keys)) - {expected, type(None)}
    for kind in kinds:
        raise UnstorableValue(f"{kind.__qualname__} beside others that are {field.type}", where)
    return encode_column(keys, field, where, owners)


def _living(columns: dict[str, list[Any]], now: int, *, keep_deleted: bool) -> dict[str, list[Any]]:
    """Divide what expires into value and expiry; what has expired already is as good as removed."""
    held = [value if isinstance(value, Expiring) and value.expires_at > now else None for value in columns["value"]]
    rows = range(len(held)) if keep_deleted else [row for row, value in enumerate(held) if value is not None]
    living = [held[row] for row in rows]
    return {name: [column[row] for row in rows] for name, column in columns.items()} | {
        "value": [MISSING if value is None else value.value for value in living],
        EXPIRES_AT: [None if value is None else value.expires_at for value in living],
    }


def encode_column(values: list[Any], field: pa.Field, where: str, keys: list[Any] | None = None) -> pa.Array:
    """Encode values, or raise `UnstorableValue` for the first that does not fit.

    Parameters
    ----------
    values : list
        In a column of msgpack `MISSING` becomes null, in others None.
    field : pyarrow.Field
        The column.
    where : str
        What the values are, for the error.
    keys : list, optional
        Whose values they are, for the error.
    """
    try:
        return _array(values, field, where)
    except UnstorableValue:
        for index, value in enumerate(values):
            _array([value], field, where if keys is None else f"{where} of key {keys[index]!r}")
        raise


def _array(values: list[Any], field: pa.Field, where: str) -> pa.Array:
    if is_packed(field):
        return pa.array([None if value is MISSING else pack(value, where) for value in values], pa.binary())
    try:
        return array_of(values, field.type)
    except Misfit as error:
        raise UnstorableValue(f"{type(values[0]).__qualname__} that does not fit {error}", where) from error
