"""What a column of PostgreSQL holds unchanged: COPY itself casts text, cuts times off and drops offsets."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa

from keygroups.values.scalars import Refusal, kind_of, without_numpy
from keygroups.values.texts import json_of

_TYPE = re.compile(r"(?P<name>[^(\[]+)(?:\((?P<first>\d+)(?:,(?P<second>-?\d+))?\)(?P<rest> [^(\[]+)?)?(?:\[\])*")
"""A type as PostgreSQL's `format_type` writes it, such as `timestamp(3) without time zone` or `numeric(10,2)[]`."""

_Fit = Callable[[Any], Any]

_SAME: dict[str, pa.DataType] = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "text": pa.string(),
}


@lru_cache(maxsize=1024)
def fit_of(column_type: str) -> _Fit:
    """Return the function that returns a value, which is not None, for a column, or raises `Refusal`.

    Types that have no counterpart in Python, such as `inet` or an enum, take what the driver takes.

    Parameters
    ----------
    column_type : str
        The type of the column, as `format_type` writes it, with its modifiers.
    """
    found = _TYPE.fullmatch(column_type)
    if found is None:
        return _as_it_is
    name = found["name"] + (found["rest"] or "")
    sizes = [int(size) for size in (found["first"], found["second"]) if size is not None]
    one = _fit_of_one(name, sizes)
    return _list_of(one) if column_type.endswith("[]") else one


def _fit_of_one(name: str, sizes: list[int]) -> _Fit:
    if name in _SAME:
        return kind_of(_SAME[name]).one
    match name:
        case "character varying" | "character":
            return _text(name, sizes)
        case "numeric":
            return _numeric(sizes)
        case "timestamp without time zone":
            return _rounded(kind_of(pa.timestamp("us")).one, sizes)
        case "timestamp with time zone":
            return _rounded(kind_of(pa.timestamp("us", "UTC")).one, sizes)
        case "time without time zone":
            return _rounded(kind_of(pa.time64("us")).one, sizes)
        case "time with time zone":
            return _rounded(_time_with_zone, sizes)
        case "name":
            return _text(name, [], bytes_max=63)
        case '"char"':
            return _text(name, [], bytes_max=1)
        case "oid":
            return kind_of(pa.uint32()).one
        case "money":
            return _numeric([17, 2])
        case "uuid":
            return _uuid
        case "json" | "jsonb":
            return _json
    if name.partition(" ")[0] == "interval":
        return _interval(name, sizes)
    return _as_it_is


def _text(name: str, sizes: list[int], bytes_max: int | None = None) -> _Fit:
    one = kind_of(pa.string()).one

    def fit(value: Any) -> Any:
        text = one(value)
        # PostgreSQL cuts spaces off that are too many, and fills `character` with spaces.
        if sizes and (len(text) > sizes[0] or (name == "character" and len(text) < sizes[0])):
            raise Refusal(f"its length does not fit {name}({sizes[0]})")
        if bytes_max is not None and len(text.encode()) > bytes_max:
            raise Refusal(f"it has more than the {bytes_max} bytes of {name}")
        return text

    return fit


def _numeric(sizes: list[int]) -> _Fit:
    if sizes:
        precision, scale = [*sizes, 0][:2]
        if precision <= 76 and 0 <= scale <= precision:
            return kind_of(pa.decimal256(precision, scale)).one

    def fit(value: Any) -> Any:
        value = without_numpy(value)
        if type(value) is int:
            return value
        if type(value) is not Decimal:
            raise Refusal(f"it is a {type(value).__qualname__}, not numeric; pass a Decimal")
        if not value.is_finite() or (not value and value.is_signed()):
            raise Refusal("it is infinity, no number or a negative zero")
        if sizes and value != round(value, [*sizes, 0][1]):
            raise Refusal("it has more digits after the point than the column")
        return value

    return fit


def _rounded(one: _Fit, sizes: list[int]) -> _Fit:
    step = 10 ** (6 - sizes[0]) if sizes else 1

    def fit(value: Any) -> Any:
        moment = one(value)
        if moment.microsecond % step:
            raise Refusal(f"its fraction of a second has more than the {sizes[0]} digits of the column")
        return moment

    return fit if step > 1 else one


def _interval(name: str, sizes: list[int]) -> _Fit:
    """Return the function for a column that keeps all of an interval, or only some of its fields, such as hours."""
    one, last = kind_of(pa.duration("us")).one, name.split()[-1]
    finest = _FIELDS.get(last, dt.timedelta(microseconds=10 ** (6 - (sizes[0] if sizes else 6))))

    def fit(value: Any) -> Any:
        length = one(value)
        if finest is None or length % finest:
            raise Refusal(f"{name} would cut it")
        return length

    return fit


_FIELDS = {
    "year": None,
    "month": None,  # has no fixed length, so a timedelta has none of them
    "day": dt.timedelta(days=1),
    "hour": dt.timedelta(hours=1),
    "minute": dt.timedelta(minutes=1),
}
"""The finest field of an interval, by the last word of its type."""


def _time_with_zone(value: Any) -> dt.time:
    if type(value) is not dt.time or value.utcoffset() is None or value.fold:
        raise Refusal(f"it is a {type(value).__qualname__} without an offset, or no time")
    return value


def _uuid(value: Any) -> uuid.UUID:
    if type(value) is not uuid.UUID:
        raise Refusal(f"it is a {type(value).__qualname__}, not uuid; pass a uuid.UUID")
    return value


def _json(value: Any) -> Any:
    from psycopg.types.json import Jsonb

    text = json_of(value, is_exact=True)
    if re.search(r"-0(\.0+)?(?![.\d])", text):
        _refuse_negative_zero(value)
    return Jsonb(value, dumps=lambda _value: text)


def _refuse_negative_zero(value: Any) -> None:
    """Raise for a negative zero, of which jsonb loses the sign."""
    if type(value) is float and not value and str(value) == "-0.0":
        raise Refusal("the sign of its zero would be lost in jsonb")
    for item in value.values() if type(value) is dict else value if type(value) is list else ():
        _refuse_negative_zero(item)


def _list_of(one: _Fit) -> _Fit:
    def fit(value: Any) -> Any:
        if type(value) is not list:
            raise Refusal(f"it is a {type(value).__qualname__}, not an array; pass a list")
        fitted = []
        for at, item in enumerate(value):
            if item == [] and type(item) is list:
                raise Refusal("an empty array inside of an array would be lost: PostgreSQL has no such array")
            try:
                fitted.append(None if item is None else fit(item) if type(item) is list else one(item))
            except Refusal as refusal:
                raise refusal.inside(f"[{at}]") from None
        return fitted

    return fit


def _as_it_is(value: Any) -> Any:
    return value
