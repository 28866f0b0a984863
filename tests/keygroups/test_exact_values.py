"""Columns that return values as they were, by type, too, or refuse them."""

from __future__ import annotations

import datetime as dt
import http
import math
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keygroups.values import exact_column, inferred_array, is_exact, values_of
from keygroups.values.columns import array_of
from keygroups.values.round_trip import FIELDS_MAX
from keygroups.values.scalars import Misfit, Refusal
from tests.doors.values import BERLIN, PLAIN, SCALARS, VALUES, YEAR, Colour, near


class Unknown(dt.tzinfo):
    """A time zone of the user's own."""

    def __repr__(self) -> str:
        return "Unknown()"  # without an address, which would differ in the names of tests

    def utcoffset(self, moment: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(hours=1)

    def dst(self, moment: dt.datetime | None) -> None:
        return None

    def tzname(self, moment: dt.datetime | None) -> str:
        return "of my own"


ROWS = st.fixed_dictionaries({"a": SCALARS, "b": st.one_of(st.none(), st.lists(st.text(max_size=2), max_size=2))})
COLUMNS = st.one_of(
    st.lists(VALUES, max_size=4),
    st.lists(ROWS, max_size=3),
    SCALARS.map(lambda value: [value, None, value]),
    st.lists(st.decimals(allow_nan=False, places=2), max_size=3),
    st.lists(st.dictionaries(st.text(max_size=3), st.integers(), min_size=1, max_size=2), min_size=1, max_size=1),
)


def is_same(value: Any, back: Any) -> bool:
    """Compare by type and text, so that 1 is not 1.0, and the order of a dict counts."""
    return type(value) is type(back) and repr(value) == repr(back)


def stored(array: pa.Array) -> list[Any]:
    """Return what a file returns of a column."""
    table = pa.table({"values": array, "row": pa.array(range(len(array)))})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    read = pq.read_table(pa.BufferReader(sink.getvalue())).cast(table.schema)
    return values_of(read.column("values"))


@given(COLUMNS)
def test_what_a_column_holds_comes_back_as_it_was(values: list[Any]) -> None:
    try:
        array = inferred_array(values)
    except Refusal:
        return
    assert all(map(is_same, values, stored(array)))


@pytest.mark.parametrize("type_", [type_ for type_ in PLAIN if is_exact(type_)], ids=str)
@given(data=st.data())
def test_of_a_declared_type_each_value_comes_back_as_it_was_or_is_named(
    type_: pa.DataType, data: st.DataObject
) -> None:
    values = data.draw(st.lists(near(PLAIN[type_]), max_size=6))
    array, unfit = exact_column(values, type_)
    for row, (value, back) in enumerate(zip(values, stored(array), strict=True)):
        assert back is None if row in unfit else is_same(value, back)


@pytest.mark.parametrize(
    "value",
    [
        *(1, -(2**63), 1.5, -0.0, math.nan, math.inf, True, "é", b"\xff", YEAR, YEAR.date(), YEAR.time()),
        *(Decimal("1.50"), Decimal("0E-3"), dt.timedelta(1), ["a", None], [], {"a": {"b": [1]}}, {"a": None}),
        *(YEAR.replace(tzinfo=dt.UTC), YEAR.replace(tzinfo=ZoneInfo("UTC")), YEAR.replace(tzinfo=BERLIN)),
        YEAR.replace(tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
    ],
    ids=repr,
)
def test_common_values_are_columns(value: Any) -> None:
    back, nothing, _ = stored(inferred_array([value, None, value]))
    assert is_same(value, back)
    assert nothing is None


@pytest.mark.parametrize(
    "values",
    [
        *([1, 1.0], [True, 1], [2**63], [(1, 2)], [bytearray(b"a")], [{"a": 1}, {"b": 1}], [{"a": 1}, {}], [{}]),
        *([{"a": 1, "b": 2}, {"b": 2, "a": 1}], [{1: "a"}], [{Colour.RED: 1}], [Colour.RED], [{3}], ["\ud83d"]),
        *([Decimal("1.5"), Decimal("1.50")], [Decimal("-0")], [Decimal("NaN")], [Decimal("1E+3")], [[1], ["a"]]),
        *([YEAR, YEAR.replace(tzinfo=dt.UTC)], [YEAR.replace(fold=1)], [dt.timedelta.max], [[None]]),
        [YEAR.replace(tzinfo=dt.timezone(dt.timedelta(hours=1), "with a name"))],
        [YEAR.replace(tzinfo=dt.timezone(dt.timedelta(seconds=1)))],
        [YEAR.replace(tzinfo=Unknown())],
        [dt.datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN)],  # an hour that clocks skip
        [{str(number): number for number in range(FIELDS_MAX + 1)}],
    ],
    ids=lambda values: f"{repr(values)[:30]} {repr(values)[-40:]}",
)
def test_what_a_column_would_change_is_refused(values: list[Any]) -> None:
    with pytest.raises(Refusal):
        inferred_array(values)


@pytest.mark.parametrize("zone", [dt.timezone(dt.timedelta(hours=1), "with a name"), Unknown()], ids=repr)
def test_a_zone_that_only_equals_the_columns_does_not_fit(zone: dt.tzinfo) -> None:
    own = YEAR.replace(tzinfo=dt.timezone(dt.timedelta(hours=1)))
    _, unfit = exact_column([own, YEAR.replace(tzinfo=zone), own], pa.timestamp("us", "+01:00"))
    assert unfit == [1]


def test_a_field_that_is_null_in_the_first_rows_has_the_type_of_later_ones() -> None:
    values = [{"a": None}] * 1000 + [{"a": 1}]
    assert inferred_array(values).type == pa.struct([("a", pa.int64())])


@pytest.mark.parametrize("type_", [pa.float16(), pa.float32()], ids=str)
def test_a_float_that_a_column_would_round_is_named(type_: pa.DataType) -> None:
    array, unfit = exact_column([0.5, 0.1, math.nan, -0.0], type_)
    assert unfit == [1]
    assert [repr(value) for value in array.to_pylist()] == ["0.5", "None", "nan", "-0.0"]


@pytest.mark.parametrize(
    ("type_", "value", "said"),
    [
        (pa.timestamp("us"), pd.NaT, "missing value; use None"),
        (pa.int64(), pd.NA, "missing value; use None"),
        (pa.duration("us"), np.timedelta64("NaT"), "missing value; use None"),
        (pa.timestamp("us"), pd.Timestamp("2026-01-02T00:00:00.000000001"), "its nanoseconds would be cut off"),
        (pa.duration("ms"), np.timedelta64(1, "ns"), "its nanoseconds would be cut off"),
        (pa.timestamp("ns", "UTC"), np.datetime64(1, "ns"), "but a datetime64; use the module datetime"),
        (pa.int64(), http.HTTPStatus.OK, "http.HTTPStatus, a subclass of int, not int64"),
        (pa.list_(pa.int64()), type("Row", (list,), {})(), "Row, a subclass of list, not a list"),
        (pa.date32(), type("Date", (dt.date,), {})(2026, 1, 2), "Date, a subclass of date, not date32"),
    ],
    ids=repr,
)
def test_a_refused_value_of_a_library_says_what_it_is(type_: pa.DataType, value: Any, said: str) -> None:
    with pytest.raises(Misfit, match=said):
        array_of([value], type_)


def test_types_without_rules_are_known() -> None:
    lacking = [pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.int64(), 2), pa.map_(pa.float64(), pa.int64())]
    assert not any(map(is_exact, lacking))
    assert not is_exact(pa.struct([]))
