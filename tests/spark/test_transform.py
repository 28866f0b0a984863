"""The stateless transform of batch and streaming DataFrames."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import re
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.ml.linalg import DenseVector, SparseVector, VectorUDT
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType, VariantVal

from async_op import AsyncDataStream, AsyncFunction, FixedDelayRetry, shared
from keygroups import ConfigError, ValueState

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Double(AsyncFunction):
    """The later rows of every ten return first."""

    async def async_invoke(self, value, ctx):
        await asyncio.sleep(0.001 * (10 - value["id"] % 10))
        return [(value["id"], 2 * value["id"])]


class Return(AsyncFunction):
    def __init__(self, output):
        self.output = output

    async def async_invoke(self, value, ctx):
        return [self.output]


class FailAt(AsyncFunction):
    async def async_invoke(self, value, ctx):
        if value["id"] == 7:
            raise ValueError("the service said no")
        return []


class HangForGood(AsyncFunction):
    async def async_invoke(self, value, ctx):
        await asyncio.get_running_loop().create_future()


class Hang(HangForGood):
    async def timeout(self, value, ctx):
        return [(value["id"], -1)]


class Client:
    """Writes into a file what happens to it."""

    def __init__(self, log: Path):
        self.log = log
        self.write("made")

    def write(self, line: str) -> None:
        with self.log.open("a") as file:
            file.write(line + "\n")

    async def aclose(self) -> None:
        self.write("closed")


class Sharing(AsyncFunction):
    """Asks twice for a client."""

    def __init__(self, folder: Path):
        self.folder = folder

    async def open(self, runtime):
        make = functools.partial(Client, self.folder / str(uuid.uuid4()))
        self.clients = [await shared("client", make) for _ in range(2)]

    async def async_invoke(self, value, ctx):
        return [(value["id"], int(self.clients[0] is self.clients[1]))]

    async def close(self):
        self.clients[0].write("function closed")


SCHEMA = "id bigint, twice bigint"


def test_ordered_keeps_the_order_of_a_partition(spark: SparkSession) -> None:
    frame = spark.range(0, 1000, 1, 1)
    outputs = AsyncDataStream.ordered_wait(frame, Double(), output_schema=SCHEMA, capacity=50)
    assert [tuple(row) for row in outputs.collect()] == [(n, 2 * n) for n in range(1000)]


def test_unordered_yields_every_row_of_every_partition(spark: SparkSession) -> None:
    frame = spark.range(0, 1000, 1, 4)
    outputs = AsyncDataStream.unordered_wait(frame, Double(), output_schema=SCHEMA, key_by="id")
    rows = [tuple(row) for row in outputs.collect()]
    assert sorted(rows) == [(n, 2 * n) for n in range(1000)]
    assert rows != sorted(rows)


def test_an_empty_partition_yields_nothing(spark: SparkSession) -> None:
    frame = spark.range(0, 2, 1, 4)
    assert AsyncDataStream.ordered_wait(frame, Double(), output_schema=SCHEMA).count() == 2


def test_columns_may_have_dots_in_their_names(spark: SparkSession) -> None:
    frame = spark.range(3).selectExpr("id as `a.id`", "named_struct('id', id) as a", "id as `a``id`")

    async def both(value):
        return value["a.id"], value["a"]["id"]

    outputs = AsyncDataStream.unordered_wait(frame, both, output_schema="`out.1` bigint, out bigint")
    assert sorted(tuple(row) for row in outputs.collect()) == [(n, n) for n in range(3)]


def test_a_streaming_frame(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(100).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id bigint").parquet(str(tmp_path / "in"))
    outputs = AsyncDataStream.ordered_wait(stream, Double(), output_schema=SCHEMA)
    query = (
        outputs.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"), format="parquet")
    )
    query.awaitTermination()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 100


def test_a_timeout_can_give_a_fallback(spark: SparkSession) -> None:
    outputs = AsyncDataStream.unordered_wait(spark.range(3), Hang(), output_schema=SCHEMA, timeout=0.05)
    assert sorted(tuple(row) for row in outputs.collect()) == [(0, -1), (1, -1), (2, -1)]


def test_a_failing_row_is_named_with_the_line_that_failed(spark: SparkSession) -> None:
    outputs = AsyncDataStream.key_ordered_wait(
        spark.range(10), FailAt(), output_schema=SCHEMA, key_by="id", retry=FixedDelayRetry(3, 0.001)
    )
    with pytest.raises(PythonException) as raised:
        outputs.collect()
    text = str(raised.value)
    named = r"attempt 3 of element \{'id': 7\} \(id \S+\) with key 7"
    assert re.search(rf"ElementFailed: {named} failed: ValueError: the service said no", text)
    assert 'raise ValueError("the service said no")' in text
    assert "mailbox" not in text


def test_a_row_that_timed_out_is_named(spark: SparkSession) -> None:
    outputs = AsyncDataStream.ordered_wait(spark.range(3), HangForGood(), output_schema=SCHEMA, timeout=0.05)
    with pytest.raises(
        PythonException,
        match=r"no result within 0.05 s for \{'id': \d\} \(id \S+\)(.|\n)*in attempt 1 of element \S+",
    ):
        outputs.collect()


def test_a_long_value_is_shortened(spark: SparkSession) -> None:
    frame = spark.range(7, 8).selectExpr("id", "repeat('x', 10000) as text")
    with pytest.raises(PythonException) as raised:
        AsyncDataStream.ordered_wait(frame, FailAt(), output_schema=SCHEMA).collect()
    assert "'id': 7, 'text': 'xxx" in str(raised.value)
    assert "x" * 100 not in str(raised.value)


@pytest.mark.parametrize(
    ("output", "schema", "message"),
    [
        ((1,), SCHEMA, "1 values for 2 columns"),
        ({"id": 1, "thrice": 3}, SCHEMA, "'thrice': there is no such column"),
        ({"id": "one", "twice": 2}, SCHEMA, "column 'id': its value is of type str, not int64"),
        ({"twice": 2}, "id bigint not null, twice bigint", "column 'id': null"),
        (5, SCHEMA, "it is a int"),
        ((1, 2**40), "id bigint, twice int", "column 'twice'"),
    ],
)
def test_the_element_of_an_output_that_does_not_fit_is_named(
    spark: SparkSession, output: object, schema: str, message: str
) -> None:
    outputs = AsyncDataStream.ordered_wait(spark.range(1), Return(output), output_schema=schema)
    with pytest.raises(PythonException, match=f"element {{'id': 0}} .*OutputMismatch.*{message}"):
        outputs.collect()


def test_a_dict_may_leave_out_a_nullable_column(spark: SparkSession) -> None:
    outputs = AsyncDataStream.ordered_wait(spark.range(1), Return({"id": 4}), output_schema=SCHEMA)
    assert [tuple(row) for row in outputs.collect()] == [(4, None)]


def test_what_can_never_work_is_refused_at_once(spark: SparkSession) -> None:
    class Stateful(Double):
        states = (ValueState("seen"),)

    with pytest.raises(ConfigError, match="AsyncPipeline"):
        AsyncDataStream.ordered_wait(spark.range(1), Stateful(), output_schema=SCHEMA)
    with pytest.raises(ConfigError, match="the columns are"):
        AsyncDataStream.ordered_wait(spark.range(1), Double(), output_schema=SCHEMA, key_by="user")
    with pytest.raises(ConfigError, match="name the columns"):
        AsyncDataStream.ordered_wait(spark.range(1), Double(), output_schema="bigint")


def test_a_shared_client_lives_from_open_to_close_of_each_partition(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(0, 30, 1, 3)
    outputs = AsyncDataStream.unordered_wait(frame, Sharing(tmp_path), output_schema=SCHEMA)
    assert sorted(tuple(row) for row in outputs.collect()) == [(number, 1) for number in range(30)]
    logs = [log.read_text().splitlines() for log in tmp_path.iterdir()]
    assert logs == [["made", "function closed", "closed"]] * 3


def test_a_naive_timestamp_means_in_spark_what_the_session_shows(spark: SparkSession) -> None:
    async def without_zone(row: dict[str, Any]) -> tuple[dt.datetime]:
        return (row["at"].replace(tzinfo=None),)

    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = spark.sql("select timestamp '2024-01-01 12:00:00' as at")
        out = AsyncDataStream.ordered_wait(frame, without_zone, output_schema="at timestamp")
        assert out.selectExpr("string(at)").first() == ("2024-01-01 12:00:00",)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


async def decoded(row):
    return row["doc"], str(VariantVal(**row["doc"]).toPython())


def test_a_variant_comes_as_its_two_parts_and_leaves_as_them(spark: SparkSession) -> None:
    frame = spark.range(2).selectExpr("""parse_json('{"a": [1, null, "ü"]}') as doc""")

    rows = AsyncDataStream.ordered_wait(frame, decoded, output_schema="doc variant, text string").collect()

    assert [(row.doc.toPython(), row.text) for row in rows] == 2 * [({"a": [1, None, "ü"]}, "{'a': [1, None, 'ü']}")]


async def doubled(row):
    vector = VectorUDT().deserialize(tuple(row["v"].values()))
    return row["v"], VectorUDT().serialize(DenseVector(vector.toArray() * 2))


def test_a_vector_comes_and_leaves_as_what_spark_stores_of_it(spark: SparkSession) -> None:
    vectors = [DenseVector([1.0, 2.0]), SparseVector(3, {1: 5.0})]
    frame = spark.createDataFrame([(vector,) for vector in vectors], StructType().add("v", VectorUDT()))

    output = StructType().add("v", VectorUDT()).add("doubled", VectorUDT())
    rows = AsyncDataStream.ordered_wait(frame, doubled, output_schema=output).collect()

    assert [row.v for row in rows] == vectors
    assert [row.doubled for row in rows] == [DenseVector([2.0, 4.0]), DenseVector([0.0, 10.0, 0.0])]
