"""What it buys that a task's outputs are sent to the JVM as they come (`flusher`), and what it costs.

Without a flush Python sends outputs only when 64 KB have gathered. Both sides run in turn, in one session: a task that
makes slow calls, of whose outputs a reader wants the first only, and one that yields large batches without a pause.

    python -m benchmarks.flush --json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from benchmarks._session import session
from keygroups.spark.partitions import flusher

CALLS_MAX = 1000
CALL_SECONDS = 0.01
LARGE_BATCHES = 1000
ROWS_OF_LARGE_BATCH = 1024
_QUIET_SECONDS = 2.0
"""A task that has made no call for so long has ended."""


@dataclass(frozen=True, slots=True)
class SlowCalls:
    """Makes one call after the other and yields each output at once; a file has a byte for each call."""

    log: Path
    is_flushed: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task."""
        flush = flusher() if self.is_flushed else _no_flush
        list(batches)
        with self.log.open("ab", buffering=0) as log:
            for call in range(CALLS_MAX):
                time.sleep(CALL_SECONDS)
                log.write(b"c")
                yield pa.RecordBatch.from_pydict({"id": [call]})
                flush()


@dataclass(frozen=True, slots=True)
class LargeBatches:
    """Yields large batches without a pause."""

    is_flushed: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task."""
        flush = flusher() if self.is_flushed else _no_flush
        list(batches)
        batch = pa.RecordBatch.from_pydict({"id": range(ROWS_OF_LARGE_BATCH)})
        for _ in range(LARGE_BATCHES):
            yield batch
            flush()


def _no_flush() -> None:
    pass


@dataclass(frozen=True, slots=True)
class FirstRow:
    """What it took until a reader of one row had it.

    Attributes
    ----------
    seconds : float
        Until it was there.
    calls : int
        That the task made before it learnt that nobody reads any more.
    """

    seconds: float
    calls: int


def first_row(spark: SparkSession, *, is_flushed: bool) -> FirstRow:
    """Run a task of slow calls, and read the first row that comes."""
    descriptor, name = tempfile.mkstemp()
    os.close(descriptor)
    log = Path(name)
    started = time.perf_counter()
    _one_partition(spark, SlowCalls(log, is_flushed)).take(1)
    seconds = time.perf_counter() - started
    calls = 0
    while log.stat().st_size > calls:
        calls = log.stat().st_size
        time.sleep(_QUIET_SECONDS)
    log.unlink()
    return FirstRow(seconds, calls)


def milliseconds_of_large_batch(spark: SparkSession, *, is_flushed: bool) -> float:
    """Return how long the JVM takes to read one of the batches that a fast task yields, the task's start shared out."""
    started = time.perf_counter()
    _one_partition(spark, LargeBatches(is_flushed)).write.format("noop").mode("overwrite").save()
    return (time.perf_counter() - started) * 1000 / LARGE_BATCHES


def measure(spark: SparkSession, repeats: int) -> dict[str, Any]:
    """Measure both sides in turn, after one round that starts workers; medians of the rounds."""
    rounds = [_round(spark) for _ in range(repeats + 1)][1:]
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def _round(spark: SparkSession) -> dict[str, float]:
    found: dict[str, float] = {}
    for side, is_flushed in (("flushed", True), ("gathered", False)):
        first = first_row(spark, is_flushed=is_flushed)
        found[f"{side}: seconds to the first row"] = first.seconds
        found[f"{side}: calls for one row"] = first.calls
        found[f"{side}: milliseconds of a large batch"] = milliseconds_of_large_batch(spark, is_flushed=is_flushed)
    return found


def _one_partition(spark: SparkSession, task: Callable[[Any], Any]) -> DataFrame:
    return spark.range(0, 1, 1, 1).mapInArrow(task, "id bigint")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flush", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each side (default: 5)")
    arguments = parser.parse_args()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark = session(1)
    try:
        found = measure(spark, arguments.repeats)
    finally:
        spark.stop()
    if arguments.json:
        json.dump({"results": [found]}, sys.stdout, indent=2)
        return
    for name, value in found.items():
        print(f"{name:40} {value:8.3f}")


if __name__ == "__main__":
    main()
