"""A bad row of a pipeline is its own fault, by `on_error`: all other rows come out, with their calls made once."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction, LetterWithoutValue, letter_value
from async_op.spark import AsyncPipeline
from keygroups import MapState
from tests.doors import bad
from tests.quick import first_is_quick

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(bad)
pytestmark = pytest.mark.spark

NOTES = MapState("notes")
BAD = {
    1: "a time in the year 10000",
    2: "text that is no UTF-8",
    3: "half an emoji in an output",
    4: "a key of 2^63 in a map of an output",
    5: "a key of 2^63 in a map of the state",
    6: "an error whose str() raises",
    7: "half an emoji in an error's text",
    8: "NaN in the row of a failed call",
    9: "infinity in the row of a failed call",
}
GOOD = [0, *range(10, 14)]
ROWS = """id,
    if(id = 1, timestamp'+10000-01-01 00:00:00', timestamp'2026-01-02 03:04:05') as at,
    if(id = 2, cast(X'ff' as string), 'text') as text,
    case id when 8 then double('NaN') when 9 then double('Infinity') else 1.5D end as number,
    map('a', id) as counts"""


class Serve(AsyncFunction):
    states = (NOTES,)

    def __init__(self, calls: Path) -> None:
        self.calls = calls

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        number = value["id"]
        with self.calls.open("a") as file:
            file.write(f"{number}\n")
        assert value["counts"] == {"a": number}, "a map is a dict"
        if number == 5:
            ctx.state(NOTES).put(2**63, "note")
        if number == 6:
            raise bad.Mean
        if number in (7, 8, 9):
            raise ValueError("half an emoji: \ud83d")
        text = "\ud83d" if number == 3 else value["text"]
        return [(number, text, {2**63 if number == 4 else number: 1})]


def run(spark: SparkSession, folder: Path, numbers: list[int], **options: Any) -> list[Any]:
    """Run a pipeline over rows, and return what its sink got."""
    found: list[Any] = []

    def sink(frame: DataFrame, _epoch: int) -> None:
        found.extend(frame.collect())

    pipeline = AsyncPipeline(
        Serve(folder / "calls"),
        key_by="id",
        output_schema="id bigint, text string, counts map<bigint,int>",
        snapshots=folder / "snapshots",
        operator_id="bad",
        parallelism=1,
        resident=False,
        **options,
    )
    frame = spark.range(14).where(f"id in ({', '.join(map(str, numbers))})").selectExpr(*_columns())
    pipeline.run(frame, sink, run_id="rows")
    return found


def _columns() -> list[str]:
    return [column.strip() for column in ROWS.split(",\n")]


def calls_in(folder: Path) -> list[int]:
    return sorted(map(int, (folder / "calls").read_text().split()))


def test_with_skip_all_good_rows_come_out(spark: SparkSession, tmp_path: Path) -> None:
    rows = run(spark, tmp_path, [*GOOD, *BAD], on_error="skip")
    assert sorted(row.id for row in rows) == GOOD
    assert calls_in(tmp_path) == sorted({*GOOD, *BAD} - {1, 2}), "what cannot be read is not called for"


def test_with_dead_letter_each_bad_row_is_one_beside_the_good_rows(spark: SparkSession, tmp_path: Path) -> None:
    rows = run(spark, tmp_path, [*GOOD, *BAD], on_error="dead_letter", dead_letters="column")
    assert sorted(row.id for row in rows if row.dead_letter is None) == GOOD
    letters = [row.dead_letter.asDict() for row in rows if row.dead_letter is not None]
    assert len({letter["idempotency_key"] for letter in letters}) == len(letters) == len(BAD)
    values: dict[int, Any] = {}
    unread = 0
    for letter in letters:
        try:
            value = letter_value(letter)
        except LetterWithoutValue:
            unread += 1
            assert letter["error_type"] == "ValueRefused"
        else:
            values[value["id"]] = value
    assert (unread, sorted(values)) == (2, [3, 4, 5, 6, 7, 8, 9])
    assert math.isnan(values[8]["number"])
    assert values[9]["number"] == math.inf


@pytest.mark.parametrize("number", first_is_quick(BAD), ids=lambda number: BAD[number].replace(" ", "-"))
def test_with_fail_the_error_names_the_row_and_a_change_of_policy_continues(
    spark: SparkSession, tmp_path: Path, number: int
) -> None:
    with pytest.raises(Exception, match=r"\(id [^)]+\)") as failed:
        run(spark, tmp_path, [0, number])
    str(failed.value).encode()
    assert [row.id for row in run(spark, tmp_path, [0, number], on_error="skip")] == [0]
