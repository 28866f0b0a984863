"""Keyed state as Arrow columns: the rows of a file that is written."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from keygroups.codec import pack
from keygroups.errors import UnstorableValue
from keygroups.state import MISSING, StateCut, TypedKey, original_of
from snapshots.manifest import StateInfo
from snapshots.parquet import KEY_GROUP
from snapshots.schemas import with_field_ids
from snapshots.values import Misfit, array_of

KEY_ENCODING = "columns-1"
"""Keys are a column of their own type where all are of one, else msgpack; named in the manifest."""

DELETED = "deleted"
"""The column of a delta that tells a removed key from a written one."""

PIECE_ROWS_MAX = 8192
PIECE_BYTES = 4 * 2**20
"""So much is encoded at once: the interpreter lock is not held long, and large values do not fill the memory."""

PACKED = {b"keygroups.encoding": b"msgpack"}
"""The metadata of a binary column whose values are msgpack."""

_KEY_TYPES: dict[type, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}


def is_packed(field: pa.Field) -> bool:
    """Tell whether a column's binary values are msgpack."""
    return (field.metadata or {}).get(b"keygroups.encoding") == b"msgpack"


def keyed_schema(info: StateInfo, key_type: pa.DataType | None, *, delta: bool = False) -> pa.Schema:
    """Return the columns of a state's file; without a key type, keys are msgpack."""
    type_ = info.arrow_type
    fields = [
        pa.field(KEY_GROUP, pa.int32(), False),
        pa.field("key", key_type, False) if key_type else pa.field("key", pa.binary(), False, PACKED),
        *([pa.field(DELETED, pa.bool_(), False)] if delta else []),
        pa.field("value", type_) if type_ else pa.field("value", pa.binary(), metadata=PACKED),
    ]
    return pa.schema([with_field_ids(field, info.field_ids, field.name) for field in fields])


def key_types_of(keys: Iterable[Hashable]) -> set[pa.DataType | None]:
    """Return the types of the columns that could hold the keys, None for those that only msgpack can."""
    kinds = set(map(type, keys))
    if TypedKey in kinds:
        kinds = set(map(type, map(original_of, keys)))
    return {_KEY_TYPES.get(kind) for kind in kinds}


def common_key_type(types: set[pa.DataType | None]) -> pa.DataType | None:
    """Return the one type of all keys, None if they are to be msgpack."""
    return next(iter(types)) if len(types) == 1 else None


class RowEncoder:
    """Encodes rows of one state, a bounded piece at a time.

    Parameters
    ----------
    cut : StateCut
        The state.
    schema : pyarrow.Schema
        From `keyed_schema`.
    """

    def __init__(self, cut: StateCut, schema: pa.Schema) -> None:
        self._where = f"state {cut.descriptor.name!r}"
        self._schema = schema
        self._is_delta = DELETED in schema.names
        # Keys of one of the other types are what they are.
        self._has_typed_keys = is_packed(schema.field("key")) or schema.field("key").type == pa.float64()
        self._piece_rows = 256

    def rows(
        self, key_group: int, group: Mapping[Hashable, object], changed: Collection[Hashable] | None = None
    ) -> Iterator[pa.Table]:
        """Encode a key group, or of a delta what became of its changed keys."""
        keys = list(group if changed is None else changed)
        values = list(group.values()) if changed is None else [group.get(key, MISSING) for key in keys]
        if self._has_typed_keys:
            keys = list(map(original_of, keys))
        start = 0
        while start < len(keys):
            end = start + self._piece_rows
            is_whole = start == 0 and end >= len(keys)
            piece = (keys, values) if is_whole else (keys[start:end], values[start:end])
            table = self._table(key_group, *piece)
            start = end
            row_bytes = max(table.nbytes // table.num_rows, 1)
            self._piece_rows = min(max(PIECE_BYTES // row_bytes, 1), PIECE_ROWS_MAX)
            yield table

    def _table(self, key_group: int, keys: list[Any], values: list[Any]) -> pa.Table:
        deleted = [value is MISSING for value in values] if self._is_delta else []
        if any(deleted) and not is_packed(self._schema.field("value")):
            values = [None if value is MISSING else value for value in values]
        columns = [
            pa.repeat(pa.scalar(key_group, pa.int32()), len(keys)),
            encode_column(keys, self._schema.field("key"), f"a key of {self._where}"),
            *([pa.array(deleted, pa.bool_())] if self._is_delta else []),
            encode_column(values, self._schema.field("value"), self._where, keys),
        ]
        return pa.Table.from_arrays(columns, schema=self._schema)


def encode_column(values: list[Any], field: pa.Field, where: str, keys: list[Any] | None = None) -> pa.Array:
    """Encode values, or raise `UnstorableValue` for the first that does not fit.

    Parameters
    ----------
    values : list
        `MISSING` becomes null.
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
