"""Arrow columns with nanoseconds, which no type of Python's has, in microseconds."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
from pyarrow import types

from keygroups.errors import ConfigError


def in_microseconds(name: str, column: pa.Array) -> pa.Array:
    """Return a column whose times have no nanoseconds, also inside of structs, lists and maps.

    Otherwise pyarrow would make types of pandas where that is installed, and fail or round where it is not.

    Raises
    ------
    ConfigError
        A time is no whole number of microseconds.
    """
    kind = _coarse(column.type)
    if kind == column.type:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        reason = "its nanoseconds do not fit into Python's types; round it to microseconds, or cast it to int64"
        raise ConfigError(f"column {name!r}", str(column.type), reason) from None  # the cause shows a value


@lru_cache
def _coarse(kind: pa.DataType) -> pa.DataType:
    """Return a type with microseconds in place of nanoseconds."""
    unit = getattr(kind, "unit", None)
    if unit == "ns":
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
        return pa.dictionary(kind.index_type, _coarse(kind.value_type), kind.ordered)
    return kind


def _coarse_time(kind: pa.DataType) -> pa.DataType:
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.duration("us") if types.is_duration(kind) else pa.time64("us")


def _coarse_field(field: pa.Field) -> pa.Field:
    return field.with_type(_coarse(field.type))
