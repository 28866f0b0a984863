"""Keys of rows: which columns can be one, and what becomes of rows that have none."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from async_op import AsyncDataStream, AsyncFunction
from async_op.elements import looked_up
from async_op.spark import AsyncPipeline, UnpicklableFunction
from async_op.spark.rows.keys import KeyColumn, key_columns, key_getter
from async_op.spark.task.epoch_rows import EpochElements
from keygroups import ConfigError, NullKey, UnsupportedKey, ValueState
from tests.quick import first_is_quick
from tests.spark.runs import PipelineRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = ValueState("count", pa.int64(), default=0)
SCHEMA = "id bigint, user string, price decimal(20,2), pair struct<item string, size int>"
ROWS = 24


class Count(AsyncFunction):
    """Numbers the rows of each key."""

    states = (COUNT,)

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(value["id"], str(ctx.key), count.value())]


class Echo(AsyncFunction):
    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        return [(value["id"], str(ctx.key), 0)]


OUTPUT: dict[str, Any] = {"output_schema": "id bigint, key string, count bigint"}


class Run(PipelineRun):
    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark, folder, Count(), SCHEMA, operator_id="count", **OUTPUT)

    def add_rows(self, *columns: str) -> None:
        self.write_file(self.spark.range(ROWS).selectExpr("id", *columns))

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted((row for rows in self.delivered.values() for row in rows), key=lambda row: str(row[0]))


USER = "if(id % 3 = 0, null, concat('u', id % 3)) as user"
PRICE = "cast(if(id % 2 = 0, 1.5, 123456789012345678.25) as decimal(20,2)) as price"
PAIR = "named_struct('item', concat('i', id % 2), 'size', cast(if(id % 4 = 3, null, id % 4) as int)) as pair"


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    run = Run(spark, tmp_path)
    run.add_rows(USER, PRICE, PAIR)
    yield run
    run.stop()


@pytest.mark.spark
def test_rows_without_a_key_are_skipped_and_counted(run: Run) -> None:
    pipeline = run.run(key_by=["user", "price"], on_error="skip")
    assert sorted(row[0] for row in run.rows()) == [n for n in range(ROWS) if n % 3]
    assert sum(epoch.skipped for epoch in pipeline.progress()) == ROWS / 3


@pytest.mark.spark
def test_rows_without_a_key_become_dead_letters(run: Run) -> None:
    run.run(key_by="user", on_error="dead_letter", dead_letters="column")
    letters = [row[-1] for row in run.rows() if row[-1] is not None]
    assert len(letters) == ROWS / 3
    assert {(one.error_type, one.attempts, one.key) for one in letters} == {("NullKey", 0, None)}
    assert {'"id": 6' in one.value for one in letters} == {True, False}


@pytest.mark.spark
@pytest.mark.parametrize("key_by", first_is_quick(["pair", "user", ["price", "user"]]))
def test_without_another_policy_a_row_without_a_key_is_named(run: Run, key_by: Any) -> None:
    with pytest.raises(NullKey, match=r"null key in element {'id': \d+"):
        run.run(key_by=key_by)
    assert run.store.versions() == []


@pytest.mark.spark
def test_state_of_decimals_and_structs_is_counted_over_a_rescale(run: Run) -> None:
    key_by, options = ["price", "pair"], {"on_error": "skip"}
    run.run(key_by=key_by, **options)
    run.add_rows(USER, PRICE, PAIR)
    run.run(key_by=key_by, parallelism=3, **options)
    found: dict[str, list[int]] = {}
    for _, key, count in run.rows():
        found.setdefault(key, []).append(count)
    big = Decimal("123456789012345678.25")
    keys = [(Decimal("1.50"), "i0", 0), (big, "i1", 1), (Decimal("1.50"), "i0", 2)]
    assert {key: sorted(counts) for key, counts in found.items()} == {
        str(key): list(range(1, 2 * ROWS // 4 + 1)) for key in keys
    }


class Dotted(AsyncFunction):
    """Numbers the rows of each key, all in columns that Spark would look for in a struct."""

    states = (COUNT,)

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(value["user.name"], count.value())]


@pytest.mark.spark
@pytest.mark.parametrize("resident", first_is_quick([True, False]))
def test_columns_may_have_dots_in_their_names(spark: SparkSession, tmp_path: Path, resident: bool) -> None:
    run = PipelineRun(
        spark,
        tmp_path,
        Dotted(),
        "id bigint, `user.name` string",
        operator_id="dots",
        output_schema="`user.name` string, `in.all` bigint",
    )
    for _ in range(2):
        run.write_file(spark.range(6).selectExpr("id", "concat('u', id % 3) as `user.name`"))
        run.run(key_by="user.name", resident=resident)
    rows = sorted(tuple(row) for rows in run.delivered.values() for row in rows)
    assert rows == [(f"u{user}", count) for user in range(3) for count in range(1, 5)]


@pytest.mark.spark
def test_the_transform_skips_rows_without_a_key_and_refuses_what_has_no_hash(spark: SparkSession) -> None:
    rows = spark.range(ROWS).selectExpr("id", USER, "map(id, id) as m")
    kept = AsyncDataStream.key_ordered_wait(rows, Echo(), key_by="user", on_error="skip", **OUTPUT)
    assert sorted(row.id for row in kept.collect()) == [n for n in range(ROWS) if n % 3]
    with pytest.raises(UnsupportedKey, match=r"map<bigint,bigint> \(column 'm'\)"):
        AsyncDataStream.key_ordered_wait(rows, Echo(), key_by="m", **OUTPUT)


REFUSED = [
    "array<int>", "map<string, int>", "interval day", "interval year to month", "variant", "string collate UTF8_LCASE",
    "struct<a: int, m: map<int, int>>", "void",
]  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("kind", REFUSED)
def test_a_key_without_a_hash_is_refused_before_the_start(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    run = Run(spark, tmp_path)
    (tmp_path / "in").mkdir()
    run.schema = StructType.fromDDL(f"id bigint, user {kind}")  # type: ignore[assignment]
    with pytest.raises(UnsupportedKey, match=r"have no xxhash64 hash") as refusal:
        run.run(key_by=["id", "user"])
    assert "(column 'user" in refusal.value.type_name
    assert spark.streams.active == []


@pytest.mark.spark
def test_a_function_that_cannot_be_sent_is_refused_before_the_query_starts(run: Run) -> None:
    run.function = Count()
    run.function.lock = threading.Lock()  # type: ignore[attr-defined]
    refusal = r"Count \(its lock\) cannot be sent to the workers.*`open\(\)`"
    with pytest.raises(UnpicklableFunction, match=refusal):
        run.run(key_by="id")
    with pytest.raises(UnpicklableFunction, match=refusal):
        AsyncDataStream.ordered_wait(run.spark.range(1), _locked(Echo()), **OUTPUT)


def _locked(function: Any) -> Any:
    function.lock = threading.Lock()
    function.__class__ = type("Count", (Echo,), {})
    return function


def _struct(inner: str) -> StructType:
    return StructType.fromDDL(f"`a.b` bigint, pair struct<x: int, deep: struct<y: float, `z``z`: {inner}>>")


@pytest.mark.spark
def test_the_fields_of_a_struct_are_the_columns_of_the_key(spark: SparkSession) -> None:
    keys = key_columns(_struct("decimal(9,3)"), ["pair", "a.b"])
    assert [(key.name, key.type) for key in keys] == [
        ("pair.x", "bigint"),
        ("pair.deep.y", "double"),
        ("pair.deep.z`z", "decimal(38,3)"),
        ("a.b", "bigint"),
    ]
    getter = key_getter(keys)
    assert getter is not None
    row = {"a.b": 7, "pair": {"x": 1, "deep": {"y": 2.0, "z`z": None}}}
    assert getter(row) == (1, 2.0, None, 7)
    assert getter({"a.b": 7, "pair": None}) == (None, None, None, 7)
    frame = spark.createDataFrame([row], _struct("decimal(9,3)"))
    assert tuple(frame.select(*(key.column for key in keys)).collect()[0]) == (1, 2.0, None, 7)


@pytest.mark.parametrize(
    ("paths", "row", "expected"),
    [
        ([("a",)], {"a": 1}, 1),
        ([("a",), ("b",)], {"a": 1, "b": 2}, (1, 2)),
        ([("a", "b")], {"a": {"b": 2}}, 2),
        ([("a", "b")], {"a": None}, None),
    ],
)
def test_the_key_of_one_column_is_its_value_and_of_several_a_tuple(paths: Any, row: Any, expected: Any) -> None:
    getter = key_getter([KeyColumn(path, "bigint") for path in paths])
    assert getter is not None
    assert getter(row) == expected


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no key": ({"key_by": None}, "key_by=None: Count declares keyed state"),
    "no key columns": ({"key_by": []}, "key_by"),
    "a function as key": ({"key_by": len}, "key_by"),
    "no schema": ({"output_schema": None}, "output_schema=None: name the columns that come out"),
    "no parallelism": ({"parallelism": 0}, "parallelism=0"),
    "no parallelism, nor max parallelism": ({"parallelism": 0, "max_parallelism": None}, "parallelism=0"),
    "half a subtask": ({"parallelism": 1.5}, "parallelism=1.5"),
}


@pytest.mark.spark
@pytest.mark.parametrize("case", WRONG)
def test_what_can_never_work_is_refused_by_the_constructor(spark: SparkSession, tmp_path: Path, case: str) -> None:
    options, reason = WRONG[case]
    common: dict[str, Any] = {"key_by": "user", "snapshots": tmp_path, "operator_id": "count", "parallelism": 2}
    with pytest.raises(ConfigError, match=reason):
        AsyncPipeline(Count(), **(common | OUTPUT | options))


@pytest.mark.spark
def test_a_transform_without_a_schema_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="output_schema=None: name the columns"):
        AsyncDataStream.ordered_wait(spark.range(1), Echo())


@pytest.mark.parametrize("module", ["async_op.spark", "snapshots.spark", "keygroups.spark"])
def test_without_pyspark_the_import_says_what_to_install(module: str) -> None:
    program = f"import sys; sys.modules['pyspark'] = None; import {module}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "SparkNotInstalled: this part of the library needs pyspark" in ended.stderr
    assert "pip install 'keygroups[spark]'" in ended.stderr


def _ids(rows: list[dict[str, Any]], epoch: str = "e/q/1", rows_per_batch: int = 2) -> dict[str, dict[str, Any]]:
    table = pa.Table.from_pylist(rows)
    elements = EpochElements(epoch, None)
    batches = table.to_batches(max_chunksize=rows_per_batch)
    return {str(looked_up(identity)): row for batch in batches for row, _, identity in elements.of(batch)}


def test_equal_rows_have_idempotency_keys_of_their_own_whatever_their_order() -> None:
    rows = [{"id": n % 3, "user": "ann"} for n in range(7)]
    ids = _ids(rows)
    assert sorted(ids.values(), key=str) == sorted(rows, key=str)
    assert _ids(rows[::-1], rows_per_batch=5) == ids
    assert _ids(rows, epoch="e/q/2").keys().isdisjoint(ids)


@given(st.lists(st.integers(0, 2), max_size=9), st.permutations(range(9)))
def test_idempotency_keys_depend_neither_on_who_asks_first_nor_on_what_became_of_the_row(
    users: list[int], order: list[int]
) -> None:
    rows = [{"user": user} for user in users]
    batches = [pa.Table.from_pylist(rows[start : start + 2]).to_batches()[0] for start in range(0, len(rows), 2)]
    made = EpochElements("e/q/1", None)
    elements = [element for batch in batches for element in made.of(batch)]
    for value, _, _ in elements:
        value["user"] = "changed by the function"

    asked = {place: looked_up(elements[place][2]) for place in order if place < len(rows)}

    ids = _ids(rows) if rows else {}
    assert set(asked.values()) == set(ids)
    assert all(ids[str(asked[place])] == row for place, row in enumerate(rows))
