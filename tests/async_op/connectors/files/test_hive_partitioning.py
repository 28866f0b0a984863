"""Folders that stand for fields of the records below them, as Hive, Spark, Arrow and DuckDB write them."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyarrow import dataset

from async_op.connectors import FileSource
from keygroups import ConfigError
from tests.async_op.job.kit import Epochs, new_job, same

CITIES = [
    "Oslo",
    "São Paulo",
    "a=b",
    "50 %",
    "%41",
    "a/b:c",
    "[x]",
    "back\\slash",
    "new\nline",
    "?*#",
    " ",
    "null",
    None,
]
ROWS = [{"id": number, "year": "2024", "city": city} for number, city in enumerate(CITIES)]


def outputs_of(source: FileSource) -> tuple[list[Any], list[Any]]:
    sink, letters = Epochs(), Epochs()
    asyncio.run(new_job(source, same, sink, dead_letters=letters).run())
    return sink.values, letters.values


def by_arrow(rows: pa.Table, folder: Path) -> None:
    dataset.write_dataset(rows, folder, format="parquet", partitioning=["year", "city"], partitioning_flavor="hive")


def by_duckdb(rows: pa.Table, folder: Path) -> None:
    duckdb.sql(f"copy rows to '{folder}' (format parquet, partition_by (year, city))")


@pytest.mark.parametrize("write", [by_arrow, by_duckdb])
def test_what_others_have_written_comes_back(tmp_path: Path, write: Any) -> None:
    write(pa.Table.from_pylist(ROWS), tmp_path / "data")
    source = FileSource(tmp_path / "data" / "**" / "*.parquet", "parquet", hive_partitioning=True)
    assert sorted(outputs_of(source)[0], key=lambda row: row["id"]) == ROWS


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "day=2024-01-31" / "orders.jsonl"
    path.parent.mkdir()
    path.write_text('{"id": 1}\n{"id": 2, "day": "yesterday"}\n')
    return path


def test_a_field_of_the_record_has_precedence(file: Path) -> None:
    assert outputs_of(FileSource(file, "json", hive_partitioning=True))[0] == [
        {"day": "2024-01-31", "id": 1},
        {"day": "yesterday", "id": 2},
    ]


def test_a_record_that_can_have_no_field_is_undecodable(file: Path) -> None:
    file.write_text('{"id": 1}\n[2]\n{"id": 3}\n')
    outputs, [letter] = outputs_of(FileSource(file, "json", hive_partitioning=True, on_error="dead_letter"))
    assert [one["id"] for one in outputs] == [1, 3]
    assert (json.loads(letter["value"]), "position 10" in letter["error_message"]) == ([2], True)
    assert "fields of its folders: day" in letter["error_message"]


def test_a_field_of_a_folder_may_be_the_timestamp(tmp_path: Path) -> None:
    path = tmp_path / "at=1000" / "orders.csv"
    path.parent.mkdir()
    path.write_text("id\n1\n")
    source = FileSource(path, "csv", hive_partitioning=True, timestamp="at")
    assert outputs_of(source)[0] == [{"at": "1000", "id": "1"}]


@pytest.mark.parametrize(("given", "told"), [(None, 1), (False, 0)])
def test_fields_that_are_left_out_are_told_once_unless_that_is_wanted(
    file: Path, given: bool | None, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    other = file.parents[1] / "day=2024-02-01" / "orders.jsonl"
    other.parent.mkdir()
    other.write_text('{"id": 3}\n')
    with caplog.at_level(logging.WARNING, "async_op.connectors"):
        outputs, _ = outputs_of(FileSource(file.parents[1] / "*" / "*.jsonl", "json", hive_partitioning=given))
    assert {"id": 1} in outputs
    assert sum("hive_partitioning=True" in record.getMessage() for record in caplog.records) == told


def test_lines_have_no_fields(file: Path) -> None:
    with pytest.raises(ConfigError, match="hive_partitioning=True: lines have no fields"):
        FileSource(file, "lines", hive_partitioning=True)
    assert outputs_of(FileSource(file, "lines"))[0][0] == '{"id": 1}'
