"""Whatever door a value leaves by, it comes back equal, or is refused with its column and row: never a third thing."""

from __future__ import annotations

import datetime as dt
import enum
import io
import json
import math
import zoneinfo
from collections import OrderedDict
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import parquet

from async_op.connectors import UnwritableValue
from async_op.connectors.epoch_rows import dicts_of
from async_op.connectors.files.encoding import encode
from async_op.connectors.tables.postgres_types import fit_of
from keygroups import UnstorableValue
from keygroups.codec import pack, unpack
from keygroups.values import EXACT, TABLES, Misfit, array_of, infer_schema, rows_to_batch, values_of

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


class Level(enum.IntEnum):
    LOW = 1


class Colour(enum.StrEnum):
    RED = "red"


TYPES = [
    *(pa.int8(), pa.int64(), pa.uint64(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.binary(2)),
    *(pa.date32(), pa.time64("us"), pa.time32("s"), pa.duration("us"), pa.duration("ms")),
    *(pa.timestamp("us"), pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Berlin")),
    *(pa.decimal128(10, 2), pa.decimal128(38, 18), pa.dictionary(pa.int32(), pa.string())),
    *(pa.list_(pa.int64()), pa.list_(pa.string()), pa.list_(pa.timestamp("s"), 2), pa.map_(pa.string(), pa.int64())),
    *(pa.struct([("a", pa.int64()), ("b", pa.string())]), pa.struct([("at", pa.timestamp("ms", "UTC"))])),
]
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
    st.sampled_from([-0.0, Decimal("-0"), Level.LOW, Colour.RED, np.int64(3), np.float32(0.1), 2**53 + 1, "\ud83d"]),
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


def same(value: Any, back: Any) -> bool:
    """Return whether a column of a declared type has kept a value: numbers stay equal, and tuples are lists."""
    if isinstance(value, np.generic):
        return same(value.item(), back)
    if isinstance(value, enum.Enum | OrderedDict | bytearray):
        return False
    match value:
        case bool() | None | str() | bytes():
            return type(value) is type(back) and value == back
        case int() | float() | Decimal():
            if isinstance(back, bool) or not isinstance(back, int | float | Decimal):
                return False
            if value != value or back != back:
                return value != value and back != back
            return value == back and math.copysign(1, value) == math.copysign(1, back)
        case dt.datetime():
            if type(back) is not dt.datetime or (value.tzinfo is None) != (back.tzinfo is None):
                return False
            return not value - back and (value.tzinfo is not None or value.fold == back.fold)
        case list() | tuple():
            return isinstance(back, list) and len(value) == len(back) and all(map(same, value, back))
        case dict():
            # A field that a row does not have is null.
            return isinstance(back, dict) and all(same(value.get(name), back.get(name)) for name in value | back)
        case _:
            return type(value) is type(back) and bool(value == back)


@given(st.sampled_from(TYPES), VALUES, st.sampled_from([EXACT, TABLES]))
@example(pa.int64(), 19.99, TABLES)
@example(pa.int64(), True, TABLES)
@example(pa.float64(), True, TABLES)
@example(pa.int64(), -0.0, TABLES)
@example(pa.date32(), dt.datetime(2026, 1, 2, 3), TABLES)
@example(pa.timestamp("us"), dt.datetime(2026, 1, 2, tzinfo=dt.UTC), TABLES)
@example(pa.timestamp("us", "UTC"), dt.datetime(2026, 1, 2), TABLES)
@example(pa.timestamp("us"), dt.date(2026, 1, 2), TABLES)
@example(pa.list_(pa.string()), "text", TABLES)
@example(pa.string(), b"bytes", TABLES)
@example(pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1, "b": "x", "c": 2}, TABLES)
@example(pa.duration("ms"), dt.timedelta(microseconds=1), EXACT)
def test_a_column_of_any_type(type_: pa.DataType, value: Any, rules: Any) -> None:
    """State with a type, tables, Parquet with a schema: what differs are the rules."""
    try:
        array = array_of([None, value], type_, rules, "c")
    except Misfit as misfit:
        assert (misfit.row, misfit.column[:1]) == (1, "c")
        assert misfit.reason
    else:
        assert same(value, values_of(array)[1])


@given(st.lists(VALUES, min_size=1, max_size=3))
@example([dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3)])
@example([Decimal("1.10"), Decimal("1.5")])
@example([1, True])
def test_columns_that_are_inferred(values: list[Any]) -> None:
    rows = [{"c": value} for value in values]
    try:
        back = values_of(rows_to_batch(rows, infer_schema(rows, partial=True)).column(0))
    except Misfit as misfit:
        assert 0 <= misfit.row < len(rows)
        assert misfit.column.startswith("c")
    else:
        assert all(map(same, values, back))


@given(VALUES)
@example({})
@example([{"a": {}}])
def test_parquet_files_without_a_schema(value: Any) -> None:
    try:
        content = encode([{"c": value}], "parquet")
    except UnwritableValue as error:
        assert error.index == 0
        assert (error.column or "c").startswith("c")
    else:
        assert same(value, values_of(parquet.read_table(io.BytesIO(content)).column("c"))[0])


@given(VALUES)
def test_json_files(value: Any) -> None:
    try:
        back = json.loads(encode([{"c": value}], "json"))["c"]
    except UnwritableValue as error:
        assert (error.index, str(error.column)[:1]) == (0, "c")
    else:
        assert written(value) == back


def written(value: Any) -> Any:
    """Return the form that the page promises for JSON: lists for tuples, and ISO 8601 for dates and times."""
    match value:
        case enum.Enum() | OrderedDict() | bytearray() | bytes() | Decimal():
            pytest.fail("it was to be refused")
        case np.generic():
            return value.item()
        case dt.date() | dt.time():
            return value.isoformat()
        case list() | tuple():
            return [*map(written, value)]
        case dict():
            return {name: written(item) for name, item in value.items()}
        case _:
            return value


@given(VALUES)
@example(bytearray(b"a"))
@example(np.float32(0.1))
def test_values_without_a_type(value: Any) -> None:
    """Untyped state on both backends, elements in flight, outputs and dead letters are msgpack."""
    try:
        packed = pack([value], "a test")
    except UnstorableValue as error:
        assert error.where == "a test"
    else:
        (back,) = unpack(packed)
        assert (type(back), repr(back)) == (type(value), repr(value))


def test_a_map_of_spark_is_an_object_in_jsonb() -> None:
    numbers = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))
    (row, empty) = dicts_of(pa.record_batch([numbers], ["m"]))

    assert json.loads(fit_of("jsonb")(row["m"]).dumps(None)) == {"a": 1}
    assert empty == {"m": None}
