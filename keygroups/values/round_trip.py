"""Columns that return each value as it was: of the same Python type, with the same fields in the same order.

The rules of `type_checks` keep what a value means: a tuple may come back as a list, and 1 as 1.0. Elements in flight
must come back as the very values that they were, so a column holds them only under the rules here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import accumulate, chain
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from keygroups.values.inference import COLUMN_TYPES
from keygroups.values.scalars import CONVERSION_ERRORS, Refusal
from keygroups.values.stored_types import reason_against
from keygroups.values.zones import zone_of, zones_of

FIELDS_MAX = 256
"""A type with more fields is not inferred: dicts with many keys are rather mappings than rows."""

SAMPLE = 256
"""The type is first inferred from so many values, because the values are looked at again when they are converted."""

_DECIMAL_DIGITS = 38

_STEPS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


def is_exact(type_: pa.DataType) -> bool:
    """Return whether there are columns of a type in files, and rules for it here.

    Examples
    --------
    >>> is_exact(pa.list_(pa.int64())), is_exact(pa.dictionary(pa.int32(), pa.string()))
    (True, False)
    """
    if reason_against(type_) is not None:
        return False
    if not types.is_nested(type_):
        return types.is_null(type_) or any(is_type(type_) for is_type, _, _ in _SCALARS)
    is_known = types.is_struct(type_) or types.is_list(type_) or types.is_large_list(type_) or _is_plain_map(type_)
    return is_known and all(is_exact(type_.field(index).type) for index in range(type_.num_fields))


def exact_type(values: Iterable[Any]) -> pa.DataType:
    """Return the type of a column that may return values as they are: `exact_array` tells whether it does.

    Raises
    ------
    Refusal
        There is none, as for values of several types, tuples, and dicts with different keys.

    Examples
    --------
    >>> exact_type([{"id": 1, "tags": ["a"]}, None])
    StructType(struct<id: int64, tags: list<item: string>>)
    """
    type_ = _type_of(values)
    if _fields_in(type_) > FIELDS_MAX:
        raise Refusal(f"it has more than {FIELDS_MAX} fields")
    return type_


def exact_array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return values as a column from which `values_of` reads them as they were; None is null.

    Raises
    ------
    Refusal
        A value would come back as another one.
    """
    try:
        return _array(values, type_)
    except CONVERSION_ERRORS as error:
        raise Refusal(f"a value does not fit {type_}") from error


def inferred_array(values: Sequence[Any]) -> pa.Array:
    """Return values as a column of the type that `exact_type` finds.

    Raises
    ------
    Refusal
        There is no such type, or a value would come back as another one.

    Examples
    --------
    >>> inferred_array(["a", None]).type
    DataType(string)
    """
    first = exact_type(values[:SAMPLE])
    try:
        return exact_array(values, first)
    except Refusal:
        type_ = exact_type(values)  # what is null or empty in the first ones has a type later
        if type_ == first:
            raise
    return exact_array(values, type_)


