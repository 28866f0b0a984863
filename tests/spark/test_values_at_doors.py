"""Spark's doors: outputs of a function as rows of a DataFrame, and a snapshot's state as a data source.

What may become of a value is said for all doors together, in `tests.doors`.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from async_op import AsyncDataStream, letter_value
from async_op.spark import OutputMismatch
from keygroups import KeyGroupsError, ValueState
from keygroups.codec import unpack
from keygroups.values import values_of
from snapshots import SnapshotStore
from snapshots.spark import register
from tests.doors import values
from tests.doors.check import check
from tests.doors.doors import COLUMN, UNTYPED, Door, Refusal, bootstrapped

cloudpickle.register_pickle_by_value(values)
pytestmark = pytest.mark.spark

DECLARED = {
    "tinyint": pa.int8(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "interval day to second": pa.duration("us"),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", "UTC"),
    "decimal(10,2)": pa.decimal128(10, 2),
    "array<bigint>": pa.list_(pa.int64()),
    "array<string>": pa.list_(pa.string()),
    "map<string,bigint>": pa.map_(pa.string(), pa.int64()),
    "struct<a:bigint,b:string>": pa.struct([("a", pa.int64()), ("b", pa.string())]),
}
"""Types of columns in Spark, and in Arrow."""


def function_of(sent: Sequence[Any]) -> Any:
    async def answer(row: dict[str, Any]) -> dict[str, Any]:
        return {"n": row["id"], COLUMN: sent[row["id"]]}

    return answer


class OutputDoor(Door):
    """Outputs of a function on Spark, which come back as Arrow data."""

    plain: Mapping[Any, list[Any]] = {name: values.PLAIN[type_] for name, type_ in DECLARED.items()}

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def through(self, type_: Any, sent: Sequence[Any]) -> list[Any]:
        frame = AsyncDataStream.unordered_wait(
            self._spark.range(0, len(sent), 1, 1),
            function_of(sent),
            output_schema=f"n bigint, {COLUMN} {type_}",
            on_error="dead_letter",
            dead_letters="column",
        )
        table = frame.toArrow()
        found: dict[int, Any] = {}
        rows = zip(*(values_of(table.column(name)) for name in table.column_names), strict=True)
        for number, value, letter in rows:
            if letter is None:
                found[number] = value
            else:
                found |= self._refused(letter)
        return [found[number] for number in range(len(sent))]

    def _refused(self, letter: dict[str, Any]) -> dict[int, Refusal]:
        number = letter_value(letter)["id"]
        assert letter["error_type"] == OutputMismatch.__name__
        column = COLUMN if f"column {COLUMN!r}" in letter["error_message"] else None
        return {number: Refusal(KeyGroupsError(letter["error_message"]), column, f"row-{number}")}

    def same(self, type_: Any, value: Any, back: Any) -> bool:
        return values.same_in(DECLARED[type_], as_spark_takes_it(value, back), back)


def as_spark_takes_it(value: Any, back: Any) -> Any:
    """Return a value as PySpark understands it: tuples are structs, too, and a naive time is in the session's zone."""
    match value:
        case bytearray():
            return bytes(value)
        case OrderedDict():
            return as_spark_takes_it(dict(value), back)
        case set() if isinstance(back, list):
            return [*value]
        case tuple() if isinstance(back, dict) and len(back) == len(value):
            return dict(zip(back, value, strict=True))
        case dt.datetime() if isinstance(back, dt.datetime) and back.tzinfo and not value.tzinfo:
            return value.replace(tzinfo=back.tzinfo)
        case _:
            return value


class SourceDoor(Door):
    """State of a snapshot, which Spark reads by the data source of this project."""

    lacks = frozenset({pa.uint64(), pa.time32("s")})

    def __init__(self, spark: SparkSession, *, is_typed: bool) -> None:
        self._spark = spark
        self._is_typed = is_typed
        if not is_typed:
            self.plain = UNTYPED

    def same(self, type_: Any, value: Any, back: Any) -> bool:
        return super().same(type_, value, back) if self._is_typed else values.same_exactly(value, back)

    def through(self, type_: Any, sent: Sequence[Any]) -> list[Any]:
        with tempfile.TemporaryDirectory() as folder:
            store = SnapshotStore(folder, "operator")
            state = ValueState(COLUMN, type_ if self._is_typed else None)
            found, snapshot = bootstrapped(state, "value", sent, store)
            if snapshot is not None:
                try:
                    table = self._spark.read.format("keygroups").load(store.uri).toArrow()
                except PySparkException as error:
                    assert "Spark does not support" in str(error), error
                    return [Refusal(KeyGroupsError(str(error)), COLUMN, None)] * len(sent)
                found |= self._values(table)
        return [found[number] for number in range(len(sent))]

    def _values(self, table: pa.Table) -> dict[int, Any]:
        read = values_of(table.column("value"))
        kept = read if self._is_typed else map(unpack, read)
        return dict(zip(map(int, table.column("key").to_pylist()), kept, strict=True))


@pytest.fixture(scope="module", params=["outputs", "data source, typed", "data source, untyped"])
def door(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Door]:
    if request.param == "outputs":
        yield OutputDoor(spark)
        return
    register(spark)
    yield SourceDoor(spark, is_typed=request.param == "data source, typed")
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@given(data=st.data())
@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_it_comes_back_equal_or_is_refused(door: Door, data: st.DataObject) -> None:
    type_ = data.draw(st.sampled_from(list(door.plain)), "type")
    check(door, type_, data.draw(st.lists(values.near(door.plain[type_]), min_size=8, max_size=30), "values"))


@pytest.mark.thorough
def test_values_of_the_column_s_own_type_are_kept_beside_those_that_arrow_would_change(door: Door) -> None:
    for type_, plain in door.plain.items():
        sent = [
            *plain,
            None,
            *(value for other, value in values.CHANGED if DECLARED.get(type_, type_) in (other, None)),
        ]
        kept = [not isinstance(back, Refusal) for back in check(door, type_, sent)[: len(plain) + 1]]
        assert kept == [type_ not in door.lacks] * (len(plain) + 1), type_


def test_values_of_other_libraries_and_of_own_classes_come_back_equal_or_are_refused(
    door: Door, pytestconfig: pytest.Config
) -> None:
    for type_ in [*door.plain][: 1 if pytestconfig.getoption("quick") else None]:
        check(door, type_, values.OTHERS)
