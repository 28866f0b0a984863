"""A topic as the sink of a pipeline on Spark: each epoch once, also if the driver is killed while it is written."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from async_op.connectors import KafkaSink, UnwritableValue
from async_op.connectors.epoch_rows import FrameRows
from async_op.spark import AsyncPipeline
from async_op.spark.epoch import delivery
from snapshots import SnapshotStore
from snapshots.format.delivered import last_delivered
from tests.async_op.connectors.kafka.brokers import broker, make_topic, read_all, read_messages
from tests.quick import first_is_quick
from tests.spark.exactly_once import session

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.spark

ROWS_PER_FILE = 20
HEADERS = "array<struct<key: string, value: binary>>"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with broker() as address:
        yield address


@pytest.fixture
def topic(server: str) -> str:
    topic = f"topic-{next(_numbers)}"
    make_topic(server, topic)
    return topic


def sink_into(server: str, topic: str, **settings: Any) -> KafkaSink:
    return KafkaSink(topic, f"job-of-{topic}", {"bootstrap.servers": server, "log_level": 0, **settings})


async def encode(row: dict[str, Any]) -> tuple[str, bytes]:
    return f"key {row['n']}", b"%d" % row["n"]


def pipeline(folder: Path, output_schema: str = "key string, value binary") -> AsyncPipeline:
    return AsyncPipeline(
        encode,
        key_by="n",
        output_schema=output_schema,
        snapshots=folder / "snapshots",
        operator_id="into_kafka",
        barrier_timeout=None,
        parallelism=1,
        resident=False,
    )


def start(spark: SparkSession, folder: Path, sink: KafkaSink) -> Any:
    """Start a pipeline whose micro-batches have a file each."""
    stream = spark.readStream.schema("n bigint").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    return pipeline(folder).start(
        stream, sink, checkpoint_location=folder / "checkpoint", trigger={"availableNow": True}
    )


def be_killed(folder: Path, server: str, topic: str, moment: str) -> None:
    """Run the pipeline until its first epoch is with the client, or in the topic, and not noted; die then."""

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    # The broker shows records of aborted transactions, too; so nothing is sent before the commit.
    sink = sink_into(server, topic, **{"linger.ms": 30_000})
    if moment == "in the transaction":
        noted = sink._noted
        sink._noted = lambda epoch: die() if epoch >= 0 else noted(epoch)  # type: ignore[method-assign]
    else:
        delivery.mark = die
    spark = session("local[2]", **{"spark.sql.shuffle.partitions": "1"})
    start(spark, folder, sink).awaitTermination()


@pytest.mark.thorough
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("moment", "written"), [("in the transaction", 0), ("written", ROWS_PER_FILE)])
def test_each_epoch_is_in_the_topic_once_although_the_driver_was_killed(
    spark: SparkSession, tmp_path: Path, server: str, topic: str, moment: str, written: int
) -> None:
    for first in (0, ROWS_PER_FILE):
        spark.range(first, first + ROWS_PER_FILE, 1, 1).toDF("n").write.mode("append").parquet(str(tmp_path / "in"))
    killed = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.test_into_kafka", str(tmp_path), server, topic, moment],
        start_new_session=True,
    )
    assert killed.wait() == -signal.SIGKILL
    assert len(read_all(server, topic)) == written
    assert last_delivered(SnapshotStore(tmp_path / "snapshots", "into_kafka").load().folder) is None

    start(spark, tmp_path, sink_into(server, topic)).awaitTermination()
    found = [(message.key(), message.value()) for message in read_messages(server, topic)]
    assert sorted(found) == sorted((b"key %d" % n, b"%d" % n) for n in range(2 * ROWS_PER_FILE))


def test_a_batch_is_written_once(spark: SparkSession, server: str, topic: str) -> None:
    frame = spark.range(30).selectExpr("concat('key ', id) as key", "cast(string(id) as binary) as value")
    frame = frame.repartition(3)
    first = sink_into(server, topic)
    first(frame, 1)
    for sink in (first, pickle.loads(pickle.dumps(first))):
        sink(frame, 1)
        sink(frame, 2)
        sink(frame.where("key < 'key 11'"), 4)

    found = sorted((message.key(), message.value()) for message in read_messages(server, topic))
    assert found == sorted((b"key %d" % n, b"%d" % n) for n in [*range(30), *range(30), 0, 1, 10])


def test_an_epoch_without_rows_needs_no_broker(spark: SparkSession) -> None:
    sink_into("127.0.0.1:1", "topic")(spark.range(0).selectExpr("string(id) as value"), 1)


def test_records_have_the_headers_of_spark_s_own_sink(spark: SparkSession, server: str, topic: str) -> None:
    rows = [
        (b"k", "1", [("h", b"x"), ("i", None)]),
        (None, None, []),
        (None, "3", None),
    ]
    sink = sink_into(server, topic)
    sink(spark.createDataFrame(rows, f"key binary, value string, headers {HEADERS}").coalesce(1), 1)
    sink(spark.sql("select '4' as value, map('h', binary('x')) as headers"), 2)

    assert [(one.key(), one.value(), one.headers()) for one in read_messages(server, topic)] == [
        (b"k", b"1", [("h", b"x"), ("i", None)]),
        (None, None, None),
        (None, b"3", None),
        (None, b"4", [("h", b"x")]),
    ]


def test_records_are_sent_before_all_rows_have_come(
    spark: SparkSession, server: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_into(server, topic)
    produce, dicts = sink._produce, FrameRows.dicts
    happened = []

    def noted_rows(rows: FrameRows) -> Iterator[dict[str, Any]]:
        for row in dicts(rows):
            happened.append("row")
            yield row

    def noted_produce(record: dict[str, Any], index: int) -> None:
        happened.append("record")
        produce(record, index)

    monkeypatch.setattr(FrameRows, "dicts", noted_rows)
    monkeypatch.setattr(sink, "_produce", noted_produce)
    sink(spark.range(10).selectExpr("string(id) as value"), 1)

    assert happened == ["row", "record"] * 10


@pytest.mark.parametrize(
    ("columns", "complaint"),
    first_is_quick(
        [
            ("'1' as value, now() as timestamp", "'timestamp' is none of value, key, headers"),
            ("'1' as other", "value"),
            ("1 as value", "value is neither bytes nor text"),
            ("'1' as value, 2 as key", "key is neither bytes nor text"),
            ("'1' as value, 2 as headers", "headers"),
            ("'1' as value, array(struct('x' as value)) as headers", "headers"),
            ("'1' as value, array(struct(cast(null as string) as key, '' as value)) as headers", "headers"),
        ]
    ),
)
def test_a_column_of_an_epoch_that_is_no_part_of_a_record_is_named(
    spark: SparkSession, server: str, topic: str, columns: str, complaint: str
) -> None:
    sink = sink_into(server, topic)
    with pytest.raises(UnwritableValue, match=complaint):
        sink(spark.sql(f"select {columns}"), 1)
    sink(spark.sql("select 'right' as value"), 1)

    assert read_all(server, topic) == [b"right"]


@pytest.mark.parametrize(
    ("output_schema", "complaint"),
    [
        ("key string, other string", "no column 'value'"),
        ("value string, timestamp timestamp", "'timestamp' is none of value, key, headers"),
        ("key bigint, value string", "'key' is neither binary nor string"),
        ("value string, headers array<string>", "'headers' is neither array"),
    ],
)
def test_a_column_that_is_no_part_of_a_record_is_named_before_the_first_epoch(
    spark: SparkSession, tmp_path: Path, output_schema: str, complaint: str
) -> None:
    sink = sink_into("127.0.0.1:1", "topic")
    stream = spark.readStream.format("rate").load().selectExpr("value as n")
    with pytest.raises(UnwritableValue, match=complaint):
        pipeline(tmp_path, output_schema).start(stream, sink, checkpoint_location=tmp_path / "checkpoint")
    with pytest.raises(UnwritableValue, match=complaint):
        pipeline(tmp_path, output_schema).run(spark.range(1).toDF("n"), sink, run_id="once")

    assert list(tmp_path.iterdir()) == []


if __name__ == "__main__":
    be_killed(Path(sys.argv[1]), *sys.argv[2:])