def exact_column(values: Sequence[Any], type_: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Return values as a column, and the rows that it could not return as they were; these are null.

    Examples
    --------
    >>> array, unfit = exact_column([1, 2.0, 3], pa.int64())
    >>> array.to_pylist(), unfit
    ([1, None, 3], [1])
    """
    try:
        return exact_array(values, type_), []
    except Refusal:
        unfit = _unfit_rows(values, type_, 0)
    fitting = list(values)
    for row in unfit:
        fitting[row] = None
    return exact_array(fitting, type_), unfit


def _unfit_rows(values: Sequence[Any], type_: pa.DataType, first: int) -> list[int]:
    """Return the rows that do not fit; halves without any are looked at once, so a few of them cost little."""
    try:
        exact_array(values, type_)
    except Refusal:
        if len(values) <= 1:
            return [first] * len(values)
        middle = len(values) // 2
        return _unfit_rows(values[:middle], type_, first) + _unfit_rows(values[middle:], type_, first + middle)
    return []


def _type_of(values: Iterable[Any]) -> pa.DataType:
    present = [value for value in values if value is not None]
    kinds = {*map(type, present)}
    if not kinds:
        return pa.null()
    if len(kinds) > 1:
        raise Refusal("they have several types")
    (kind,) = kinds
    if kind is dict:
        return _struct_of(present)
    if kind is list:
        return _list_of(present)
    if kind is Decimal:
        return _decimal_of(present)
    if kind is dt.datetime:
        return _timestamp_of(present)
    if kind not in COLUMN_TYPES:
        raise Refusal(f"no column returns a {kind.__qualname__}")
    return COLUMN_TYPES[kind]


def _list_of(lists: Sequence[list[Any]]) -> pa.DataType:
    item = _type_of(chain.from_iterable(lists))
    if types.is_null(item) and any(lists):
        raise Refusal("Parquet loses the items of lists of nulls")
    return pa.list_(item)


def _struct_of(dicts: Sequence[dict[Any, Any]]) -> pa.DataType:
    names = tuple(dicts[0])
    if not names or len(names) > FIELDS_MAX or {*map(type, names)} != {str}:
        raise Refusal("its keys are not the names of fields")
    _check_names(dicts, names)
    return pa.struct([(name, _type_of([one[name] for one in dicts])) for name in names])


def _check_names(dicts: Sequence[dict[Any, Any]], names: tuple[str, ...]) -> None:
    if {*map(tuple, dicts)} != {names} or {*map(type, chain.from_iterable(dicts))} != {str}:
        raise Refusal("not all have the same fields in the same order")


def _decimal_of(values: Sequence[Decimal]) -> pa.DataType:
    exponents = {value.as_tuple().exponent for value in values}
    exponent = exponents.pop()
    if exponents or not isinstance(exponent, int) or not 0 <= -exponent <= _DECIMAL_DIGITS:
        raise Refusal("they have different numbers of digits after the point")
    return pa.decimal128(_DECIMAL_DIGITS, -exponent)


def _timestamp_of(values: Sequence[dt.datetime]) -> pa.DataType:
    zone, *others = zones_of(values)
    if any(not _are_same_zone(zone, other) for other in others):
        raise Refusal("they have several time zones")
    if zone is None:
        return pa.timestamp("us")
    if zone is dt.UTC:
        return pa.timestamp("us", "+00:00")  # for "UTC" pyarrow would return the zone of that name
    try:
        name: str = pa.lib.tzinfo_to_string(zone)
        known = zone_of(name)
    except (*CONVERSION_ERRORS, LookupError) as error:
        raise Refusal("their time zone has no name or offset that Arrow knows") from error
    if not _are_same_zone(zone, known):
        raise Refusal("their time zone would be read as another one")
    return pa.timestamp("us", name)


def _are_same_zone(zone: dt.tzinfo | None, other: dt.tzinfo | None) -> bool:
    """Return whether two zones are equal in their names, too, which `==` ignores in a `datetime.timezone`."""
    return type(zone) is type(other) and zone == other and repr(zone) == repr(other)


def _fields_in(type_: pa.DataType) -> int:
    count: int = type_.num_fields
    return count + sum(_fields_in(type_.field(index).type) for index in range(type_.num_fields))


def _array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if types.is_struct(type_):
        return _structs(values, type_)
    if types.is_list(type_) or types.is_large_list(type_):
        return _lists(values, type_)
    if types.is_map(type_) and _is_plain_map(type_):
        return _maps(values, type_)
    if types.is_null(type_):
        return _nulls(values, type_)
    for is_type, kind, check in _SCALARS:
        if is_type(type_):
            present = _of_kind(values, kind)
            if check is not None and present:
                check(present, type_)
            return pa.array(values, type_)
    raise _refusal(type_)


def _of_kind(values: Sequence[Any], kind: type) -> list[Any]:
    """Return the values without None; all must be of exactly one Python type."""
    present = [value for value in values if value is not None]
    if not {*map(type, present)} <= {kind}:
        raise Refusal(f"not all are of type {kind.__qualname__}")
    return present


def _mask(values: Sequence[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


def _item(values: Sequence[Any], field: pa.Field) -> pa.Array:
    array = _array(values, field.type)
    if array.null_count and not field.nullable:
        raise Refusal("null in a field that is not nullable")
    return array


def _structs(values: Sequence[Any], type_: pa.StructType) -> pa.Array:
    present = _of_kind(values, dict)
    fields = list(type_)
    if not present:
        return pa.nulls(len(values), type_)
    _check_names(present, tuple(field.name for field in fields))
    if len(present) == len(values):
        columns = [_item([one[field.name] for one in present], field) for field in fields]
        return pa.StructArray.from_arrays(columns, fields=fields)
    columns = [_array([None if one is None else one[field.name] for one in values], field.type) for field in fields]
    for field in fields:
        if not field.nullable:
            _item([one[field.name] for one in present], field)
    return pa.StructArray.from_arrays(columns, fields=fields, mask=_mask(values))


def _offsets(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    return pa.array(accumulate((0 if one is None else len(one) for one in values), initial=0), type_)


def _lists(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    items = _item([*chain.from_iterable(_of_kind(values, list))], type_.value_field)
    is_large = types.is_large_list(type_)
    make = pa.LargeListArray if is_large else pa.ListArray
    offsets = _offsets(values, pa.int64() if is_large else pa.int32())
    return make.from_arrays(offsets, items, type=type_, mask=_mask(values))


def _is_plain_map(type_: pa.DataType) -> bool:
    """Return whether a map comes back as a dict with all of its keys: NaN may be there twice, and lists cannot."""
    return bool(types.is_map(type_) and not types.is_nested(type_.key_type) and not types.is_floating(type_.key_type))


def _maps(values: Sequence[Any], type_: pa.MapType) -> pa.Array:
    present = _of_kind(values, dict)
    keys = _item([*chain.from_iterable(present)], type_.key_field)
    items = _item([*chain.from_iterable(one.values() for one in present)], type_.item_field)
    return pa.MapArray.from_arrays(_offsets(values, pa.int32()), keys, items, type=type_, mask=_mask(values))


def _nulls(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if any(value is not None for value in values):
        raise _refusal(type_)
    return pa.nulls(len(values), type_)


def _refusal(type_: pa.DataType) -> Refusal:
    return Refusal(f"no value comes back from {type_} as it was")


def _check_narrow(values: Sequence[float], type_: pa.DataType) -> None:
    wide = np.array(values, np.float64)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float16 if type_.bit_width == 16 else np.float32).astype(np.float64)
    if not np.array_equal(wide, narrow, equal_nan=True):
        raise Refusal("it would be rounded")


def _check_decimals(values: Sequence[Decimal], type_: pa.DataType) -> None:
    wanted = -type_.scale
    for value in values:
        if value.as_tuple().exponent != wanted or (value.is_signed() and not value):
            raise Refusal(f"it has not {type_.scale} digits after the point")


def _check_times(values: Sequence[dt.time], type_: pa.DataType) -> None:
    _check_steps([value.microsecond for value in values], type_)
    if any(value.tzinfo is not None or value.fold for value in values):
        raise Refusal("it has a time zone or a fold")


def _check_durations(values: Sequence[dt.timedelta], type_: pa.DataType) -> None:
    _check_steps([value.microseconds for value in values], type_)


def _check_steps(microseconds: Sequence[int], type_: pa.DataType) -> None:
    step = _STEPS[type_.unit]
    if step > 1 and any(one % step for one in microseconds):
        raise Refusal("its fraction of a second would be cut off")


def _check_timestamps(values: Sequence[dt.datetime], type_: pa.DataType) -> None:
    _check_steps([value.microsecond for value in values], type_)
    zones = zones_of(values)
    if type_.tz is None:
        if any(zone is not None for zone in zones) or any(value.fold for value in values):
            raise Refusal("it has a time zone or a fold")
        return
    expected = zone_of(type_.tz)
    # Equal zones may have different names.
    if not all(_are_same_zone(zone, expected) for zone in zones):
        raise Refusal(f"its time zone is another than the column has, {type_}")
    # A time in an hour that clocks skip comes back as another one.
    back = (moment.astimezone(expected) for moment in pa.array(values, type_).to_pylist())
    if any(_wall(one) != _wall(other) for one, other in zip(values, back, strict=True)):
        raise Refusal("it is a time that its zone does not have")


def _wall(moment: dt.datetime) -> tuple[dt.datetime, int]:
    return moment.replace(tzinfo=None), moment.fold


_Check = Callable[[Sequence[Any], Any], None]

_SCALARS: list[tuple[Callable[[pa.DataType], bool], type, _Check | None]] = [
    (types.is_integer, int, None),
    (types.is_float64, float, None),
    (types.is_floating, float, _check_narrow),
    (types.is_boolean, bool, None),
    (lambda type_: types.is_string(type_) or types.is_large_string(type_), str, None),
    (lambda type_: types.is_binary(type_) or types.is_large_binary(type_), bytes, None),
    (types.is_fixed_size_binary, bytes, None),
    (types.is_date, dt.date, None),
    (types.is_time, dt.time, _check_times),
    (types.is_duration, dt.timedelta, _check_durations),
    (types.is_timestamp, dt.datetime, _check_timestamps),
    (types.is_decimal, Decimal, _check_decimals),
]
"""For each kind of columns the one Python type whose values it returns, and what has to be checked besides."""
