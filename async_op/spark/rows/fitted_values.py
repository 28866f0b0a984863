"""Values of outputs in the form in which Arrow takes them as they are meant.

Arrow itself cuts off fractions, takes numbers for dates and naive timestamps for UTC, and leaves out what a struct does
not have. Such values are refused here, or localised as Spark's own functions do it.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from numbers import Number
from operator import is_
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
from pyarrow import types

Fit = Callable[[Iterable[Any]], Iterable[Any]]
"""Returns values for Arrow: what it was given, or a list where a value needs another form.

Raises ValueError or TypeError, which says how a value does not fit.
"""

_One = Callable[[Any], Any]

_FRACTIONAL = (float, Decimal, Fraction, np.floating)
_TOO_LARGE_FOR_FLOAT = 2.0**128 - 2.0**103
"""From here on a number is rounded to infinity, because it lies half a step beyond the largest of 32 bits."""

_OFFSET = re.compile(r"(?:UTC|GMT|UT|Z)?(?:(?P<sign>[+-])(?P<hours>\d\d?)(?::?(?P<minutes>\d\d))?)?")
"""Time zones that Java knows besides the names of the time zone database."""


def fit_of(type_: pa.DataType) -> Fit:
    """Return the function that fits the values of a column of a type, or of arrays of it.

    Parameters
    ----------
    type_ : pyarrow.DataType
        The type that Arrow will be asked for.
    """
    if types.is_list(type_) or types.is_large_list(type_):
        return _lists(fit_of(type_.value_type))
    if types.is_map(type_):
        fields = [type_.key_field, type_.item_field]
        is_same = all(fit_of(field.type) is _same for field in fields)
        return _same if is_same else _each(_map_with(_struct_of(fields)))
    if types.is_struct(type_):
        return _each(_struct_of([type_.field(index) for index in range(type_.num_fields)]))
    if types.is_timestamp(type_):
        return _each(_local if type_.tz is None else _in_zone(type_.tz))
    return next((fit for is_type, fit in _SCALARS if is_type(type_)), _same)


def _same(values: Iterable[Any]) -> Iterable[Any]:
    return values


def _each(one: _One, *plain: type) -> Fit:
    """Return a function that fits values one by one, unless all are of types that fit as they are."""
    plain_types = {type(None), *plain}

    def fit(values: Iterable[Any]) -> Iterable[Any]:
        listed = _listed(values)
        if {*map(type, listed)} <= plain_types:
            return values
        fitted = [one(value) for value in listed]
        # Most values fit as they are, and Arrow is to judge the container that the function returned.
        return values if all(map(is_, fitted, listed)) else fitted

    return fit


def _listed(values: Iterable[Any]) -> list[Any] | tuple[Any, ...]:
    if isinstance(values, list | tuple):
        return values
    # The numbers of numpy's arrays become Python's, which are quick to check.
    is_numbers = isinstance(values, np.ndarray) and values.dtype.kind in "biuf"
    return values.tolist() if is_numbers else list(values)  # type: ignore[attr-defined]


def _integer(value: Any) -> Any:
    _refuse_bool(value)
    if isinstance(value, _FRACTIONAL) and int(value) != value:
        raise ValueError("its fraction would be cut off; round it, or declare a type with fractions")
    return value


def _double(value: Any) -> Any:
    _refuse_bool(value)
    return value


def _float(value: Any) -> Any:
    _refuse_bool(value)
    if isinstance(value, float | np.floating) and _TOO_LARGE_FOR_FLOAT <= abs(float(value)) < math.inf:
        raise ValueError("it would become infinite; declare it as double")
    return value


def _floats(values: Iterable[Any]) -> Iterable[Any]:
    listed = _listed(values)
    # The usual case without a call for each number, as embeddings are long: none is greater than all of them together.
    if {*map(type, listed)} == {float} and math.hypot(*listed) < _TOO_LARGE_FOR_FLOAT:
        return values
    return _FLOATS_ONE_BY_ONE(values)


_FLOATS_ONE_BY_ONE = _each(_float, int)


def _refuse_bool(value: Any) -> None:
    if isinstance(value, bool | np.bool_):
        raise TypeError("a bool is not taken for a number; convert it, or declare it as boolean")


def _moment(value: Any) -> Any:
    """Refuse what is no date, time or duration; pandas' NaT is none, but Arrow makes the year 1 of it."""
    is_number = isinstance(value, Number | np.bool_) and not isinstance(value, np.timedelta64)
    if is_number or (isinstance(value, dt.date) and value != value):
        raise ValueError("it is no date, time or interval; return one of the module datetime, or None")
    return value


def _local(value: Any) -> Any:
    """Refuse a time zone where Arrow would drop it and store the time in UTC."""
    if isinstance(_moment(value), dt.datetime) and value.tzinfo is not None:
        raise ValueError("it has a time zone; remove the time zone, or declare the column as timestamp")
    return value


def _in_zone(name: str) -> _One:
    def one(value: Any) -> Any:
        is_naive = isinstance(_moment(value), dt.datetime) and value.tzinfo is None
        return value.replace(tzinfo=_zone(name)) if is_naive else value

    return one


@lru_cache
def _zone(name: str) -> dt.tzinfo:
    """Return a time zone of Spark; looked up for the first naive value only, because Java knows more of them."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        offset = _OFFSET.fullmatch(name)
    if offset is None:
        raise ValueError(f"the session's time zone {name!r} is not known here; return timestamps with a time zone")
    minutes = 60 * int(offset["hours"] or 0) + int(offset["minutes"] or 0)
    return dt.timezone(dt.timedelta(minutes=-minutes if offset["sign"] == "-" else minutes))


def _lists(fit: Fit) -> Fit:
    if fit is _same:
        return _same

    def one(value: Any) -> Any:
        # What Arrow does not take as a list is left for Arrow to refuse.
        is_list = isinstance(value, Iterable) and not isinstance(value, Iterator | Mapping | MappingView)
        return fit(value) if is_list else value

    return _each(one)


def _map_with(entry: _One) -> _One:
    fit_entries = _lists(_each(entry))

    def one(value: Any) -> Any:
        (entries,) = fit_entries([list(value.items()) if isinstance(value, dict) else value])
        return entries

    return one


def _struct_of(fields: Iterable[pa.Field]) -> _One:
    fits = {field.name: fit_of(field.type) for field in fields}

    def item(name: str, value: Any) -> Any:
        (fitted,) = fits[name]((value,))
        return fitted

    def one(value: Any) -> Any:
        if isinstance(value, dict):
            if unknown := value.keys() - fits.keys():
                raise ValueError(f"there is no field {min(unknown, key=str)!r}; the fields are {', '.join(fits)}")
            return {name: item(name, inner) for name, inner in value.items()}
        if isinstance(value, tuple) and len(value) == len(fits):
            return tuple(map(item, fits, value))
        if isinstance(value, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
            return [(name, item(name, inner)) if name in fits else (name, inner) for name, inner in value]
        return value

    return one


_SCALARS: list[tuple[Callable[[pa.DataType], bool], Fit]] = [
    (types.is_integer, _each(_integer, int)),
    (types.is_float64, _each(_double, float, int)),
    (types.is_float32, _floats),
    (types.is_temporal, _each(_moment)),
]
