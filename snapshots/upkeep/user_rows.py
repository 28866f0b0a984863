"""Converts users' rows, Arrow data or pairs, to the columns of a keyed state."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import types

from keygroups.arguments import pairs_in
from keygroups.errors import ConfigError, NullKey, UnstorableValue, in_message
from keygroups.hashes.columns import is_bytes, is_text
from keygroups.hashing import key_groups_of
from keygroups.state import identity_of, original_of
from keygroups.values import Misfit, values_of
from keygroups.values.lossless_casts import can_hold, cast, in_microseconds
from snapshots.errors import DuplicateKey
from snapshots.format import compute as pc
from snapshots.format.columns import (
    PACKED,
    common_key_type,
    encode_column,
    index_columns,
    is_packed,
    key_types_of,
    keyed_schema,
)
from snapshots.format.manifest import StateInfo
from snapshots.format.parquet import KEY_GROUP
from snapshots.format.schemas import ENTRY_COLUMNS
from snapshots.restore.reader import decode_column

Rows: TypeAlias = (
    "pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[tuple[Hashable, Any]] | Mapping[Hashable, Any]"
)
"""Arrow data (anything with `__arrow_c_stream__`) with the columns of a state, (key, value) pairs, or a dict."""

_LIST_COLUMNS = 4
"""Key group, key, position and value. A list with more columns has a time to live, so elements may be missing."""

PIECE_ROWS = 16_384
"""How many rows are converted at a time."""


@dataclass(frozen=True, slots=True)
class UserRowEncoding:
    """Converts rows to a state's rows.

    Attributes
    ----------
    info : StateInfo
        The state.
    max_parallelism, hash : int, str
        The number of key groups, and the hash that maps keys to them.
    """

    info: StateInfo
    max_parallelism: int
    hash: str

    def tables(self, rows: Rows) -> Iterator[pa.Table]:
        """Yield the rows with their key groups in bounded pieces, which may differ in the encoding of keys.

        Raises
        ------
        ConfigError
            A column is missing, or its type does not fit the declared one.
        NullKey, UnsupportedKey
            A key is null or not supported by the hash.
        UnstorableValue
            A value does not fit the state.
        """
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if not hasattr(rows, "__arrow_c_stream__"):
            return self._from_pairs(rows)
        return self._from_arrow(pa.RecordBatchReader.from_stream(rows))

    def _from_arrow(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        for batch in batches:
            self._check_columns(batch.schema)
            for start in range(0, batch.num_rows, PIECE_ROWS):
                piece = pa.Table.from_batches([batch.slice(start, PIECE_ROWS)])
                columns = {name: self._index_column(piece, name) for name in index_columns(self.info.kind)}
                yield self._table(columns, piece)

    def _check_columns(self, schema: pa.Schema) -> None:
        entry = ENTRY_COLUMNS.get(self.info.kind)
        wanted = ["key", *([entry] if entry else []), "value"]
        missing = [name for name in wanted if name not in schema.names]
        if missing:
            reason = f"rows of the {self.info.kind} state {self.info.name!r} have the columns {', '.join(wanted)}"
            raise ConfigError("rows", schema.names, f"{reason}; {', '.join(missing)} is not there")

    def _table(self, indices: dict[str, tuple[pa.Array, pa.DataType | None]], piece: pa.Table) -> pa.Table:
        schema = keyed_schema(self.info, *(type_ for _, type_ in indices.values()))
        arrays = {name: column for name, (column, _) in indices.items()}
        if "position" in schema.names:
            if piece.column("position").null_count:
                raise ConfigError("rows", "null", f"each element of the list state {self.info.name!r} has a position")
            arrays["position"] = self._cast(piece, "position", pa.int64())
        arrays["value"] = self._values(piece, schema.field("value"))
        # Optional columns of the state are taken if they are given.
        optional = [field for field in schema if field.name not in arrays and field.name in piece.schema.names]
        arrays |= {field.name: self._cast(piece, field.name, field.type) for field in optional}
        return self._with_key_groups(arrays, schema)

    def _index_column(self, piece: pa.Table, name: str) -> tuple[pa.Array, pa.DataType | None]:
        """Return keys in canonical form, and their type; None for msgpack."""
        column, field = piece.column(name), piece.schema.field(name)
        where = f"{name} of state {self.info.name!r}"
        if column.null_count:
            raise NullKey(where)
        if types.is_dictionary(field.type):
            column = column.cast(field.type.value_type)
        native = None if is_packed(field) else _native_key_type(column.type)
        if native is not None:
            column = self._cast(piece, name, native)
            if native == pa.float64():
                numbers = column.to_numpy() + 0.0  # turns -0.0 into 0.0
                column = pa.array(np.where(np.isnan(numbers), np.nan, numbers), native)
            return column, native
        keys = decode_column(piece, name) if is_packed(field) else values_of(in_microseconds(name, column))
        return _encoded_keys([identity_of(_as_key(key)) for key in keys], where)

    def _values(self, piece: pa.Table, field: pa.Field) -> pa.Array:
        declared = self.info.arrow_type
        if declared is None:
            return encode_column(decode_column(piece, "value"), field, f"state {self.info.name!r}")
        if is_packed(piece.schema.field("value")):
            raise self._other_type("msgpack", "value", declared)
        return self._cast(piece, "value", declared)

    def _cast(self, piece: pa.Table, name: str, type_: pa.DataType) -> pa.ChunkedArray:
        """Return a column with another type, or raise for a type that may change values, or a value that would be."""
        column = piece.column(name)
        if not can_hold(column.type, type_):
            raise self._other_type(str(column.type), name, type_)
        try:
            return cast(column, type_, name)
        except Misfit as misfit:
            (key,) = decode_column(piece.slice(misfit.row, 1), "key")
            where = f"state {self.info.name!r} of key {in_message(key)}"
            raise UnstorableValue(f"value that does not fit {type_}", where, misfit.place_and_reason) from None

    def _other_type(self, found: str, name: str, type_: pa.DataType) -> ConfigError:
        what = "values" if name == "value" else f"the column {name!r}"
        return ConfigError("rows", found, f"{what} of state {self.info.name!r} are {type_}: cast them before")

    def _from_pairs(self, pairs: object) -> Iterator[pa.Table]:
        rows = self._entries(pairs_in("rows", pairs))
        where = f"state {self.info.name!r}"
        while piece := list(islice(rows, PIECE_ROWS)):
            keys, entries, values = (list(column) for column in zip(*piece, strict=True))
            indices = {"key": _encoded_keys(keys, f"a key of {where}")}
            if self.info.kind == "map":
                indices["map_key"] = _encoded_keys(entries, f"a map key of {where}")
            schema = keyed_schema(self.info, *(type_ for _, type_ in indices.values()))
            arrays = {name: column for name, (column, _) in indices.items()}
            if self.info.kind == "list":
                arrays["position"] = pa.array(entries, pa.int64())
            arrays["value"] = encode_column(values, schema.field("value"), where, list(map(original_of, keys)))
            yield self._with_key_groups(arrays, schema)

    def _entries(self, pairs: Iterable[tuple[Hashable, Any]]) -> Iterator[tuple[Hashable, Hashable, Any]]:
        kind, where = self.info.kind, f"state {self.info.name!r} of key "
        for given, value in pairs:
            if given is None:
                raise NullKey(f"a row of state {self.info.name!r}")
            key = identity_of(given)
            if kind not in ENTRY_COLUMNS:
                yield key, None, value
            elif kind == "list" and isinstance(value, list | tuple):
                yield from ((key, position, element) for position, element in enumerate(value))
            elif kind == "map" and isinstance(value, Mapping):
                yield from ((key, identity_of(map_key), item) for map_key, item in value.items())
            else:
                raise UnstorableValue(f"{type(value).__qualname__} instead of a {kind}", f"{where}{in_message(given)}")

    def _with_key_groups(self, arrays: dict[str, pa.Array], schema: pa.Schema) -> pa.Table:
        packed = is_packed(schema.field("key"))
        keys = decode_column(pa.table([arrays["key"]], pa.schema([schema.field("key")])), "key") if packed else None
        groups = key_groups_of(arrays["key"] if keys is None else keys, self.max_parallelism, self.hash)
        columns = {field.name: pa.nulls(len(groups), field.type) for field in schema if field.nullable} | arrays
        columns[KEY_GROUP] = pa.array(groups, pa.int32())
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def _encoded_keys(identities: list[Hashable], where: str) -> tuple[pa.Array, pa.DataType | None]:
    type_ = common_key_type(key_types_of(identities))
    field = pa.field("key", type_) if type_ else pa.field("key", pa.binary(), metadata=PACKED)
    return encode_column(list(map(original_of, identities)), field, where), type_


def _native_key_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the type as which keys of an Arrow type are stored; None for msgpack."""
    if types.is_integer(type_):
        return pa.int64()
    if types.is_floating(type_):
        return pa.float64()
    if is_text(type_):
        return pa.string()
    return pa.binary() if is_bytes(type_) else None


