"""The values that are sent through every door, and what may become of them: they come back equal, or are refused."""

from __future__ import annotations

import base64
import datetime as dt
import enum
import json
import math
import zoneinfo
from collections import OrderedDict
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from dateutil import tz
from hypothesis import strategies as st

from tests.arrow import HAS_LISTS_OF_FIXED_SIZE

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
YEAR = dt.datetime(2026, 1, 2, 3, 4, 5)


class Level(enum.IntEnum):
    LOW = 1


class Colour(enum.StrEnum):
    RED = "red"


PLAIN: dict[pa.DataType, list[Any]] = {
    pa.int8(): [7],
    pa.int64(): [-(2**63)],
    pa.uint64(): [2**64 - 1],
    pa.float32(): [0.5],
    pa.float64(): [-0.0],
    pa.bool_(): [True],
    pa.string(): ["é\u2028\x7f"],
    pa.binary(): [b"\xff\x00"],
    pa.binary(2): [b"ab"],
    pa.date32(): [YEAR.date()],
    pa.time64("us"): [YEAR.time()],
    pa.time32("s"): [YEAR.time()],
    pa.duration("us"): [dt.timedelta(-1, 0, 1)],
    pa.duration("ms"): [dt.timedelta(1)],
    pa.timestamp("us"): [YEAR.replace(microsecond=1)],
    pa.timestamp("s"): [YEAR],
    pa.timestamp("us", "UTC"): [YEAR.replace(tzinfo=dt.UTC)],
    pa.timestamp("ns", "Europe/Berlin"): [YEAR.replace(tzinfo=BERLIN)],
    pa.decimal128(10, 2): [Decimal("1.50")],
    pa.decimal128(38, 18): [Decimal(10) ** 19],
    pa.dictionary(pa.int32(), pa.string()): ["a"],
    pa.list_(pa.int64()): [[1, None]],
    pa.list_(pa.string()): [[]],
    pa.map_(pa.string(), pa.int64()): [{"a": 1, "": None}],
    pa.map_(pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64())): [[([1], {"a": 1}), ([], None)]],
    pa.struct([("a", pa.int64()), ("b", pa.string())]): [{"a": 1, "b": None}],
    pa.struct([("at", pa.timestamp("ms", "UTC"))]): [{"at": YEAR.replace(tzinfo=dt.UTC)}],
}
if HAS_LISTS_OF_FIXED_SIZE:
    PLAIN[pa.list_(pa.timestamp("s"), 2)] = [[YEAR, None]]
"""Values for each type that a column of it holds as they are."""

UNTYPED: list[Any] = [
    *(None, True, 2**64, -0.0, "é", b"\xff", bytearray(b"a"), Decimal("1.50"), YEAR, YEAR.date(), YEAR.time()),
    *(YEAR.replace(tzinfo=BERLIN, fold=1), dt.timedelta(1), np.int8(3), (1, [2]), {3}, {"a": {1: b"x"}}, []),
]
"""Values that msgpack with extensions holds as they are."""

IN_FILES: dict[str, list[Any]] = {
    "json": [7, 2**70, "é\u2028", True, -0.0, [None, (1,)], {"a": {}}, YEAR, YEAR.date()],
    "csv": [7, 2**70, 'a,"\r\nb', True, -0.0, Decimal("1.50"), YEAR, YEAR.date()],
    "parquet": [[{"a": 1, "b": [(Decimal("1.10"), 2)]}], [{"a": None, "at": YEAR}], []],
}
"""Values that files without a schema hold; those of Parquet have one type."""

