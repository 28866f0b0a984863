"""The sink's DataFrame is the same whether the driver has the rows or they are read from storage."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from async_op.spark.rows.arrow_outputs import OutputWriter
from async_op.spark.rows.schemas import arrow_schema, parse_schema
from keygroups import range_of
from snapshots import Snapshot, SnapshotStore, SubtaskSnapshot
from snapshots.spark import outputs_frame
from tests.quick import first_is_quick

pytestmark = pytest.mark.spark

AT = dt.datetime(2026, 3, 29, 1, 30, 0, 123456)
VALUES: dict[str, list[Any]] = {
    "tinyint": [-128, None],
    "bigint not null": [2**63 - 1, 0],
    "float": [math.inf, -0.0],
    "double": [-0.0, None],
    "decimal(20,3)": [Decimal("-1.250"), None],
    "boolean": [True, None],
    "string": ["", "漢字 🎉"],
    "binary": [b"\0\xff", None],
    "date": [dt.date(1900, 1, 1), None],
    "timestamp": [AT.replace(tzinfo=dt.UTC), None],
    "timestamp_ntz": [AT, None],
    "interval day to second": [dt.timedelta(days=-1, microseconds=1), None],
    "array<int>": [[1, None], []],
    "map<string, bigint>": [{"a": 1}, {}],
    "struct<x: int, at: timestamp>": [{"x": None, "at": AT.replace(tzinfo=dt.UTC)}, None],
}


@pytest.fixture(params=first_is_quick(["Europe/Berlin", "UTC"]))
def timezone(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", str(before))


def _stored(folder: Path, parts: list[pa.Table]) -> Snapshot:
    pending = SnapshotStore(folder, "outputs").begin()
    handles = []
    for index, outputs in enumerate(parts):
        part = SubtaskSnapshot(
            subtask_index=index,
            parallelism=len(parts),
            max_parallelism=128,
            hash="xxhash64",
            states=(),
        )
        assert part.key_groups == range_of(index, len(parts), 128)
        handles.append(pending.write_subtask(part, outputs))
    return pending.commit(handles)


def test_all_types_are_the_same(spark: SparkSession, timezone: str, tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(len(VALUES))]
    schema = arrow_schema(spark, parse_schema(", ".join(map(" ".join, zip(names, VALUES, strict=True)))))
    rows = list(zip(*VALUES.values(), strict=True))
    parts = [pa.Table.from_batches(OutputWriter(schema).batches_of([row])) for row in rows]
    snapshot = _stored(tmp_path, parts)
    files = snapshot.manifest.files_of("output")
    known = {file.path: parts[file.subtask] for file in files}

    read = outputs_frame(spark, snapshot, schema)
    handed = outputs_frame(spark, snapshot, schema, known)
    partly = outputs_frame(spark, snapshot, schema, {files[0].path: known[files[0].path]})

    assert handed.schema == read.schema == partly.schema
    assert str(handed.collect()) == str(read.collect()) == str(partly.collect())
    rows = read.toArrow()
    assert handed.toArrow().schema.equals(rows.schema, check_metadata=True)
    assert handed.toArrow().equals(rows)
    assert (handed.count(), handed.isEmpty()) == (rows.num_rows, False)
    assert handed.where("c1 = 0").count() == 1
    assert handed.union(read).count() == read.union(handed).count() == 2 * rows.num_rows


def test_no_row_is_lost_behind_empty_batches(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    rows = pa.concat_tables([*[schema.empty_table()] * 3, pa.table({"id": [1, 2]}, schema=schema)])
    snapshot = _stored(tmp_path, [rows])
    known = {file.path: rows for file in snapshot.manifest.files_of("output")}

    assert [row.id for row in outputs_frame(spark, snapshot, schema, known).collect()] == [1, 2]


def test_large_types_are_those_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("text", pa.string())])
    rows = pa.table({"text": ["a"]}, schema=schema)
    snapshot = _stored(tmp_path, [rows])
    known = {file.path: rows for file in snapshot.manifest.files_of("output")}
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        handed = outputs_frame(spark, snapshot, schema, known).toArrow()
        assert handed.equals(outputs_frame(spark, snapshot, schema).toArrow())
        assert handed.schema.field("text").type == pa.large_string()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


def test_without_outputs_nothing_is_read(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    snapshot = _stored(tmp_path, [schema.empty_table()] * 2)
    frame = outputs_frame(spark, snapshot, schema)
    assert frame.columns == ["id"]
    assert frame.collect() == []
