"""Keyed state as Arrow columns, and back."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from keygroups.codec import pack, unpack
from keygroups.descriptors import ValueState
from keygroups.errors import UnstorableValue
from keygroups.ranges import KeyGroupRange
from keygroups.state import LazyGroup, StateCut
from snapshots.parquet import KEY_GROUP, ParquetReader, damage_named

ROW_GROUP_ROWS_MIN = 8192
"""Neighbouring key groups share a row group until it has this many rows."""

KEY_ENCODING = "columns-1"
"""Keys are a column of their own type where all are of one, else msgpack; named in the manifest."""

_ENCODING = b"keygroups.encoding"
_MSGPACK = {_ENCODING: b"msgpack"}
_KEY_TYPES: dict[type, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}


def is_packed(field: pa.Field) -> bool:
    """Tell whether a column's binary values are msgpack."""
    return (field.metadata or {}).get(_ENCODING) == b"msgpack"


class ArrowGroup:
    """One key group of one file, not in memory until it is asked for."""

    __slots__ = ("_key_group", "_reader")

    def __init__(self, reader: KeyedReader, key_group: int) -> None:
        self._reader = reader
        self._key_group = key_group

    def load(self) -> dict[Hashable, object]:
        """Return the values by key."""
        table = self.table()
        with self._reader.damage_named():
            return dict(zip(_decode(table, "key"), _decode(table, "value"), strict=True))

    def table(self) -> pa.Table:
        """Return the rows as they are stored."""
        return self._reader.take(self._key_group)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the file."""
        return self._reader.schema


class KeyedReader:
    """Gives out the key groups of one file, reading each row group once for all the key groups in it."""

    def __init__(self, parquet: ParquetReader) -> None:
        self._parquet = parquet
        self._tables: dict[int, pa.Table] = {}

    @property
    def schema(self) -> pa.Schema:
        """The columns of the file."""
        return self._parquet.schema

    def damage_named(self) -> AbstractContextManager[None]:
        """Turn what decoding raises into `SnapshotCorrupted` of this file."""
        return damage_named(self._parquet.path, self._parquet.file.key_groups)

    def groups(self, wanted: KeyGroupRange) -> Iterator[tuple[int, ArrowGroup]]:
        """Return the key groups of the range that the file may hold; nothing is read."""
        shared = self._parquet.file.key_groups.intersection(wanted)
        return ((key_group, ArrowGroup(self, key_group)) for key_group in shared or ())

    def take(self, key_group: int) -> pa.Table:
        """Return the rows of a key group, and read its neighbours in the row group for later calls.

        The operator's thread may load a group while another writes a cut that holds it too, so each step on
        `_tables` is one operation; at worst both read the row group.
        """
        table = self._tables.pop(key_group, None)
        return self._read_around(key_group) if table is None else table

    def _read_around(self, key_group: int) -> pa.Table:
        numbers = self._parquet.row_groups(key_group, key_group)
        table = self._parquet.read(numbers)
        runs = table.column(KEY_GROUP).combine_chunks().value_counts()
        tables: dict[int, pa.Table] = {}
        offset = 0
        for group, rows in zip(runs.field(0).to_pylist(), runs.field(1).to_pylist(), strict=True):
            tables[group] = table.slice(offset, rows)
            offset += rows
        wanted = tables.pop(key_group, table.slice(0, 0))
        self._tables.update(tables)
        return wanted


def keyed_schema(cut: StateCut) -> pa.Schema:
    """Choose the columns of a state: typed where everything fits one type."""
    key_types = set[pa.DataType | None]()
    for group in cut.groups.values():
        if isinstance(group, dict):
            key_types.update(_KEY_TYPES.get(kind) for kind in set(map(type, group)))
        elif isinstance(group, ArrowGroup):
            field = group.schema.field("key")
            key_types.add(None if is_packed(field) else field.type)
    key_type = key_types.pop() if len(key_types) == 1 else None
    key = pa.field("key", key_type, False) if key_type else pa.field("key", pa.binary(), False, _MSGPACK)
    return pa.schema([pa.field(KEY_GROUP, pa.int32(), False), key, _value_field(cut.descriptor)])


def keyed_tables(cut: StateCut, schema: pa.Schema) -> Iterator[pa.Table]:
    """Encode a state, key group after key group, as the row groups of a file."""
    waiting: list[pa.Table] = []
    rows = 0
    for key_group in sorted(cut.groups):
        table = _group_table(cut.descriptor, key_group, cut.groups[key_group], schema)
        if table.num_rows:
            waiting.append(table)
            rows += table.num_rows
        if rows >= ROW_GROUP_ROWS_MIN:
            yield pa.concat_tables(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def unify(tables: Sequence[pa.Table]) -> pa.Table:
    """Join tables of one state whose keys may be encoded differently."""
    # A file without rows says nothing about the keys.
    tables = [table for table in tables if table.num_rows] or tables[:1]
    schemas = {table.schema.field("key").type for table in tables if not is_packed(table.schema.field("key"))}
    packed = any(is_packed(table.schema.field("key")) for table in tables)
    if not packed and len(schemas) <= 1:
        return pa.concat_tables(tables)
    field = pa.field("key", pa.binary(), False, _MSGPACK)
    return pa.concat_tables(
        table
        if is_packed(table.schema.field("key"))
        else table.set_column(1, field, _encode(table.column("key").to_pylist(), field, "a key"))
        for table in tables
    )


def _value_field(descriptor: ValueState) -> pa.Field:
    if descriptor.type is None:
        return pa.field("value", pa.binary(), metadata=_MSGPACK)
    return pa.field("value", descriptor.type)


def _group_table(
    descriptor: ValueState, key_group: int, group: Mapping[Hashable, object] | LazyGroup, schema: pa.Schema
) -> pa.Table:
    if isinstance(group, ArrowGroup):
        if group.schema.equals(schema, check_metadata=True):
            return group.table()
        group = group.load()
    assert isinstance(group, Mapping), f"a {type(group).__name__} cannot be stored"
    where = f"state {descriptor.name!r}"
    keys = _encode(list(group), schema.field("key"), f"a key of {where}")
    values = _encode(list(group.values()), schema.field("value"), where, list(group))
    groups = pa.repeat(pa.scalar(key_group, pa.int32()), len(group))
    return pa.Table.from_arrays([groups, keys, values], schema=schema)


def _encode(values: list[Any], field: pa.Field, where: str, keys: list[Any] | None = None) -> pa.Array:
    try:
        return _array(values, field, where)
    except UnstorableValue:
        for index, value in enumerate(values):
            _array([value], field, where if keys is None else f"{where} of key {keys[index]!r}")
        raise


def _array(values: list[Any], field: pa.Field, where: str) -> pa.Array:
    if is_packed(field):
        return pa.array([pack(value, where) for value in values], pa.binary())
    try:
        array = pa.array(values, field.type)
        back = array.to_pylist()
        if back == values or all(map(_comes_back, values, back)):
            return array
        error = None
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as refusal:
        error = refusal
    raise UnstorableValue(f"{type(values[0]).__qualname__} that does not fit {field.type}", where) from error


def _comes_back(value: Any, back: Any) -> bool:
    """Tell whether a column keeps a value as it is; Arrow silently cuts 1.5 to an integer and a time to its unit.

    Only the rounding of a float is no loss, because the declared type asks for it.
    """
    match value, back:
        case float(), float():
            return math.isinf(value) == math.isinf(back)
        case dt.datetime(), dt.datetime():
            # Not by ==, which is never true between two zones in the hour that a clock repeats.
            return (value.tzinfo is None) == (back.tzinfo is None) and not value - back
        case (list(), list()) | (tuple(), tuple()):
            return len(value) == len(back) and all(map(_comes_back, value, back))
        case dict(), dict():
            return value.keys() == back.keys() and all(_comes_back(value[name], back[name]) for name in value)
        case _:
            return bool(value == back)


def _decode(table: pa.Table, name: str) -> list[Any]:
    values = table.column(name).to_pylist()
    return [unpack(value) for value in values] if is_packed(table.schema.field(name)) else values