OTHERS: list[Any] = [
    *(YEAR.replace(tzinfo=zone) for zone in (tz.tzutc(), tz.tzoffset(None, 3600), tz.gettz("Europe/Berlin"))),
    *(np.datetime64("10000-01-01"), np.datetime64("2026-01"), np.datetime64("2026-01-02T03:04:05.000000001")),
    *(np.timedelta64(1, unit) for unit in ("h", "ps", "M", "generic")),
    *(np.array(1), np.array([1, 2]), np.array([[1], [2]]), np.array(["a"]), np.array(YEAR, "datetime64[s]")),
    *(np.bytes_(b"a"), np.void(b"a"), np.float16(0.1), np.complex64(1), np.bool_(True)),
    *(type("Own", (type(value),), {})(value) for value in ("a", 1, 0.5, b"a", [1], {"a": 1}, (1,), {1}, Decimal(1))),
    *(type("Own", (dt.datetime,), {})(2026, 1, 2), type("Own", (dt.timedelta,), {})(1), pd.NaT, pd.NA),
]
"""Scalars and arrays of NumPy and pandas, datetimes with time zones of dateutil, as botocore and many date parsers
return, and values of classes that extend Python's, as many drivers and parsers return."""

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-300, 300),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=3),
    st.binary(max_size=3).map(bytearray),
    st.decimals(),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.sampled_from([dt.UTC, BERLIN, dt.timezone(dt.timedelta(hours=5))])),
    st.times(),
    st.timedeltas(),
    st.sampled_from(
        [-0.0, Decimal("-0"), Level.LOW, Colour.RED, np.str_("a"), np.int64(3), np.float32(0.1), 2**53 + 1, "\ud83d"]
    ),
    st.sampled_from([np.longdouble("0.1"), np.datetime64("NaT", "s")]),
    st.sampled_from(range(len(OTHERS))).map(lambda at: OTHERS[at]),  # not all of them have a hash
    st.builds(lambda moment: moment.replace(fold=1), st.datetimes()),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=2).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b", "at"]), inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2).map(OrderedDict),
    ),
    max_leaves=4,
)

CHANGED: tuple[tuple[pa.DataType, Any], ...] = (
    (pa.int64(), 19.99),
    (pa.int64(), True),
    (pa.int64(), -0.0),
    (pa.int64(), Decimal("sNaN")),
    (pa.float64(), True),
    (pa.float64(), 2**53 + 1),
    (pa.float32(), 2**24 + 1),
    (pa.date32(), YEAR),
    (pa.timestamp("us"), YEAR.replace(tzinfo=dt.UTC)),
    (pa.timestamp("us"), YEAR.date()),
    (pa.timestamp("us", "UTC"), YEAR),
    (pa.timestamp("s"), YEAR.replace(microsecond=1)),
    (pa.duration("ms"), dt.timedelta(microseconds=1)),
    (pa.decimal128(10, 2), Decimal("1.505")),
    (pa.string(), b"bytes"),
    (pa.string(), "\ud83d"),
    (pa.string(), Colour.RED),
    (pa.binary(), "text"),
    (pa.list_(pa.string()), "text"),
    (pa.list_(pa.string()), [[]]),
    (pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1, "b": "x", "c": 2}),
)
"""What Arrow itself changes without an error, or fails for without a word about the row."""


def near(plain: list[Any]) -> st.SearchStrategy[Any]:
    """Return values of which many, but not all, fit where plain ones fit."""
    return st.one_of(st.sampled_from(plain), st.sampled_from([value for _, value in CHANGED]), VALUES)


def same_in(type_: pa.DataType, value: Any, back: Any) -> bool:
    """Return whether a column of a type has kept a value; one of 32 bits may round a float."""
    is_rounded = type_ == pa.float32() and isinstance(value, float)
    return same_in_column(float(np.float32(value)) if is_rounded else value, back)


