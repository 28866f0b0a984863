"""Constraints of Delta tables: the rows that violate one are found, and the others are written."""

from __future__ import annotations

import random
from operator import itemgetter
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from async_op.connectors import SinkRefused, UnwritableValue
from tests.async_op.connectors.tables.targets import Delta
from tests.async_op.connectors.tables.test_gone import letter_value
from tests.async_op.job.kit import Epochs, new_job, same


def constrained(folder: Path, **rules: str) -> Delta:
    """Return a target whose table has the columns `n` and `name`, and these constraints."""
    target = Delta(folder)
    schema = deltalake.Schema.from_arrow(pa.schema([("n", pa.int64()), ("name", pa.string())]))
    table = deltalake.DeltaTable.create(target.arguments[0], schema)
    for name, rule in rules.items():
        table.alter.add_constraint({name: rule})
    return target


async def as_row(value: int) -> dict[str, Any]:
    return {"n": value, "name": f"number {value}"}


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
async def test_rows_that_violate_a_constraint_are_left_out_or_become_dead_letters(
    tmp_path: Path, on_error: Any
) -> None:
    target, letters = constrained(tmp_path, positive="n > 0", small="n < 100"), Epochs()
    target.keywords = {"on_error": on_error}
    job = new_job([1, -1, 2, 1000, 3], as_row, target.sink(), dead_letters=letters)
    await job.run()

    assert (target.numbers(), job.progress().refused) == ([1, 2, 3], 2)
    numbers = [letter_value(letter)["n"] for letter in letters.values]
    assert sorted(numbers) == ([-1, 1000] if on_error == "dead_letter" else [])


async def test_each_of_many_such_rows_is_found_and_nothing_is_written(tmp_path: Path) -> None:
    target = constrained(tmp_path, positive="n > 0")
    bad = sorted(random.Random(7).sample(range(9000), 5))
    rows = [{"n": -77_777 if number in bad else 1, "name": "secret"} for number in range(9000)]
    sink = target.sink()

    assert [(one.index, one.column) for one in await sink.refused(rows)] == [(number, None) for number in bad]
    with pytest.raises(UnwritableValue, match=rf"output {bad[0]}.*positive: n > 0") as raised:
        await sink.write(rows, 1)
    assert raised.value.index == bad[0]
    await sink.close()
    assert target.rows() == []


async def test_a_row_for_which_a_constraint_cannot_be_evaluated_is_the_one_that_violates_it(tmp_path: Path) -> None:
    target = constrained(tmp_path, digits="cast(name as int) > 0")
    sink = target.sink()
    rows = [{"n": 1, "name": "1"}, {"n": 2, "name": "abc"}]

    with pytest.raises(UnwritableValue, match=r"output 1.*digits"):
        await sink.write(rows, 1)
    await sink.write(rows[:1], 1)
    await sink.close()
    assert target.numbers() == [1]


def generating(folder: Path) -> Delta:
    """Return a target whose table computes `name` from `n`, and is partitioned by it."""
    target = Delta(folder)
    rule = {"delta.generationExpression": "cast(n * 2 as string)"}
    fields = [
        deltalake.Field("n", PrimitiveType("long")),
        deltalake.Field("name", PrimitiveType("string"), metadata=rule),
    ]
    deltalake.DeltaTable.create(target.arguments[0], deltalake.Schema(fields), partition_by=["name"])
    return target


async def test_a_generated_column_is_computed_by_the_table_if_no_row_has_it(tmp_path: Path) -> None:
    target = generating(tmp_path)
    sink = target.sink()
    await sink.write([{"n": 1}, {"n": 2}], 1)
    await sink.write([{"n": 3, "name": "6"}], 2)
    await sink.close()
    assert sorted(target.rows(), key=itemgetter("n")) == [
        {"n": 1, "name": "2"},
        {"n": 2, "name": "4"},
        {"n": 3, "name": "6"},
    ]


async def test_a_row_with_another_value_than_the_generated_one_is_refused_alone(tmp_path: Path) -> None:
    target = generating(tmp_path)
    target.keywords = {"on_error": "skip"}
    job = new_job([{"n": 1, "name": "2"}, {"n": 2, "name": "5"}, {"n": 3}], same, target.sink())
    await job.run()
    assert (target.rows(), job.progress().refused) == ([{"n": 1, "name": "2"}], 2)


async def test_a_full_temporary_disk_is_the_fault_of_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = constrained(tmp_path, positive="n > 0")
    target.keywords = {"on_error": "skip"}
    write = deltalake.write_deltalake

    def write_to_table(table: deltalake.DeltaTable, *arguments: Any, **keywords: Any) -> None:
        if "keygroups-delta-" in table.table_uri:
            raise DeltaError("Generic LocalFileSystem error: Unable to copy data to file: No space left on device")
        write(table, *arguments, **keywords)

    monkeypatch.setattr(deltalake, "write_deltalake", write_to_table)
    job = new_job([1, -1, 2], as_row, target.sink())
    with pytest.raises(SinkRefused, match="No space left on device"):
        await job.run()
    assert job.progress().refused == 0
    monkeypatch.undo()

    await new_job([1, -1, 2], as_row, target.sink()).run()
    assert target.numbers() == [1, 2]
