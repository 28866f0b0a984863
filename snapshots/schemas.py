"""The types of keyed state: which may follow which, and the ids of their columns and fields."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyarrow import types

from keygroups.descriptors import StateDescriptor
from snapshots.manifest import StateInfo

EXPIRES_AT = "expires_at"
"""The column of a state with a time to live that tells when a value expires; its id is given like those of fields."""

COLUMN_IDS = {"key_group": 1, "key": 2, "deleted": 3, "value": 4}
"""Parquet field ids of the columns; fields inside of `value` follow."""

ENTRY_COLUMNS = {"list": "position", "map": "map_key"}
"""The column that tells the entries of one key apart, by the kind of state; its id is given like those of fields."""

_FIELD_ID = b"PARQUET:field_id"
_UNITS = ("s", "ms", "us", "ns")


def state_info(descriptor: StateDescriptor, before: StateInfo | None) -> StateInfo:
    """Describe a state, with the field ids that it had before and new ones for new fields."""
    expires = descriptor.ttl is not None
    declared = (descriptor.kind, descriptor.value_type, expires)
    if before is not None and (before.kind, before.arrow_type, EXPIRES_AT in before.field_ids) == declared:
        return before
    kept = {} if before is None else before.field_ids
    last = max(COLUMN_IDS.values()) if before is None else before.last_field_id
    ids: dict[str, int] = {}
    entry = ENTRY_COLUMNS.get(descriptor.kind)
    around = ([entry] if entry else []), ([EXPIRES_AT] if expires else [])
    for path in (*around[0], "value", *_paths(descriptor.value_type, "value"), *around[1]):
        if path not in kept and path not in COLUMN_IDS:
            last += 1
        ids[path] = COLUMN_IDS.get(path) or kept.get(path) or last
    return StateInfo(
        name=descriptor.name,
        kind=descriptor.kind,
        type=None if descriptor.value_type is None else str(descriptor.value_type),
        schema=None if descriptor.value_type is None else _encoded(descriptor.value_type),
        codec="msgpack-1" if descriptor.value_type is None else "arrow-1",
        field_ids=COLUMN_IDS | ids,
        last_field_id=last,
    )


def with_field_ids(field: pa.Field, ids: dict[str, int], path: str) -> pa.Field:
    """Return the field with its id and those of the fields in it, as Parquet keeps them."""
    metadata = (field.metadata or {}) | {_FIELD_ID: str(ids[path]).encode()}
    type_ = _rebuilt(field.type, lambda child: with_field_ids(child, ids, f"{path}.{child.name}"))
    return pa.field(field.name, type_, field.nullable, metadata)


def without_field_ids(field: pa.Field) -> pa.Field:
    """Return the field as its user declared it."""
    metadata = {key: value for key, value in (field.metadata or {}).items() if key != _FIELD_ID}
    return pa.field(field.name, _rebuilt(field.type, without_field_ids), field.nullable, metadata or None)


def widens(old: pa.DataType | None, new: pa.DataType | None) -> bool:
    """Tell whether every value of one type has its equal in another, to which Arrow casts it without loss.

    A struct may gain fields that can be null, and lose fields: that is what its declaration asks for.
    """
    if old is None or new is None or old == new:
        return old == new
    if types.is_integer(old):
        return _integer_widens(old, new)
    if types.is_floating(old):
        return bool(types.is_floating(new) and new.bit_width >= old.bit_width)
    if types.is_string(old) or types.is_binary(old):
        return bool(types.is_large_string(new) if types.is_string(old) else types.is_large_binary(new))
    if types.is_decimal(old) and types.is_decimal(new):
        digits = new.precision - new.scale >= old.precision - old.scale
        return bool(digits and new.scale >= old.scale and new.bit_width >= old.bit_width)
    if types.is_temporal(old):
        return _temporal_widens(old, new)
    return _nested_widens(old, new)


def _integer_widens(old: pa.DataType, new: pa.DataType) -> bool:
    old_bits = old.bit_width - types.is_signed_integer(old)
    if types.is_integer(new):
        fits_sign = types.is_signed_integer(new) or types.is_unsigned_integer(old)
        return bool(fits_sign and new.bit_width - types.is_signed_integer(new) >= old_bits)
    mantissa_bits = {"float": 24, "double": 53}.get(str(new), 0)
    return bool(old_bits <= mantissa_bits)


def _temporal_widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Tell whether the unit is as fine, and the time zone the same."""
    for is_kind in (types.is_time, types.is_duration, types.is_timestamp):
        if is_kind(old) and is_kind(new):
            same_zone = not types.is_timestamp(old) or old.tz == new.tz
            # Python has no nanoseconds: what it stored would come back as another type.
            return same_zone and _UNITS.index(old.unit) <= _UNITS.index(new.unit) <= _UNITS.index("us")
    return False


def _nested_widens(old: pa.DataType, new: pa.DataType) -> bool:
    if types.is_list(old) and (types.is_list(new) or types.is_large_list(new)):
        return widens(old.value_type, new.value_type)
    if types.is_large_list(old) and types.is_large_list(new):
        return widens(old.value_type, new.value_type)
    if types.is_fixed_size_list(old) and types.is_fixed_size_list(new):
        return bool(old.list_size == new.list_size and widens(old.value_type, new.value_type))
    if types.is_map(old) and types.is_map(new):
        return widens(old.key_type, new.key_type) and widens(old.item_type, new.item_type)
    if types.is_struct(old) and types.is_struct(new):
        before = {field.name: field for field in old}
        return all(
            (field.nullable or not before[field.name].nullable) and widens(before[field.name].type, field.type)
            if field.name in before
            else field.nullable
            for field in new
        )
    return False


def _paths(type_: pa.DataType | None, path: str) -> Iterator[str]:
    for child in _children(type_):
        yield f"{path}.{child.name}"
        yield from _paths(child.type, f"{path}.{child.name}")


def _children(type_: pa.DataType | None) -> list[pa.Field]:
    if type_ is None:
        return []
    if types.is_map(type_):
        return [type_.key_field, type_.item_field]
    return [type_.field(index) for index in range(type_.num_fields)]


def _rebuilt(type_: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """Return the type with its fields changed."""
    if types.is_struct(type_):
        return pa.struct([change(field) for field in type_])
    if types.is_list(type_):
        return pa.list_(change(type_.value_field))
    if types.is_large_list(type_):
        return pa.large_list(change(type_.value_field))
    if types.is_fixed_size_list(type_):
        return pa.list_(change(type_.value_field), type_.list_size)
    if types.is_map(type_):
        return pa.map_(change(type_.key_field), change(type_.item_field), type_.keys_sorted)
    return type_


def _encoded(type_: pa.DataType) -> str:
    return base64.b64encode(pa.schema([pa.field("value", type_)]).serialize()).decode()
