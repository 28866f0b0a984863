"""The transform and the pipeline on Spark against what Spark, the operator alone, and users' own code do.

Each case of the transform runs both sides in turn, several times after one run to warm up, and reports the median of
the ratios of their wall times, because the speed of a shared machine drifts. The pipeline's are in `_epochs`.

    python -m benchmarks.spark --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from async_op import AsyncBatchFunction, AsyncDataStream, AsyncFunction, AsyncWaitOperator
from benchmarks._epochs import EPOCH_ROWS, epoch_figures
from benchmarks._session import session

ARROW_ROWS = 5_000_000
COROUTINE_ROWS = 100_000
TAIL_ROWS = 40_000
CAPACITY = 1000
COLUMNS = "id bigint, user string, price double, amount int, city string"


class BatchAtOnce(AsyncBatchFunction):
    """Returns its batch at once."""

    arrow = True
    max_batch_size = 10_000

    async def async_invoke_batch(self, batch: Any, ctx: Any) -> Any:
        return batch


class Millisecond(AsyncFunction):
    """Takes a millisecond for a row of five columns."""

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        await asyncio.sleep(0.001)
        return [(value["id"], value["user"], value["price"], value["amount"], value["city"])]


def seconds_of(row: int) -> float:
    """Return how long the service takes: 10 ms, but 500 ms for one row in a hundred."""
    return 0.5 if row % 100 == 42 else 0.01


class WithTail(AsyncFunction):
    """Takes as long as the service."""

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        await asyncio.sleep(seconds_of(value["id"]))
        return [(value["id"],)]


def gathered(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Do what users write: await all calls of a batch together, at most `CAPACITY` at once."""

    async def call(row: int) -> int:
        await asyncio.sleep(seconds_of(row))
        return row

    async def call_all(rows: list[int]) -> list[int]:
        return list(await asyncio.gather(*[call(row) for row in rows]))

    for frame in frames:
        for start in range(0, len(frame), CAPACITY):
            yield pd.DataFrame({"id": asyncio.run(call_all(frame["id"].iloc[start : start + CAPACITY].tolist()))})


@dataclass(frozen=True)
class Case:
    """What is measured: a floor or rival, ours, and how many times as long ours may take."""

    name: str
    rows: int
    other: Callable[[], float]
    ours: Callable[[], float]
    wanted_seconds_ratio: float


def cases(spark: SparkSession) -> list[Case]:
    """Return the cases, each with its two sides as functions that return seconds."""
    numbers = spark.range(0, ARROW_ROWS, 1, 1)
    rows = five_columns(spark)
    tail = spark.range(0, TAIL_ROWS, 1, 1)
    wait = AsyncDataStream.unordered_wait
    batches = wait(numbers, BatchAtOnce(), output_schema="id bigint", capacity=100_000)
    coroutines = wait(rows, Millisecond(), output_schema=COLUMNS, capacity=CAPACITY)
    with_tail = wait(tail, WithTail(), output_schema="id bigint", capacity=CAPACITY)
    values = rows.toArrow().to_pylist()
    return [
        Case(
            "Arrow batches at once / mapInArrow identity",
            ARROW_ROWS,
            lambda: run(numbers.mapInArrow(identity, "id bigint")),
            lambda: run(batches),
            1.5,
        ),
        Case(
            "coroutine per row, 1 ms / the operator in process",
            COROUTINE_ROWS,
            lambda: in_process(values),
            lambda: run(coroutines),
            2.0,
        ),
        Case(
            "10 ms, 1 % 500 ms / mapInPandas with gather",
            TAIL_ROWS,
            lambda: run(tail.mapInPandas(gathered, "id bigint")),
            lambda: run(with_tail),
            1 / 3,
        ),
    ]


def five_columns(spark: SparkSession) -> DataFrame:
    """Return rows of an integer, two strings and two more numbers."""
    number = F.col("id")
    return spark.range(0, COROUTINE_ROWS, 1, 1).select(
        number,
        F.concat(F.lit("user-"), number % 1000).alias("user"),
        (number * 1.5).alias("price"),
        (number % 7).cast("int").alias("amount"),
        F.concat(F.lit("city-"), number % 50).alias("city"),
    )


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return what comes."""
    return batches


def run(frame: DataFrame) -> float:
    """Compute a DataFrame and drop its rows; returns the seconds that it took."""
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def in_process(values: list[Any]) -> float:
    """Return the seconds that the operator takes for the same rows without Spark, on the loop that it has there."""

    async def work() -> float:
        outputs: list[Any] = []
        operator = AsyncWaitOperator(Millisecond(), outputs.append, capacity=CAPACITY)
        await operator.open()
        started = time.perf_counter()
        await operator.process_all((value, None, None) for value in values)
        await operator.finish()
        seconds = time.perf_counter() - started
        await operator.close()
        assert len(outputs) == len(values)
        return seconds

    try:
        import uvloop
    except ImportError:
        return asyncio.run(work())
    return uvloop.run(work())


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Run both sides of a case in turn."""
    case.other(), case.ours()
    pairs = [(case.other(), case.ours()) for _ in range(repeats)]
    return {
        "case": case.name,
        "measured": round(statistics.median(ours / other for other, ours in pairs), 3),
        "unit": "",
        "wanted": round(case.wanted_seconds_ratio, 3),
        "other_per_second": round(case.rows / statistics.median(other for other, _ in pairs)),
        "ours_per_second": round(case.rows / statistics.median(ours for _, ours in pairs)),
    }


def main() -> None:
    """Measure all cases and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each case (default: 5)")
    arguments = parser.parse_args()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    rows = []
    with closing(session(1)) as spark:
        rows += [measure(case, arguments.repeats) for case in cases(spark)]
    with closing(session(2)) as spark:
        rows += epoch_figures(spark, arguments.repeats)
    if arguments.json:
        json.dump({"capacity": CAPACITY, "epoch_rows": EPOCH_ROWS, "results": rows}, sys.stdout, indent=2)
        return
    for row in rows:
        print("{case:66} {measured:9.3f} {unit:2} at most {wanted}".format(**row))


@contextmanager
def closing(spark: SparkSession) -> Iterator[SparkSession]:
    """Give a session and stop it, so that the next one may have other settings."""
    try:
        yield spark
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
