"""Operators that outlive micro-batches against those that live in tasks: calls, openings, gaps, the cost of an epoch.

Calls are counted by what the function writes down, so the first three cases hold on a busy machine, too. The last ones
are ratios within one run.

    python -m benchmarks.hosting --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from async_op import AsyncFunction
from async_op.functions.plain import as_function
from async_op.hosting.host_settings import HostSettings
from async_op.hosting.process.host_files import files_of
from async_op.hosting.process.host_process import Instructions
from async_op.hosting.process.launch import launch
from async_op.in_flight.idempotency_keys import Identity
from async_op.options import OperatorOptions
from async_op.spark import AsyncPipeline
from async_op.spark.task.host_access import MODULES
from async_op.spark.task.operator_factory import EpochOperatorFactory
from benchmarks import _epochs
from benchmarks._epochs import LARGE, SMALL, batch_milliseconds, pipeline_batches, write_state
from benchmarks._session import session
from keygroups import DiskStateBackend, ValueState

COUNT = ValueState("count", pa.int64(), default=0)
SCHEMA = "id bigint, user string"
PARALLELISM = 2
LONG_CALL_SECONDS, MICRO_BATCH_SECONDS, LONG_BATCHES, LONG_ROWS = 3.0, 1, 60, 20
OPEN_EPOCHS = 100
GAP_CALL_SECONDS, GAP_CAPACITY, GAP_BATCHES, GAP_ROWS = 0.3, 100, 12, 1000
EPOCHS, WARM_UP_EPOCHS, EPOCH_ROWS = 24, 8, 1000
STARTS = 9
USERS = 10_000


class Service(AsyncFunction):
    """Counts rows of users, and writes down each call: its row, its begin and its end."""

    states = (COUNT,)

    def __init__(self, book: Path, seconds: float) -> None:
        self.book = book
        self.seconds = seconds

    async def open(self, runtime: Any) -> None:
        self.line = os.open(self.book, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(self.line, b'["open"]\n')

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        began = time.monotonic()
        if self.seconds:
            os.write(self.line, f'["call", {value["id"]}]\n'.encode())
            await asyncio.sleep(self.seconds)
            os.write(self.line, f'["span", {began}, {time.monotonic()}]\n'.encode())
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(value["id"], count.value())]

    async def close(self) -> None:
        os.close(self.line)


def write_input(folder: Path, files: int, rows: int) -> None:
    """Write files of rows, each of which is a micro-batch."""
    folder.mkdir()
    for file in range(files):
        ids = range(file * rows, (file + 1) * rows)
        users = pa.array([f"u{number * 7919 % USERS}" for number in ids])
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "user": users}), folder / f"{file:04}.parquet")
        os.utime(folder / f"{file:04}.parquet", (file, file))


class Run:
    """One query over files, and what the service wrote down."""

    def __init__(self, spark: SparkSession, folder: Path, files: int, rows: int, call_seconds: float) -> None:
        self.book = folder / "book"
        write_input(folder / "in", files, rows)
        self.rows = files * rows
        self.spark, self.folder, self.call_seconds = spark, folder, call_seconds

    def stream(self) -> DataFrame:
        """Return the stream of the files, one a micro-batch."""
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / "in"))

    def go(self, trigger: dict[str, Any] | None = None, **options: Any) -> AsyncPipeline:
        """Run the pipeline until all rows have left."""
        done = 0

        def sink(batch: DataFrame, epoch: int) -> None:
            nonlocal done
            done += batch.count()

        pipeline = AsyncPipeline(
            Service(self.book, self.call_seconds),
            key_by="user",
            output_schema="id bigint, count bigint",
            snapshots=self.folder / "snapshots",
            operator_id="bench",
            parallelism=PARALLELISM,
            **options,
        )
        self.began_at = time.monotonic()
        query = pipeline.start(
            self.stream(),
            sink,
            checkpoint_location=self.folder / "checkpoint",
            trigger=trigger or {"availableNow": True},
        )
        while query.isActive and done < self.rows:
            query.awaitTermination(1)
        query.stop()
        self.milliseconds = [one["durationMs"]["addBatch"] for one in query.recentProgress if one["numInputRows"]]
        return pipeline

    def noted(self, what: str) -> list[Any]:
        """Return what the service wrote down of one kind."""
        lines = (json.loads(line) for line in self.book.read_text().splitlines())
        return [line[1:] for line in lines if line[0] == what]


def calls_per_row(spark: SparkSession, folder: Path, *, resident: bool) -> float:
    """Return calls ÷ rows, where calls take longer than micro-batches."""
    run = Run(spark, folder, LONG_BATCHES, LONG_ROWS, LONG_CALL_SECONDS)
    trigger = {"processingTime": f"{MICRO_BATCH_SECONDS} seconds"}
    run.go(trigger, barrier_timeout=0.2, capacity=1000, resident=resident)
    return Counter(row for (row,) in run.noted("call")).total() / run.rows


def openings(spark: SparkSession, folder: Path, *, resident: bool) -> int:
    """Return how often the function was opened over many epochs."""
    run = Run(spark, folder, OPEN_EPOCHS, 20, 0.0)
    run.go(resident=resident)
    return len(run.noted("open"))


def share_of_gaps(spark: SparkSession, folder: Path, *, resident: bool) -> float:
    """Return the share of time in which the service has fewer than half of its usual calls."""
    run = Run(spark, folder, GAP_BATCHES, GAP_ROWS, GAP_CALL_SECONDS)
    run.go(barrier_timeout=0.1, capacity=GAP_CAPACITY, resident=resident)
    spans = run.noted("span")
    changes = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])
    # The first and the last micro-batch begin and end with a service that has nothing to do.
    begin, end = (changes[int(len(changes) * share)][0] for share in (0.1, 0.9))
    level, levels, before = 0, [], begin
    for moment, change in changes:
        if begin < moment <= end:
            levels.append((level, moment - before))
            before = moment
        level += change
    usual = statistics.median(level for level, _ in levels)
    return sum(seconds for level, seconds in levels if level < usual / 2) / (end - begin)


def epoch_milliseconds(spark: SparkSession, folder: Path, *, resident: bool) -> float:
    """Return the usual milliseconds of an epoch whose calls return at once."""
    run = Run(spark, folder, EPOCHS, EPOCH_ROWS, 0.0)
    run.go(resident=resident)
    return statistics.median(run.milliseconds[WARM_UP_EPOCHS:])


def plain_milliseconds(spark: SparkSession, folder: Path) -> float:
    """Return the usual milliseconds of a `foreachBatch` with the same shuffle, an identity, collect, and the sink."""
    run = Run(spark, folder, EPOCHS, EPOCH_ROWS, 0.0)

    def batch(frame: DataFrame, epoch: int) -> None:
        routed = frame.withColumn("to", F.pmod(F.xxhash64("user"), F.lit(PARALLELISM)).cast("int"))
        identity = routed.repartitionById(PARALLELISM, "to").drop("to").mapInArrow(lambda rows: rows, SCHEMA)
        spark.createDataFrame(identity.toArrow()).count()

    writer = run.stream().writeStream.foreachBatch(batch).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "plain")).start()
    query.awaitTermination()
    return statistics.median([one["durationMs"]["addBatch"] for one in query.recentProgress][WARM_UP_EPOCHS:])


def stateful_milliseconds(spark: SparkSession, folder: Path, keys: int, backend: Any) -> float:
    """Return the usual milliseconds of an epoch over the state of so many keys."""
    stream = _epochs.write_input(spark, folder / "in", keys)
    write_state(folder / "state", keys)
    _, query = pipeline_batches(stream, folder / "state", state_backend=backend)
    return statistics.median(batch_milliseconds(query))


def cold_start_seconds(spark: SparkSession, folder: Path) -> float:
    """Return the seconds from the start of a query to its first call, less those to the first row of Spark's own."""
    run = Run(spark, folder, 1, EPOCH_ROWS, 0.001)
    first_row = [_seconds_to_first_row(run, folder / f"plain {turn}") for turn in ("to warm up", "measured")][-1]
    run.go()
    return min(began for began, _ in run.noted("span")) - run.began_at - first_row