def same_in_column(value: Any, back: Any) -> bool:
    """Return whether a column has kept a value: numbers stay equal, and tuples are lists."""
    if isinstance(value, np.generic):
        is_time_without_class = isinstance(value, np.datetime64 | np.timedelta64) and type(value.item()) is int
        return not is_time_without_class and same_in_column(value.item(), back)
    if isinstance(value, np.ndarray):
        return bool(value.ndim) and same_in_column(value.tolist(), back)
    if isinstance(value, enum.Enum | OrderedDict | bytearray):
        return False
    match value:
        case bool() | None | str() | bytes():
            return type(value) is type(back) and value == back
        case int() | float() | Decimal():
            return not isinstance(back, bool) and isinstance(back, int | float | Decimal) and _same_number(value, back)
        case dt.datetime():
            if type(back) is not dt.datetime or (value.tzinfo is None) != (back.tzinfo is None):
                return False
            return not value - back and (value.tzinfo is not None or value.fold == back.fold)
        case list() if isinstance(back, dict):
            is_map = all(isinstance(pair, tuple) and len(pair) == 2 for pair in value)
            return is_map and same_in_column(dict(value), back)
        case list() | tuple():
            is_list = isinstance(back, list | tuple) and len(value) == len(back)
            return is_list and all(map(same_in_column, value, back))
        case dict():
            # A field that a row does not have is null.
            return isinstance(back, dict) and all(
                same_in_column(value.get(name), back.get(name)) for name in value | back
            )
        case _:
            return type(value) is type(back) and bool(value == back)


def _same_number(value: Any, back: Any) -> bool:
    if value != value or back != back:
        return value != value and back != back
    return bool(value == back) and math.copysign(1, value) == math.copysign(1, back)


def same_exactly(value: Any, back: Any) -> bool:
    """Return whether a value came back as it was, by its types, too."""
    return type(value) is type(back) and repr(value) == repr(back)


def json_form(value: Any) -> Any:
    """Return the form that the page of files promises: lists for tuples, and ISO 8601 for dates and times."""
    match value:
        case enum.Enum() | OrderedDict() | bytearray() | bytes() | Decimal():
            raise AssertionError("it was to be refused")
        case np.generic():
            return json_form(value.item())
        case dt.date() | dt.time():
            return value.isoformat()
        case list() | tuple():
            return [*map(json_form, value)]
        case dict():
            return {name: json_form(item) for name, item in value.items()}
        case _:
            return value


def same_in_json(value: Any, back: Any) -> bool:
    """Return whether a line of JSON has the form of a value that is promised."""
    return repr(json_form(value)) == repr(back)


def same_in_csv(value: Any, back: str) -> bool:
    """Return whether a cell has the text of a value, as `str` gives it, and ISO 8601 for dates and times."""
    if value is None:
        return back == ""
    if isinstance(value, enum.Enum | bytes | bytearray | list | tuple | dict):
        return False
    if isinstance(value, np.generic):
        return same_in_csv(value.item(), back)
    return back == (value.isoformat() if isinstance(value, dt.date | dt.time) else str(value))


def export_form(value: Any) -> Any:
    """Return the form that the page of the command line promises for JSON: what JSON lacks becomes text."""
    match value:
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case list() | tuple():
            return [*map(export_form, value)]
        case set() | frozenset():
            return sorted(map(export_form, value), key=repr)
        case dict() if all(isinstance(name, str) for name in value):
            return {name: export_form(item) for name, item in value.items()}
        case dict():
            return [[export_form(name), export_form(item)] for name, item in value.items()]
        case dt.date() | dt.time():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return str(value)
        case float() | str():  # also of NumPy: JSON keeps the number and the text
            return float(value) if isinstance(value, float) else str(value)
        case None | bool() | int():
            return value
        case _:
            return str(value)


def same_in_json_export(value: Any, back: Any) -> bool:
    """Return whether exported JSON has the form of a value."""
    return repr(export_form(value)) == repr(back)


def same_in_csv_export(value: Any, back: str) -> bool:
    """Return whether a cell has the form of a value: nested ones are JSON, and None is an empty cell."""
    form = export_form(value)
    if isinstance(form, list | dict):
        return same_in_json_export(value, json.loads(back))
    return back == ("" if form is None else str(form))
