"""Arrow columns as columns of another type, without a change of values."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
from pyarrow import types

from keygroups.errors import ConfigError
from keygroups.values.scalars import Misfit


def in_microseconds(name: str, column: pa.Array) -> pa.Array:
    """Return a column whose times have no nanoseconds, also inside of structs, lists and maps.

    Otherwise pyarrow would make types of pandas where that is installed, and fail or round where it is not.

    Raises
    ------
    ConfigError
        A time is no whole number of microseconds.
    """
    try:
        return _in_microseconds(column)
    except pa.ArrowInvalid:
        reason = "its nanoseconds do not fit into Python's types; round it to microseconds, or cast it to int64"
        raise ConfigError(f"column {name!r}", str(column.type), reason) from None  # the cause shows a value


def coarse(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column in microseconds if it loses nothing thereby, and as it is otherwise."""
    try:
        return _in_microseconds(column)
    except pa.ArrowInvalid:
        return column


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns of a schema, by name; a column that the batch does not have is null.

    Raises
    ------
    Misfit
        The batch has a column that the schema does not have, or whose values the schema's type would change.
    """
    names = batch.schema.names
    for name in names:
        if names.count(name) > 1:
            raise Misfit(0, name, "two columns have this name")
        if schema.get_field_index(name) < 0:
            raise Misfit(0, name, "there is no such column")
    arrays = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        array = pa.nulls(batch.num_rows, field.type) if at < 0 else cast(batch.column(at), field.type, field.name)
        if array.null_count and not field.nullable:
            raise Misfit(array.is_null().index(True).as_py(), field.name, "null in a column that is not nullable")
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns of a schema, all of which it has, in the schema's order.

    Raises
    ------
    Misfit
        A column has values that the schema's type would change.
    """
    columns = [cast(table.column(field.name), field.type, field.name) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def cast(column: pa.Array, type_: pa.DataType, name: str = "") -> pa.Array:
    """Return a column with another type that holds all of its values.

    Raises
    ------
    Misfit
        The type is of another kind, such as numbers for text, or too small for a value.
    """
    if column.type == type_:
        return column
    if not can_hold(column.type, type_):
        raise Misfit(0, name, f"{column.type} is not taken for {type_}; cast the column before")
    try:
        return column.cast(type_)
    except pa.ArrowException:
        raise Misfit(_first_failure(column, type_), name, f"a value of {column.type} does not fit {type_}") from None


def can_hold(given: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether a cast from one type to another keeps each value, or fails."""
    if given == declared or types.is_null(given):
        return True
    if types.is_dictionary(given):
        return can_hold(given.value_type, declared)
    if types.is_dictionary(declared):
        return can_hold(given, declared.value_type)
    if types.is_struct(given) and types.is_struct(declared):
        return _can_hold_struct(given, declared)
    if types.is_map(given) and types.is_map(declared):
        return can_hold(given.key_type, declared.key_type) and can_hold(given.item_type, declared.item_type)
    if _is_list(given) and _is_list(declared):
        return can_hold(given.value_type, declared.value_type)
    if types.is_timestamp(given) and types.is_timestamp(declared):
        return (given.tz is None) == (declared.tz is None)
    if types.is_integer(given):
        return bool(types.is_integer(declared) or types.is_float64(declared) or types.is_decimal(declared))
    if types.is_floating(given):
        return bool(types.is_floating(declared) and given.bit_width <= declared.bit_width)
    families = (types.is_decimal, types.is_date, types.is_time, types.is_duration, _is_text, _is_bytes)
    return any(is_kind(given) and is_kind(declared) for is_kind in families)


def _can_hold_struct(given: pa.StructType, declared: pa.StructType) -> bool:
    names = [field.name for field in given]
    fields = {field.name: field.type for field in declared}
    # Arrow casts structs by name, and puts the fields into the order of the declared ones.
    return (
        len(set(names)) == len(names)
        and {*names} == fields.keys()
        and all(can_hold(field.type, fields[field.name]) for field in given)
    )


def _is_list(type_: pa.DataType) -> bool:
    return bool(types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_))


def _is_text(type_: pa.DataType) -> bool:
    return bool(types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    is_sized = types.is_binary(type_) or types.is_large_binary(type_) or types.is_binary_view(type_)
    return bool(is_sized or types.is_fixed_size_binary(type_))


def _first_failure(column: pa.Array, type_: pa.DataType) -> int:
    """Return the first row that cannot be cast: each half is cast only if the search goes on in it."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            column.slice(low, middle - low).cast(type_)
        except pa.ArrowException:
            high = middle
        else:
            low = middle
    return low


def _in_microseconds(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    kind = _coarse_type(column.type)
    return column if kind == column.type else column.cast(kind)


@lru_cache
def _coarse_type(kind: pa.DataType) -> pa.DataType:
    """Return a type with microseconds in place of nanoseconds."""
    if getattr(kind, "unit", None) == "ns":
        return _coarse_time(kind)
    if types.is_struct(kind):
        return pa.struct([_coarse_field(field) for field in kind])
    if types.is_map(kind):
        return pa.map_(_coarse_field(kind.key_field), _coarse_field(kind.item_field), kind.keys_sorted)
    if types.is_list(kind):
        return pa.list_(_coarse_field(kind.value_field))
    if types.is_large_list(kind):
        return pa.large_list(_coarse_field(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(_coarse_field(kind.value_field), kind.list_size)
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _coarse_type(kind.value_type), kind.ordered)
    return kind


def _coarse_time(kind: pa.DataType) -> pa.DataType:
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.duration("us") if types.is_duration(kind) else pa.time64("us")


def _coarse_field(field: pa.Field) -> pa.Field:
    return field.with_type(_coarse_type(field.type))
