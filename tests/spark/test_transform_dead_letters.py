"""Rows that failed for good: dropped, or a column of their own."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import json
import sys
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from async_op import AsyncBatchFunction, AsyncDataStream, AsyncFunction, FixedDelayRetry, letter_value
from async_op.spark import split_dead_letters
from keygroups import ConfigError
from tests.quick import first_is_quick

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = "id bigint not null, twice bigint"
AS_COLUMN: dict[str, Any] = {"output_schema": SCHEMA, "on_error": "dead_letter", "dead_letters": "column"}


class Double(AsyncFunction):
    """Every seventh row fails for good, after all later ones; every fifth hangs."""

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        number = value["id"]
        if number % 7 == 3:
            await asyncio.sleep(0.02)
            raise ValueError(f"no answer for {number}")
        if number % 5 == 4:
            await asyncio.get_running_loop().create_future()
        return [{"id": number, "twice": 2 * number} if number % 2 else (number, 2 * number)]


class DoubleAll(AsyncBatchFunction):
    """Every second batch fails."""

    arrow = True
    max_batch_size = 10

    async def async_invoke_batch(self, batch: Any, ctx: Any) -> Any:
        if batch.column("id")[0].as_py() % 20:
            raise ValueError("no answer for this batch")
        return batch.append_column("twice", batch.column("id"))


class Fail(AsyncFunction):
    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        raise KeyError("nobody")


def _lost(number: int) -> bool:
    return number % 7 == 3 or number % 5 == 4


def _apply(spark: SparkSession, mode: str = "ordered", **options: Any) -> DataFrame:
    settings = AS_COLUMN | {"timeout": 5.0, "retry": FixedDelayRetry(2, 0.001, retry_on=ValueError), "capacity": 200}
    frame = spark.range(0, 100, 1, 1)
    return getattr(AsyncDataStream, f"{mode}_wait")(frame, Double(), **(settings | options))


@pytest.mark.parametrize("mode", first_is_quick(["ordered", "unordered", "key_ordered"]))
def test_every_row_is_an_output_or_a_dead_letter(spark: SparkSession, mode: str) -> None:
    rows = _apply(spark, mode, key_by="id" if mode == "key_ordered" else None).collect()
    letters = [row.dead_letter for row in rows if row.dead_letter is not None]
    assert sorted(row.id for row in rows if row.dead_letter is None) == [n for n in range(100) if not _lost(n)]
    assert sorted(json.loads(letter.value)["id"] for letter in letters) == [n for n in range(100) if _lost(n)]
    assert all(row.id is None and row.twice is None for row in rows if row.dead_letter is not None)
    assert len({letter.idempotency_key for letter in letters}) == len(letters)
    for letter in letters:
        number = json.loads(letter.value)["id"]
        failed = number % 7 == 3
        assert letter.error_type == ("ValueError" if failed else "AsyncTimeoutError")
        assert (f"no answer for {number}" if failed else "no result within 5 s") in letter.error_message
        assert letter.attempts == (2 if failed else 1)
        assert letter.timestamp is None
        assert letter.key == (str(number) if mode == "key_ordered" else None)


@pytest.mark.thorough
def test_a_dead_letter_has_its_place_in_the_order(spark: SparkSession) -> None:
    rows = _apply(spark).collect()
    order = [row.id if row.dead_letter is None else json.loads(row.dead_letter.value)["id"] for row in rows]
    assert order == list(range(100))


def test_the_rows_of_a_failed_batch_are_dead_letters(spark: SparkSession) -> None:
    frame = spark.range(0, 45, 1, 1)
    rows = AsyncDataStream.ordered_wait(frame, DoubleAll(), **AS_COLUMN).collect()
    order = [row.id if row.dead_letter is None else json.loads(row.dead_letter.value)["id"] for row in rows]
    assert order == list(range(45))
    assert [row.dead_letter is not None for row in rows] == [n // 10 % 2 == 1 for n in range(45)]


@pytest.mark.thorough
def test_outputs_and_dead_letters_are_split(spark: SparkSession) -> None:
    outputs, letters = split_dead_letters(_apply(spark).persist())
    assert outputs.schema.simpleString() == "struct<id:bigint,twice:bigint>"
    assert outputs.count() == sum(not _lost(n) for n in range(100))
    names = [
        "value",
        "value_encoding",
        "timestamp",
        "key",
        "idempotency_key",
        "attempts",
        "error_type",
        "error_message",
        "error_traceback",
    ]
    assert letters.columns == names
    found = letters.select(F.from_json("value", "id bigint").id.alias("id")).collect()
    assert [row.id for row in found] == [n for n in range(100) if _lost(n)]


@pytest.mark.thorough
def test_skipped_rows_are_gone(spark: SparkSession) -> None:
    outputs = _apply(spark, on_error="skip", dead_letters=None)
    assert outputs.columns == ["id", "twice"]
    assert not outputs.schema["id"].nullable
    assert [row.id for row in outputs.collect()] == [n for n in range(100) if not _lost(n)]


def test_every_type_of_value_is_kept_as_json(spark: SparkSession) -> None:
    columns = (
        "text string, data binary, day date, at timestamp_ntz, price decimal(8, 2), tags map<string, int>, n double"
    )
    at = datetime.datetime(2024, 2, 29, 12, 30)
    row = ("æ", b"\x00\xff", at.date(), at, decimal.Decimal("1.50"), {"a": 1}, 0.5)
    frame = spark.createDataFrame([row], columns)
    found = AsyncDataStream.ordered_wait(frame, Fail(), key_by=["text", "n"], **AS_COLUMN).collect()[0].dead_letter
    assert json.loads(found.value) == {
        "text": "æ",
        "data": {"$base64": "AP8="},
        "day": {"$date": "2024-02-29"},
        "at": {"$datetime": "2024-02-29T12:30:00"},
        "price": {"$decimal": "1.50"},
        "tags": {"a": 1},
        "n": 0.5,
    }
    assert letter_value(found)["price"] == decimal.Decimal("1.50")
    assert json.loads(found.key) == ["æ", 0.5]
    assert (found.error_type, found.error_message) == ("KeyError", "'nobody'")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dead_letters": None}, "dead_letters=None"),
        ({"dead_letters": "file"}, "dead_letters='file'"),
        ({"on_error": "fail"}, "dead_letters='column'"),
        ({"on_error": "ignore", "dead_letters": None}, "on_error='ignore'"),
        ({"output_schema": "id bigint, dead_letter string"}, "output_schema="),
    ],
)
def test_what_can_never_work_is_refused_at_once(spark: SparkSession, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _apply(spark, **options)


class Half(AsyncFunction):
    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        raise ValueError("half an emoji \ud83d")


def test_an_error_whose_text_is_no_utf_8_reaches_the_driver_and_the_dead_letter(spark: SparkSession) -> None:
    frame = spark.range(0, 1, 1, 1)
    (row,) = AsyncDataStream.ordered_wait(frame, Half(), **AS_COLUMN).collect()
    assert row.dead_letter.error_message == "half an emoji \\ud83d"
    with pytest.raises(Exception, match=r"half an emoji \\ud83d"):
        AsyncDataStream.ordered_wait(frame, Half(), output_schema=SCHEMA).collect()