def _as_key(value: Any) -> Any:
    """Return the key for a value of a column; a struct of several columns becomes a tuple."""
    if isinstance(value, dict):
        return tuple(map(_as_key, value.values()))
    return tuple(map(_as_key, value)) if isinstance(value, list) else value


def check_whole(info: StateInfo, rows: pa.Table) -> None:
    """Check that no key, or entry of a key, is duplicate, and that no element of a list is missing.

    Parameters
    ----------
    info : StateInfo
        The state.
    rows : pyarrow.Table
        All rows of a key group.

    Raises
    ------
    DuplicateKey
        A key or an entry is duplicate.
    ConfigError
        The positions of a list do not count from 0 without gaps.
    """
    entry = ENTRY_COLUMNS.get(info.kind)
    names = ["key", *([entry] if entry else [])]
    counted = rows.select(names).group_by(names, use_threads=False).aggregate([([], "count_all")])
    if counted.num_rows < rows.num_rows:
        doubled = counted.filter(pc.greater(counted.column("count_all"), 1)).slice(0, 1).select(names)
        doubled = doubled.cast(pa.schema([rows.schema.field(name) for name in names]))
        found = [decode_column(doubled, name)[0] for name in names]
        raise DuplicateKey(info.name, *found)
    if entry == "position" and len(rows.schema) == _LIST_COLUMNS:
        spans = rows.group_by("key", use_threads=False).aggregate([("position", "max"), ("position", "count")])
        # The positions are distinct and not negative, so if their number matches the highest one, none is missing.
        is_whole = pc.equal(spans.column("position_max"), pc.subtract(spans.column("position_count"), 1))
        if not pc.all(is_whole).as_py() or pc.min(rows.column("position")).as_py() < 0:
            raise ConfigError("rows", info.name, "the positions of a list count from 0 without a gap")
