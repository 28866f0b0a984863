"""The types of keyed state: which type changes are allowed, and the ids of columns and fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

import pyarrow as pa
from pyarrow import types

from keygroups.arguments import check_instance
from keygroups.descriptors import StateDescriptor
from snapshots.format.manifest import StateInfo, encode_schema

EXPIRES_AT = "expires_at"
"""The column with the expiry of each value, in states with a time to live; its id is assigned as for fields."""

COLUMN_IDS = {"key_group": 1, "key": 2, "deleted": 3, "value": 4}
"""The Parquet field ids of the columns; fields inside `value` get the next ids."""

ENTRY_COLUMNS = {"list": "position", "map": "map_key"}
"""The column that identifies the entries of a key, by kind of state; its id is assigned as for fields."""

_FIELD_ID = b"PARQUET:field_id"
_UNITS = ("s", "ms", "us", "ns")


def check_descriptor(name: str, descriptor: object) -> None:
    """Raise `ConfigError` unless an argument declares a keyed state."""
    reason = "pass the declaration of a keyed state, such as ValueState('visits')"
    check_instance(name, descriptor, get_args(StateDescriptor), reason=reason)


def state_info(descriptor: StateDescriptor, before: StateInfo | None) -> StateInfo:
    """Describe a state: known fields keep their ids, and new fields get new ones."""
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
        schema=None if descriptor.value_type is None else _text_of(descriptor.value_type),
        codec="msgpack-1" if descriptor.value_type is None else "arrow-1",
        field_ids=COLUMN_IDS | ids,
        last_field_id=last,
    )


def with_field_ids(field: pa.Field, ids: dict[str, int], path: str) -> pa.Field:
    """Return the field with its Parquet field id and the ids of its nested fields."""
    metadata = (field.metadata or {}) | {_FIELD_ID: str(ids[path]).encode()}
    type_ = _rebuilt(field.type, lambda child: with_field_ids(child, ids, f"{path}.{child.name}"))
    return pa.field(field.name, type_, field.nullable, metadata)


def without_field_ids(field: pa.Field) -> pa.Field:
    """Return the field without ids, as the user declared it."""
    metadata = {key: value for key, value in (field.metadata or {}).items() if key != _FIELD_ID}
    return pa.field(field.name, _rebuilt(field.type, without_field_ids), field.nullable, metadata or None)


def widens(old: pa.DataType | None, new: pa.DataType | None) -> bool:
    """Return whether Arrow can cast every value of the old type to an equal value of the new type.

    A struct may gain nullable fields and lose fields, because its declaration asks for that.
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
    """Return whether the new unit is at least as fine and the time zone is the same."""
    for is_kind in (types.is_time, types.is_duration, types.is_timestamp):
        if is_kind(old) and is_kind(new):
            same_zone = not types.is_timestamp(old) or old.tz == new.tz
            # Python has no nanoseconds: stored values would be returned with another type.
            return same_zone and _UNITS.index(old.unit) <= _UNITS.index(new.unit) <= _UNITS.index("us")
    return False


def _nested_widens(old: pa.DataType, new: pa.DataType) -> bool:
    if types.is_struct(old):
        return types.is_struct(new) and _struct_widens(old, new)
    if types.is_map(old):
        return types.is_map(new) and widens(old.key_type, new.key_type) and widens(old.item_type, new.item_type)
    return _list_widens(old, new)


def _struct_widens(old: pa.DataType, new: pa.DataType) -> bool:
    before = {field.name: field for field in old}
    return all(
        _field_widens(before[field.name], field) if field.name in before else bool(field.nullable) for field in new
    )


def _field_widens(old: pa.Field, new: pa.Field) -> bool:
    return bool(new.nullable or not old.nullable) and widens(old.type, new.type)


def _list_widens(old: pa.DataType, new: pa.DataType) -> bool:
    if types.is_list(old):
        fits = types.is_list(new) or types.is_large_list(new)
    elif types.is_large_list(old):
        fits = types.is_large_list(new)
    else:
        fits = types.is_fixed_size_list(old) and types.is_fixed_size_list(new) and old.list_size == new.list_size
    return bool(fits) and widens(old.value_type, new.value_type)


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
    """Return the type with `change` applied to its fields."""
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


def _text_of(type_: pa.DataType) -> str:
    return encode_schema(pa.schema([pa.field("value", type_)]))