def _seconds_to_first_row(run: Run, folder: Path) -> float:
    folder.mkdir()
    book = folder / "book"

    def note(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            with book.open("a") as line:
                line.write(f"{time.monotonic()}\n")
            yield batch

    def batch(frame: DataFrame, epoch: int) -> None:
        frame.repartition(PARALLELISM).mapInArrow(note, SCHEMA).toArrow()

    began = time.monotonic()
    writer = run.stream().writeStream.foreachBatch(batch).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    return min(map(float, book.read_text().split())) - began


CASES = {"calls ÷ rows": calls_per_row, "openings": openings, "share of gaps": share_of_gaps}
OTHERS = ("epochs", "state", "cold start", "starts")


def measure(spark: SparkSession, names: list[str]) -> dict[str, Any]:
    """Run the cases; of each that compares, both ways."""
    figures: dict[str, Any] = {}
    for name in names:
        if name in CASES:
            for resident in (True, False):
                with tempfile.TemporaryDirectory() as folder:
                    figures[f"{name}, {'resident' if resident else 'in tasks'}"] = round(
                        CASES[name](spark, Path(folder), resident=resident), 3
                    )
        else:
            figures |= {"epochs": epochs, "state": state, "cold start": cold_start, "starts": starts}[name](spark)
    return figures


def epochs(spark: SparkSession) -> dict[str, Any]:
    """Return what an epoch costs above what Spark needs for the same."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("plain", "resident", "in tasks"):
            (folder / part).mkdir()
        plain = plain_milliseconds(spark, folder / "plain")
        resident = epoch_milliseconds(spark, folder / "resident", resident=True)
        in_tasks = epoch_milliseconds(spark, folder / "in tasks", resident=False)
    return {
        "plain foreachBatch, ms": plain,
        "epoch ÷ plain, resident": round(resident / plain, 3),
        "epoch ÷ plain, in tasks": round(in_tasks / plain, 3),
    }


def state(spark: SparkSession) -> dict[str, Any]:
    """Return how an epoch's cost grows with the state, and with state on disk."""
    milliseconds = {}
    for name, keys, backend in (
        ("small", SMALL, "memory"),
        ("large", LARGE, "memory"),
        ("on disk", SMALL, DiskStateBackend()),
    ):
        with tempfile.TemporaryDirectory() as folder:
            milliseconds[name] = stateful_milliseconds(spark, Path(folder), keys, backend)
    return {
        f"epoch over {SMALL:,} keys, ms": milliseconds["small"],
        f"{LARGE:,} keys ÷ {SMALL:,}": round(milliseconds["large"] / milliseconds["small"], 3),
        "state on disk ÷ in memory": round(milliseconds["on disk"] / milliseconds["small"], 3),
    }


def cold_start(spark: SparkSession) -> dict[str, Any]:
    """Return what it takes until the first call, above Spark's own."""
    with tempfile.TemporaryDirectory() as folder:
        return {"first call after, s": round(cold_start_seconds(spark, Path(folder)), 3)}


def starts(spark: SparkSession) -> dict[str, Any]:
    """Return what the start of a host costs once its machine has another one, and the memory that it does not share."""
    with tempfile.TemporaryDirectory() as folder:
        processes, seconds = [], []
        for subtask in range(1 + STARTS):
            began = time.monotonic()
            processes.append(_started(Path(folder), subtask))
            seconds.append(time.monotonic() - began)
        processor = [_processor_seconds(process) for process in processes]
        unshared = [_unshared_bytes(process) for process in processes]
        for process in processes:
            os.kill(process, signal.SIGTERM)
    return {
        "start of a further host, s": round(statistics.median(seconds[1:]), 3),
        "its processor time, s": round(statistics.median(processor[1:]), 3),
        "memory that it does not share, MB": round(statistics.median(unshared[1:]) / 1e6, 1),
    }


def _started(folder: Path, subtask: int) -> int:
    """Start a host as a task does, and return its process once its operator is open."""
    options = OperatorOptions(function=as_function(Service(folder / "book", 0.0)), key_by=itemgetter("user"))
    schema = pa.schema([("id", pa.int64())])
    factory = EpochOperatorFactory(
        options=options,
        event_time=None,
        parallelism=128,
        max_parallelism=128,
        input_schema=schema,
        output_schema=schema,
        identity=Identity("benchmark"),
    )
    instructions = Instructions(
        place=files_of("benchmark", "", subtask, str(folder)),
        secret=b"benchmark",
        factory=cloudpickle.dumps(factory),
        settings=HostSettings(generation="", subtask_index=subtask),
    )
    starting = launch(instructions, MODULES)
    while True:
        try:
            next(starting)
        except StopIteration as started:
            return int(started.value.process.rpartition(":")[2])


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _unshared_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private"))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosting", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--cases", nargs="*", default=[*CASES, *OTHERS], help="which of them")
    parser.add_argument("--repeats", type=int, default=1, help="take the median of so many runs")
    arguments = parser.parse_args()
    for module in (sys.modules[__name__], _epochs):
        cloudpickle.register_pickle_by_value(module)
    runs = [measure(session(PARALLELISM), arguments.cases) for _ in range(arguments.repeats)]
    figures = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    if arguments.json:
        print(json.dumps(figures, indent=2, ensure_ascii=False))
    else:
        for name, figure in figures.items():
            print(f"{name:40} {figure}")


if __name__ == "__main__":
    main()
