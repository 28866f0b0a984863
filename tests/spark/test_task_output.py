"""What a task yields is on its way before the task waits again."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from keygroups.spark.partitions import flusher

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_a_generator_finds_the_stream_of_whoever_runs_it() -> None:
    sent = io.BytesIO()

    def task() -> Iterator[bytes]:
        flush = flusher()
        for number in range(3):
            yield b"%d" % number
            flush()
            assert sent.getvalue() == b"012"[: number + 1]

    def dump_stream(iterator: Iterator[bytes], stream: io.BufferedWriter) -> None:
        stream.writelines(map(bytes, iterator))

    dump_stream(task(), io.BufferedWriter(sent))  # type: ignore[arg-type]


def test_without_such_a_stream_nothing_is_flushed() -> None:
    assert flusher()() is None


def test_a_spark_worker_has_such_a_stream(spark: SparkSession) -> None:
    def task(batches: Iterator[Any]) -> Iterator[Any]:
        stream = getattr(flusher(), "__self__", None)
        list(batches)
        yield pa.RecordBatch.from_pydict({"kind": [type(stream).__name__]})

    found = spark.range(0, 1, 1, 1).mapInArrow(task, "kind string").collect()
    assert [row.kind for row in found] == ["BufferedWriter"]
