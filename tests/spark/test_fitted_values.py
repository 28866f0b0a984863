"""Values that Arrow would change are refused; naive timestamps are those of the session's time zone."""

from __future__ import annotations

import datetime as dt
import enum
import math
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    LongType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from async_op.spark import OutputMismatch
from async_op.spark.rows.arrow_outputs import OutputWriter
from snapshots.spark import types as spark_types
from snapshots.spark.types import arrow_schema_of

NEW_YORK = ZoneInfo("America/New_York")
NAIVE = dt.datetime(2024, 1, 1, 12)
AWARE = NAIVE.replace(tzinfo=dt.UTC)
LOCAL = NAIVE.replace(tzinfo=NEW_YORK)
ZONED = pa.timestamp("us", "America/New_York")
PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])
NUMBERS = pa.map_(pa.string(), pa.int32())
FRACTION = "fraction would be cut off"
NO_DATE = "no date, time or interval"
A_BOOL = "a bool is not taken for a number"


class Level(enum.IntEnum):
    LOW = 1


class Colour(enum.StrEnum):
    RED = "red"


def stored(type_: pa.DataType, value: Any) -> Any:
    """Return what a value becomes in its column, which is the same among others and after a check."""
    writer = OutputWriter(pa.schema([("value", type_)]))
    writer.check((value,))
    (batch,) = writer.batches_of([(None,), (value,), {"value": value}])
    column = batch.column(0)
    assert column[1] == column[2]
    return column[1].as_py()


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        (pa.int64(), 1.5, FRACTION),
        (pa.int32(), Decimal("1.5"), FRACTION),
        (pa.int64(), Fraction(3, 2), FRACTION),
        (pa.int64(), np.float32(1.5), FRACTION),
        (pa.int64(), math.inf, "infinity"),
        (pa.int64(), -0.0, "sign of its zero"),
        (pa.int64(), Level.LOW, "Level, a subclass of int, not int64"),
        (pa.float64(), 2**53 + 1, "rounded"),
        (pa.float64(), Decimal("0.1"), "rounded"),
        (pa.decimal128(10, 2), True, A_BOOL),
        (pa.decimal128(10, 2), Decimal("-0"), "sign of its zero"),
        (pa.decimal128(10, 2), Decimal("1.234"), "more than 2 digits after the point"),
        (pa.string(), b"text", "it is a bytes, not string"),
        (pa.string(), Colour.RED, "Colour, a subclass of str, not string"),
        (pa.string(), "\ud83d", "half of a surrogate pair"),
        (pa.binary(), "bytes", "it is a str, not binary"),
        (pa.list_(pa.string()), "text", "it is a str, not a list"),
        (pa.list_(pa.int32()), b"bytes", "it is a bytes, not a list"),
        (pa.date32(), NAIVE, "its time would be cut off"),
        (pa.date32(), pd.Timestamp(NAIVE), "its time would be cut off"),
        (ZONED, NAIVE.date(), "it is a date"),
        (pa.timestamp("us"), NAIVE.replace(fold=1), "fold"),
        (pa.int64(), np.bool_(True), A_BOOL),
        (pa.float64(), True, A_BOOL),
        (pa.float32(), False, A_BOOL),
        (pa.float32(), 1e300, "infinite"),
        (pa.float32(), -(2.0**128 - 2.0**103), "infinite"),
        (pa.float32(), np.float64(1e39), "infinite"),
        (pa.date32(), 5, NO_DATE),
        (pa.date32(), np.int64(5), NO_DATE),
        (pa.date32(), pd.NaT, "missing value; use None"),
        (ZONED, 1_700_000_000.0, NO_DATE),
        (ZONED, 5, NO_DATE),
        (ZONED, Decimal(5), NO_DATE),
        (ZONED, True, NO_DATE),
        (pa.timestamp("us"), 1.7, NO_DATE),
        (pa.duration("us"), 5, NO_DATE),
        (pa.timestamp("us"), AWARE, "remove the time zone, or declare the column as timestamp"),
        (pa.timestamp("us"), pd.Timestamp(AWARE), "remove the time zone"),
        (PAIR, {"A": 1}, "no field 'A'; the fields are a, b"),
        (PAIR, {"a": 1, "b": "x", "c": 2}, "no field 'c'"),
        (PAIR, {"a": 1.5}, FRACTION),
        (PAIR, (1.5, "x"), FRACTION),
        (PAIR, [("a", 1.5), ("b", "x")], FRACTION),
        (pa.list_(pa.int32()), [1, None, 1.5], FRACTION),
        (pa.list_(pa.int32()), {1.5}, FRACTION),
        (pa.list_(pa.int32()), np.array([1.5]), FRACTION),
        (pa.list_(pa.int32()), pd.Series([1.5]), FRACTION),
        (pa.list_(pa.float32()), [0.5, 1e300], "infinite"),
        (pa.list_(pa.float32()), np.array([1e300]), "infinite"),
        (pa.list_(pa.list_(pa.int8())), [[1], [1.5]], FRACTION),
        (pa.list_(PAIR), [{"A": 1}], "no field"),
        (pa.list_(pa.int32()), {1: 2}, "it is a dict, not a list"),
        (pa.list_(ZONED), {NAIVE: 1}, "it is a dict, not a list"),
        (NUMBERS, {"a": 1.5}, FRACTION),
        (NUMBERS, [("a", 1.5)], FRACTION),
        (NUMBERS, [{"key": "a", "value": 1.5}], FRACTION),
        (pa.map_(pa.int32(), pa.string()), {1.5: "a"}, FRACTION),
        (pa.map_(pa.string(), PAIR), {"a": {"c": 1}}, "no field 'c'"),
    ],
)
def test_a_value_that_arrow_would_change_is_refused(type_: pa.DataType, value: Any, reason: str) -> None:
    writer = OutputWriter(pa.schema([("value", type_)]))
    for run in (lambda: writer.check((value,)), lambda: writer.batches_of([(None,), (value,)])):
        with pytest.raises(OutputMismatch, match=reason) as raised:
            run()
        assert raised.value.column == "value"


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        (pa.int64(), 2.0, 2),
        (pa.int64(), Decimal("2.0"), 2),
        (pa.int8(), np.int64(3), 3),
        (pa.float64(), np.float32(1.5), 1.5),
        (pa.float64(), 3, 3.0),
        (pa.float32(), math.inf, math.inf),
        (pa.float32(), 2.0**128 - 2.0**104, 2.0**128 - 2.0**104),
        (pa.float32(), np.float16(0.5), 0.5),
        (pa.bool_(), np.bool_(True), True),
        (pa.duration("us"), np.timedelta64(5, "us"), dt.timedelta(microseconds=5)),
        (pa.timestamp("us"), pd.Timestamp(NAIVE), NAIVE),
        (ZONED, pd.Timestamp(AWARE), AWARE),
        (PAIR, {"b": "x"}, {"a": None, "b": "x"}),
        (PAIR, (1, "x"), {"a": 1, "b": "x"}),
        (PAIR, [("a", 1), ("b", "x")], {"a": 1, "b": "x"}),
        (pa.list_(pa.int32()), np.array([1.0, 2.0]), [1, 2]),
        (pa.list_(pa.float32()), np.array([0.5], np.float32), [0.5]),
        (pa.list_(pa.float32()), [0.5, None, 1], [0.5, None, 1.0]),
        (pa.list_(pa.int32()), range(2), [0, 1]),
        (pa.list_(PAIR), [{"a": 1}, None], [{"a": 1, "b": None}, None]),
        (NUMBERS, {"a": 1}, [("a", 1)]),
        (NUMBERS, [{"key": "a", "value": 1}], [("a", 1)]),
        (pa.map_(pa.string(), pa.string()), {"a": "b"}, [("a", "b")]),
    ],
)
def test_a_value_that_means_the_same_in_its_column_still_fits(type_: pa.DataType, value: Any, expected: Any) -> None:
    assert stored(type_, value) == expected


