"""Infers the columns of rows, with room for later rows."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from keygroups.values.rows import names_of
from keygroups.values.scalars import Misfit, Refusal, items_of, without_numpy
from keygroups.values.type_checks import column_of
from keygroups.values.zones import zone_of, zones_of

_DECLARE = "pass a schema"

_DECIMAL_DIGITS, _DECIMAL_SCALE = 38, 18
"""What a decimal gets, if its digits fit: as in Spark. `1.10` alone would make a column that refuses `12.50`."""

COLUMN_TYPES: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.date: pa.date32(),
    dt.time: pa.time64("us"),
    dt.timedelta: pa.duration("us"),
}


def infer_schema(rows: Sequence[Any], *, partial: bool = False) -> pa.Schema:
    """Return the columns of rows, in the order in which they first appear.

    Types have room for later rows: integers and floats have 64 bits, times microseconds, and decimals 38 digits, of
    which 18 are after the point. Dicts with text as keys are structs with the fields of all of them. Types that differ
    from row to row are refused, unless they are integers among floats or decimals.

    Parameters
    ----------
    rows : sequence of dict
        The rows, with text as keys.
    partial : bool
        Whether what is null or empty in all rows gets the type null, which no later row fits; otherwise it is refused.

    Raises
    ------
    Misfit
        A row is not a dict of columns, or a value has no type in which all values of its column fit.

    Examples
    --------
    >>> infer_schema([{"n": 1, "price": Decimal("1.10")}, {"n": 2.5}])
    n: double
    price: decimal128(38, 18)
    """
    fields = []
    for name in names_of(rows):
        values = column_of(rows, name)
        try:
            type_ = _type_of(values)
        except Refusal as refusal:
            raise Misfit(_first_conflict(values), name + refusal.path, refusal.reason) from None
        if not partial:
            check_complete(type_, name)
        fields.append(pa.field(name, type_))
    return pa.schema(fields)


def check_complete(type_: pa.DataType, column: str) -> None:
    """Raise `Misfit` if a type, or one inside of it, is null or a struct without fields.

    Parameters
    ----------
    type_ : pyarrow.DataType
        The type of a column that is to be made.
    column : str
        Its name.
    """
    if types.is_null(type_):
        raise Misfit(0, column, f"it is null or empty in all rows, so it has no type; {_DECLARE}")
    if types.is_struct(type_) and not type_.num_fields:
        raise Misfit(0, column, f"it is an empty dict in all rows, so it has no fields; {_DECLARE}")
    for index in range(type_.num_fields):
        field = type_.field(index)
        check_complete(field.type, f"{column}.{field.name}" if types.is_struct(type_) else f"{column}[]")


def _first_conflict(values: Sequence[Any]) -> int:
    """Return the first row up to which there is no common type. If there is none up to a row, then up to no later."""

    def conflicts(count: int) -> bool:
        try:
            _type_of(values[:count])
        except Refusal:
            return True
        return False

    return bisect_left(range(len(values)), True, key=lambda row: conflicts(row + 1))


def _type_of(values: Sequence[Any]) -> pa.DataType:
    kinds = {*map(type, values)}
    if any(issubclass(kind, np.generic) or kind.__module__.startswith("pandas.") for kind in kinds):
        values = [*map(without_numpy, values)]
        kinds = {*map(type, values)}
    if type(None) in kinds:
        values = [value for value in values if value is not None]
        kinds.discard(type(None))
    if not kinds:
        return pa.null()
    make = _MADE.get(next(iter(kinds))) if len(kinds) == 1 else _mixed(kinds)
    if make is None:
        raise Refusal(f"there is no type for {_listed(kinds)}; {_DECLARE}, or convert the values")
    return make(values)


def _listed(kinds: set[type]) -> str:
    return " and ".join(sorted(kind.__qualname__ for kind in kinds))


def _mixed(kinds: set[type]) -> Callable[[Sequence[Any]], pa.DataType] | None:
    if kinds == {int, float}:
        return partial(_always, pa.float64())
    if kinds == {int, Decimal}:
        return _decimal
    return _list if kinds <= {list, tuple, np.ndarray} else None


def _always(type_: pa.DataType, _values: Sequence[Any]) -> pa.DataType:
    return type_


def _integer(values: Sequence[int]) -> pa.DataType:
    if not (min(values) >= -(2**63) and max(values) < 2**63):
        raise Refusal(f"it has more than 64 bits; {_DECLARE} with decimal128(38, 0)")
    return pa.int64()


def _decimal(values: Sequence[Any]) -> pa.DataType:
    finite = [value for value in map(Decimal, values) if value.is_finite()]
    if len(finite) < len(values):
        raise Refusal("it is infinity or no number, which a decimal column cannot hold; pass a float")
    scale = max(max(-int(value.as_tuple().exponent), 0) for value in finite)
    whole = max(value.adjusted() + 1 if value else 0 for value in finite)
    if scale <= _DECIMAL_SCALE and whole <= _DECIMAL_DIGITS - _DECIMAL_SCALE:
        return pa.decimal128(_DECIMAL_DIGITS, _DECIMAL_SCALE)
    free = _DECIMAL_DIGITS - max(whole, 0) - scale
    if free < 0:
        raise Refusal(f"it has more than {_DECIMAL_DIGITS} digits; {_DECLARE}, or pass it as text")
    return pa.decimal128(_DECIMAL_DIGITS, scale + free // 2)


def _timestamp(values: Sequence[dt.datetime]) -> pa.DataType:
    zones = zones_of(values)
    are_aware = {zone is not None for zone in zones}
    if are_aware == {False}:
        return pa.timestamp("us")
    if len(are_aware) > 1:
        raise Refusal("some have a time zone and others none; give all a time zone, or none")
    names = {*map(_zone_name, zones)}
    return pa.timestamp("us", names.pop() if len(names) == 1 else "UTC")


def _zone_name(zone: dt.tzinfo | None) -> str:
    try:
        name: str = pa.lib.tzinfo_to_string(zone)
        return pa.timestamp("us", name).tz if zone_of(name) == zone else "UTC"
    except (pa.ArrowException, TypeError, ValueError, LookupError):
        return "UTC"


def _list(values: Sequence[Any]) -> pa.DataType:
    try:
        lists = (items_of(value) if type(value) is np.ndarray else value for value in values)
        return pa.list_(_type_of([*chain.from_iterable(lists)]))
    except Refusal as refusal:
        raise refusal.inside("[]") from None


def _struct(values: Sequence[dict[Any, Any]]) -> pa.DataType:
    names = {**dict.fromkeys(chain.from_iterable(values))}
    if not all(type(name) is str for name in names):
        raise Refusal(f"its keys are not text, so it is no struct; {_DECLARE} with a map")
    fields = []
    for name in names:
        try:
            fields.append((name, _type_of(column_of(values, name))))
        except Refusal as refusal:
            raise refusal.inside(f".{name}") from None
    return pa.struct(fields)


_MADE: dict[type, Callable[[Sequence[Any]], pa.DataType]] = {
    **{kind: partial(_always, type_) for kind, type_ in COLUMN_TYPES.items()},
    int: _integer,
    Decimal: _decimal,
    dt.datetime: _timestamp,
    list: _list,
    tuple: _list,
    np.ndarray: _list,
    dict: _struct,
}
