"""Functions that take and return whole record batches."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from async_op import AsyncBatchFunction, AsyncDataStream, FixedDelayRetry
from async_op.spark.transform import recut
from keygroups import ConfigError

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = "id bigint, twice bigint"


class Double(AsyncBatchFunction):
    """The earlier batches of every four return last."""

    arrow = True
    max_batch_size = 10

    async def async_invoke_batch(self, batch: Any, ctx: Any) -> pa.RecordBatch:
        first = batch.column("id")[0].as_py()
        await asyncio.sleep(0.01 * (4 - first // 10 % 4))
        return batch.append_column("twice", pc.multiply(batch.column("id"), 2))


class Sizes(AsyncBatchFunction):
    """Returns how many rows each batch had, and how many batches were in flight with it."""

    arrow = True
    max_batch_size = 10

    def __init__(self, together: int) -> None:
        self.together = together

    async def open(self, runtime: Any) -> None:
        self.running = 0
        self.are_together = asyncio.Event()

    async def async_invoke_batch(self, batch: Any, ctx: Any) -> pa.RecordBatch:
        self.running += 1
        if self.running == self.together:
            self.are_together.set()
        await self.are_together.wait()
        await asyncio.sleep(0.01)
        running, self.running = self.running, self.running - 1
        return pa.RecordBatch.from_pydict({"twice": pa.array([running]), "id": pa.array([batch.num_rows])})


class OddTwice(AsyncBatchFunction):
    """Drops the even rows and doubles the odd ones."""

    arrow = True

    async def async_invoke_batch(self, batch: Any, ctx: Any) -> pa.RecordBatch:
        odd = pc.array_filter(batch.column("id"), pc.equal(pc.bit_wise_and(batch.column("id"), 1), 1))
        return pa.RecordBatch.from_pydict({"id": pa.concat_arrays([odd, odd])})


class FailTwice(AsyncBatchFunction):
    arrow = True
    max_batch_size = 4

    async def async_invoke_batch(self, batch: Any, ctx: Any) -> pa.RecordBatch:
        if ctx.attempt < 3:
            raise ValueError("the service said no")
        return batch.append_column("twice", pa.array([ctx.attempt] * batch.num_rows))


class Hang(AsyncBatchFunction):
    arrow = True

    async def async_invoke_batch(self, batch: Any, ctx: Any) -> pa.RecordBatch:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def timeout(self, value: Any, ctx: Any) -> Any:
        return value.append_column("twice", pa.nulls(value.num_rows, pa.int64()))


class Return(AsyncBatchFunction):
    arrow = True

    def __init__(self, output: object) -> None:
        self.output = output

    async def async_invoke_batch(self, batch: Any, ctx: Any) -> Any:
        return self.output


@given(st.lists(st.integers(0, 25), max_size=10), st.integers(1, 30))
def test_recut_keeps_the_rows_and_makes_full_batches(sizes: list[int], size: int) -> None:
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    batches = [
        pa.RecordBatch.from_pydict({"n": pa.array(range(end - count, end), pa.int64())})
        for count, end in zip(sizes, ends, strict=True)
    ]
    cut = list(recut(iter(batches), size))
    assert [n for batch in cut for n in batch.column("n").to_pylist()] == list(range(sum(sizes)))
    assert all(batch.num_rows == size for batch in cut[:-1])
    assert all(0 < batch.num_rows <= size for batch in cut[-1:])


def test_ordered_keeps_the_order_of_a_partition(spark: SparkSession) -> None:
    frame = spark.range(0, 1005, 1, 1)
    outputs = AsyncDataStream.ordered_wait(frame, Double(), output_schema=SCHEMA, capacity=50)
    assert [tuple(row) for row in outputs.collect()] == [(n, 2 * n) for n in range(1005)]


def test_unordered_yields_every_row_and_overtakes(spark: SparkSession) -> None:
    frame = spark.range(0, 400, 1, 2)
    rows = [
        tuple(row)
        for row in AsyncDataStream.unordered_wait(frame, Double(), output_schema=SCHEMA, capacity=40).collect()
    ]
    assert sorted(rows) == [(n, 2 * n) for n in range(400)]
    assert rows != sorted(rows)


@pytest.mark.parametrize("arriving", [7, 64])
def test_batches_are_cut_and_joined_and_capacity_counts_rows(spark: SparkSession, arriving: int) -> None:
    option = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(option)
    spark.conf.set(option, arriving)
    try:
        outputs = AsyncDataStream.ordered_wait(spark.range(0, 95, 1, 1), Sizes(3), output_schema=SCHEMA, capacity=39)
        rows = outputs.collect()
    finally:
        spark.conf.set(option, before)
    assert [row.id for row in rows] == [10] * 9 + [5]
    assert max(row.twice for row in rows) == 3


def test_a_batch_larger_than_the_capacity_is_alone(spark: SparkSession) -> None:
    outputs = AsyncDataStream.ordered_wait(spark.range(0, 30, 1, 1), Sizes(1), output_schema=SCHEMA, capacity=1)
    assert [tuple(row) for row in outputs.collect()] == [(10, 1)] * 3


def test_the_number_of_rows_may_change(spark: SparkSession) -> None:
    outputs = AsyncDataStream.unordered_wait(spark.range(10), OddTwice(), output_schema="id bigint")
    assert sorted(row.id for row in outputs.collect()) == [1, 1, 3, 3, 5, 5, 7, 7, 9, 9]


def test_a_batch_is_retried_and_timed_out_as_a_whole(spark: SparkSession) -> None:
    frame = spark.range(0, 6, 1, 1)
    retried = AsyncDataStream.ordered_wait(
        frame, FailTwice(), output_schema=SCHEMA, retry=FixedDelayRetry(3, 0.001), timeout=60.0
    )
    assert [tuple(row) for row in retried.collect()] == [(n, 3) for n in range(6)]
    timed_out = AsyncDataStream.ordered_wait(frame, Hang(), output_schema=SCHEMA, timeout=0.05)
    assert [tuple(row) for row in timed_out.collect()] == [(n, None) for n in range(6)]


def test_a_failing_batch_is_named(spark: SparkSession) -> None:
    outputs = AsyncDataStream.ordered_wait(spark.range(0, 10, 1, 1), FailTwice(), output_schema=SCHEMA)
    message = r"attempt 1 of element RecordBatch of 4 rows, the first \{'id': 0\}.*ValueError: the service said no"
    with pytest.raises(PythonException, match=message):
        outputs.collect()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (None, "it is a NoneType, not a RecordBatch"),
        ([{"id": 1}], "it is a list, not a RecordBatch"),
        (pa.RecordBatch.from_pydict({"id": [1]}), "column 'twice': the batch has 0 such columns"),
        (pa.RecordBatch.from_pydict({"id": [1], "twice": ["2"]}), "column 'twice': its type is string, not int64"),
        (pa.RecordBatch.from_pydict({"id": [1], "twice": [2], "more": [3]}), "its columns are id, twice, more"),
        (
            pa.RecordBatch.from_arrays([[1], [2], [3]], ["id", "id", "twice"]),
            "column 'id': the batch has 2 such columns",
        ),
        (pa.RecordBatch.from_pydict({"id": pa.nulls(1, pa.int64()), "twice": [2]}), "column 'id': null"),
    ],
)
def test_an_output_that_does_not_fit_is_named(spark: SparkSession, output: object, message: str) -> None:
    outputs = AsyncDataStream.ordered_wait(
        spark.range(1), Return(output), output_schema="id bigint not null, twice bigint"
    )
    with pytest.raises(PythonException, match=f"ElementFailed.*RecordBatch of 1 row,.*OutputMismatch.*{message}"):
        outputs.collect()


def test_what_can_never_work_is_refused_at_once(spark: SparkSession, tmp_path: Path) -> None:
    from async_op.spark import AsyncPipeline

    frame = spark.range(1)
    with pytest.raises(ConfigError, match="no key_by"):
        AsyncDataStream.unordered_wait(frame, Double(), output_schema=SCHEMA, key_by="id")
    with pytest.raises(ConfigError, match="no key_by"):
        AsyncDataStream.key_ordered_wait(frame, Double(), output_schema=SCHEMA)
    with pytest.raises(ConfigError, match="set arrow = False"):
        AsyncPipeline(
            Double(), key_by="id", output_schema=SCHEMA, snapshots=tmp_path, operator_id="double", parallelism=1
        )
    for capacity in (0, -1):
        with pytest.raises(ConfigError, match="capacity"):
            AsyncDataStream.unordered_wait(frame, Double(), output_schema=SCHEMA, capacity=capacity)
    empty = Double()
    empty.max_batch_size = 0
    with pytest.raises(ConfigError, match="max_batch_size"):
        AsyncDataStream.unordered_wait(frame, empty, output_schema=SCHEMA)