@pytest.mark.parametrize("naive", [NAIVE, pd.Timestamp(NAIVE)])
def test_a_naive_timestamp_is_one_of_the_session_s_time_zone(naive: dt.datetime) -> None:
    assert stored(ZONED, naive) == LOCAL
    assert stored(pa.list_(ZONED), (naive, AWARE)) == [LOCAL, AWARE]
    assert stored(pa.map_(pa.string(), ZONED), {"at": naive}) == [("at", LOCAL)]
    assert stored(pa.struct([("at", ZONED)]), {"at": naive}) == {"at": LOCAL}


@pytest.mark.parametrize(
    ("zone", "hours"), [("UTC", 0), ("Z", 0), ("+05:00", 5), ("-0530", -5.5), ("GMT+5", 5), ("UTC-03:00", -3)]
)
def test_a_naive_timestamp_is_localised_by_every_offset_that_spark_takes(zone: str, hours: float) -> None:
    (batch,) = OutputWriter(pa.schema([("at", pa.timestamp("us", zone))])).batches_of([(NAIVE,)])
    since_1970 = AWARE - dt.timedelta(hours=hours) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert batch.column(0).cast(pa.int64())[0].as_py() == since_1970 // dt.timedelta(microseconds=1)


def test_a_naive_timestamp_is_refused_where_only_java_knows_the_time_zone() -> None:
    writer = OutputWriter(pa.schema([("at", pa.timestamp("us", "PST"))]))
    writer.check((AWARE,))
    with pytest.raises(OutputMismatch, match="time zone 'PST' is not known here; return timestamps with a time zone"):
        writer.check((NAIVE,))


def test_the_time_zone_is_that_of_the_session_where_pyspark_shows_timestamps_in_utc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment, local = TimestampType(), TimestampNTZType()
    inner = StructType().add("at", moment, nullable=False).add("local", local)
    schema = StructType().add("at", moment).add("all", ArrayType(moment, containsNull=False)).add("n", LongType())
    schema = (
        schema.add("by", MapType(moment, ArrayType(inner))).add("one", inner, nullable=False).add("v", VariantType())
    )
    as_told = arrow_schema_of(schema, "Europe/Paris")
    monkeypatch.setattr(spark_types, "_TAKES_TIMEZONE", False)
    monkeypatch.setattr(spark_types, "to_arrow_schema", partial(to_arrow_schema, timezone="UTC"))
    assert arrow_schema_of(schema, "Europe/Paris").equals(as_told, check_metadata=True)
    assert "Europe/Paris" in str(as_told.field("by").type)
