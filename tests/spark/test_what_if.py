"""What a pipeline does with an unusual load, and beside another one."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from async_op import AsyncFunction
from async_op.spark import UnrelatedHistories
from keygroups import ValueState
from snapshots import WriterFenced
from tests.spark.runs import PipelineRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = ValueState("count", pa.int64(), default=0)
LAST = ValueState("last", pa.string(), default="")
ROWS_PER_FILE = 40
HOT = "user = 'hot'"
WIDE_COLUMNS, WIDE_BYTES = 500, 2**20


class Count(AsyncFunction):
    """Numbers the rows of each key; those of the hot one take until `released` exists."""

    states = (COUNT,)

    def __init__(self, released: Path) -> None:
        self.released = released

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        while ctx.key == "hot" and not self.released.exists():
            await asyncio.sleep(0.01)
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(value["id"], value["user"], count.value())]


class Run(PipelineRun):
    """Of four rows three are of the hot key."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.released = folder / "released"
        super().__init__(
            spark,
            folder,
            Count(self.released),
            "id bigint, user string",
            key_by="user",
            output_schema="id bigint, user string, count bigint",
            operator_id="count",
        )
        self.files = 0

    def add_file(self) -> None:
        first = self.files * ROWS_PER_FILE
        rows = self.spark.range(first, first + ROWS_PER_FILE)
        self.write_file(rows.selectExpr("id", f"if(id % 4 = 0, concat('u', id % {ROWS_PER_FILE}), 'hot') as user"))
        self.files += 1

    def assert_exact(self) -> None:
        """Every row is delivered once, with the number that it has among those of its key."""
        numbers = Counter[str]()
        expected = []
        for n in range(self.files * ROWS_PER_FILE):
            user = "hot" if n % 4 else f"u{n % ROWS_PER_FILE}"
            numbers[user] += 1
            expected.append((n, user, numbers[user]))
        assert sorted(row for rows in self.delivered.values() for row in rows) == expected


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    run = Run(spark, tmp_path)
    run.add_file()
    yield run
    run.stop()


@pytest.mark.thorough
def test_rows_of_a_hot_key_wait_for_each_other_and_keep_nobody_else(run: Run) -> None:
    run.add_file()
    sink = run.sink

    def release(batch: Any, epoch: int) -> None:
        sink(batch, epoch)
        run.released.touch()

    run.sink = release  # type: ignore[method-assign]
    pipeline = run.run(barrier_timeout=5.0)

    assert {user for _, user, _ in run.delivered[1]} == {f"u{n}" for n in range(0, ROWS_PER_FILE, 4)}
    assert pipeline.progress()[0].in_flight == ROWS_PER_FILE * 3 // 4
    run.assert_exact()


class Remember(AsyncFunction):
    """Returns the row as it is, and keeps the largest of its columns."""

    states = (LAST,)

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        ctx.state(LAST).update(value["text"])
        return [value]


@pytest.mark.thorough
def test_wide_rows_come_out_whole(spark: SparkSession, tmp_path: Path) -> None:
    columns = ", ".join(f"c{n} bigint" for n in range(WIDE_COLUMNS))
    schema = f"id bigint, text string, {columns}"
    run = PipelineRun(
        spark, tmp_path, Remember(), schema, key_by="id", output_schema=schema, operator_id="wide", capacity=2
    )
    sizes = [f"id + {n} as c{n}" for n in range(WIDE_COLUMNS)]
    run.write_file(spark.range(8).selectExpr("id", f"repeat(cast(id as string), {WIDE_BYTES}) as text", *sizes))
    run.run()

    rows = sorted(row for rows in run.delivered.values() for row in rows)
    assert rows == [(n, str(n) * WIDE_BYTES, *range(n, n + WIDE_COLUMNS)) for n in range(8)]
    latest = run.store.latest()
    assert latest is not None
    assert sorted(latest.to_arrow("last")["value"].to_pylist()) == [str(n) * WIDE_BYTES for n in range(8)]


def test_of_two_pipelines_over_the_same_snapshots_the_second_is_refused_or_takes_over(run: Run) -> None:
    run.released.touch()
    first = run.start(run.pipeline())
    first.awaitTermination()
    committed = run.store.versions()
    second = run.pipeline()
    arguments = {"checkpoint_location": run.folder / "another checkpoint", "trigger": {"availableNow": True}}
    with pytest.raises(UnrelatedHistories, match="checkpoint is new"):
        second.start(run.stream(), run.sink, **arguments)
    assert run.store.versions() == committed

    run.files = 2  # the second one has no checkpoint of what the first has read
    second.start(run.stream(), run.sink, adopt="state", **arguments).awaitTermination()
    taken_over = run.store.versions()
    with pytest.raises(WriterFenced):
        first.runner.run_batch(run.spark.read.schema(run.schema).parquet(str(run.folder / "in")), "a query", 1)
    assert run.store.versions() == taken_over


def test_pipelines_of_different_operators_share_a_folder_and_nothing_else(run: Run) -> None:
    run.released.touch()
    run.run()
    before = run.store.versions()
    other = Run(run.spark, run.folder)
    other.files = 1
    other.settings["operator_id"] = "another"
    pipeline = other.pipeline()
    arguments = {"checkpoint_location": run.folder / "another checkpoint", "trigger": {"availableNow": True}}
    pipeline.start(other.stream(), other.sink, **arguments).awaitTermination()

    other.assert_exact()
    assert run.store.versions() == before
