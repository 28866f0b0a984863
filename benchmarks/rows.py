"""What a row costs on its way through Spark, by the entry points that users call, against what they would write.

An enrichment (calls of 20 ms, capacity 1,000) against a pool of 1,000 coroutines in `mapInArrow`, in processor's time
of all Python workers and hosts; a keyed count against `transformWithState` with rows, in rows a second. Pipelines are
measured from their second micro-batch on, when workers and hosts have started. The case "tasks" runs what workers and
hosts run in this process, without Spark: least of all runs, in processor's time.

    python -m benchmarks.rows --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from async_op import AsyncDataStream, AsyncFunction
from async_op.options import OperatorOptions
from async_op.spark import AsyncPipeline
from benchmarks import _tasks
from benchmarks._session import session
from keygroups import ValueState

CORES = 2
CAPACITY = 1000
CALL_SECONDS = 0.02
KEYS = 10_000
INPUT = "id bigint, user string, price double"
ENRICHED = "id bigint, user string, price double, city string"
COUNTED = "id bigint, count bigint"
COUNT = ValueState("count", pa.int64(), default=0)
POOL, SPARKS = "pool in mapInArrow", "transformWithState, rows"
_MARK = "KEYGROUPS_BENCHMARK"


async def enriched(row: dict[str, Any]) -> tuple[Any, ...]:
    """Ask the service about a row."""
    await asyncio.sleep(CALL_SECONDS)
    return row["id"], row["user"], row["price"], "city"


class Enrich(AsyncFunction):
    """The enrichment as a function."""

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        return [await enriched(value)]


class Count(AsyncFunction):
    """Numbers the rows of each user."""

    states = (COUNT,)

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        count = ctx.state(COUNT)
        number = count.value() + 1
        count.update(number)
        return [(value["id"], number)]


class CountWithSpark(StatefulProcessor):
    """The same as Spark's own stateful function of rows."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "count bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        found = self.count.get()
        number = 0 if found is None else found[0]
        for row in rows:
            number += 1
            yield Row(id=row["id"], count=number)
        self.count.update((number,))

    def close(self) -> None: ...


def pool(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do what users write: for each batch, a pool of coroutines that share one iterator."""

    async def work(rows: Iterator[dict[str, Any]], results: list[tuple[Any, ...]]) -> None:
        for row in rows:
            results.append(await enriched(row))  # noqa: PERF401 - the others append meanwhile

    async def work_all(rows: Iterator[dict[str, Any]]) -> list[tuple[Any, ...]]:
        results: list[tuple[Any, ...]] = []
        await asyncio.gather(*[work(rows, results) for _ in range(CAPACITY)])
        return results

    for batch in batches:
        columns = zip(*asyncio.run(work_all(iter(batch.to_pylist()))), strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], ["id", "user", "price", "city"])


class PythonCpu:
    """Adds up the processor's time of all Python processes that Spark has started, also of those that have ended.

    They are known by a variable in their environment, which must be set before Spark starts; a thread looks for them.
    """

    def __init__(self) -> None:
        os.environ[_MARK] = str(uuid.uuid4())
        self._mark = f"{_MARK}={os.environ[_MARK]}".encode()
        self._ours: dict[int, bool] = {}
        self._seconds: dict[int, float] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def seconds(self) -> float:
        """Return the sum so far."""
        with self._lock:
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it has ended
                    self._look(process)
            return sum(self._seconds.values())

    def _look(self, process: Path) -> None:
        pid = int(process.name)
        if pid not in self._ours:
            self._ours[pid] = pid != os.getpid() and self._mark in (process / "environ").read_bytes()
        name, _, rest = (process / "stat").read_text().rpartition(")")
        if self._ours[pid] and "python" in name:
            self._seconds[pid] = sum(map(int, rest.split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def _watch(self) -> None:
        while True:
            self.seconds()
            time.sleep(0.1)


class Bench:
    """One session, its input files and what is measured on them."""

    def __init__(self, spark: SparkSession, cpu: PythonCpu, folder: Path, rows: int, batches: int) -> None:
        self.spark, self.cpu, self.folder = spark, cpu, folder
        self.rows, self.batches = rows, batches
        self.input = folder / "in"
        self.input.mkdir()
        self._runs = 0
        for batch in range(batches):
            ids = range(batch * rows, (batch + 1) * rows)
            users = pa.array([f"user-{number * 7919 % KEYS}" for number in ids])
            prices = pa.array([number * 0.5 for number in ids])
            file = self.input / f"{batch:04}.parquet"
            pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "user": users, "price": prices}), file)
            os.utime(file, (batch, batch))

    def transform(self, build: Callable[[DataFrame], DataFrame]) -> float:
        """Return the processor's time for a row of one batch transformation, in microseconds."""
        frame = self.spark.read.schema(INPUT).parquet(str(self.input)).repartition(CORES)
        before = self.cpu.seconds()
        build(frame).write.format("noop").mode("overwrite").save()
        return 1e6 * (self.cpu.seconds() - before) / (self.rows * self.batches)

    def pipeline(self, function: AsyncFunction, output_schema: str, **options: Any) -> tuple[float, float]:
        """Return the processor's time for a row of a pipeline, in microseconds, and its rows a second."""

        def start(home: Path, sink: Callable[[DataFrame, int], None]) -> Any:
            pipeline = AsyncPipeline(
                function,
                output_schema=output_schema,
                snapshots=home / "snapshots",
                operator_id="bench",
                parallelism=CORES,
                capacity=CAPACITY,
                **options,
            )
            checkpoint, trigger = home / "checkpoint", {"availableNow": True}
            return pipeline.start(self._stream(), sink, checkpoint_location=checkpoint, trigger=trigger)

        return self._measure(start)

    def transform_with_state(self) -> tuple[float, float]:
        """Return the same of Spark's own stateful function of rows."""

        def start(home: Path, sink: Callable[[DataFrame, int], None]) -> Any:
            users = self._stream().groupBy("user")
            counted = users.transformWithState(CountWithSpark(), COUNTED, outputMode="append", timeMode="none")
            writer = counted.writeStream.foreachBatch(sink).trigger(availableNow=True)
            return writer.option("checkpointLocation", str(home / "checkpoint")).start()

        return self._measure(start)

    def _measure(self, start: Callable[[Path, Callable[[DataFrame, int], None]], Any]) -> tuple[float, float]:
        self._runs += 1
        marks: list[float] = []

        def sink(frame: DataFrame, epoch: int) -> None:
            frame.write.format("noop").mode("overwrite").save()
            marks.append(self.cpu.seconds())

        query = start(self.folder / f"run-{self._runs}", sink)
        query.awaitTermination()
        microseconds = 1e6 * (marks[-1] - marks[0]) / (self.rows * (self.batches - 1))
        took = [one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["numInputRows"]][1:]
        return microseconds, 1000 * self.rows * len(took) / sum(took)

    def _stream(self) -> DataFrame:
        return self.spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).parquet(str(self.input))


def enrich(frame: DataFrame) -> DataFrame:
    """Return the enrichment as users of the transform write it."""
    return AsyncDataStream.unordered_wait(frame, Enrich(), output_schema=ENRICHED, capacity=CAPACITY)


def enrichment(bench: Bench, repeats: int, only: str) -> dict[str, float]:
    """Return the processor's time for a row, least of several runs in turn."""
    ways: dict[str, Callable[[], float]] = {
        POOL: lambda: bench.transform(lambda frame: frame.mapInArrow(pool, ENRICHED)),
        "transform": lambda: bench.transform(enrich),
        "pipeline, resident": lambda: bench.pipeline(Enrich(), ENRICHED, key_by=None)[0],
        "pipeline, in tasks": lambda: bench.pipeline(Enrich(), ENRICHED, key_by=None, resident=False)[0],
    }
    ways = {name: way for name, way in ways.items() if only in name or name == POOL}
    for name in ways.keys() & {POOL, "transform"}:
        ways[name]()  # workers start, and import what they need
    turns = [{name: way() for name, way in ways.items()} for _ in range(repeats)]
    return {name: min(turn[name] for turn in turns) for name in ways}


def counts(bench: Bench, repeats: int, only: str) -> dict[str, tuple[float, float]]:
    """Return the processor's time for a row and rows a second, the best of several runs in turn."""
    ways: dict[str, Callable[[], tuple[float, float]]] = {
        SPARKS: bench.transform_with_state,
        "pipeline, resident": lambda: bench.pipeline(Count(), COUNTED, key_by="user"),
        "pipeline, in tasks": lambda: bench.pipeline(Count(), COUNTED, key_by="user", resident=False),
    }
    ways = {name: way for name, way in ways.items() if only in name or name == SPARKS}
    turns = [{name: way() for name, way in ways.items()} for _ in range(repeats)]
    return {name: (min(t[name][0] for t in turns), max(t[name][1] for t in turns)) for name in ways}


def tasks(rows: int, repeats: int) -> list[dict[str, Any]]:
    """Return the processor's time for a row of what workers and hosts run, least of several runs in turn."""
    ids, names = range(rows), [f"user-{number * 7919 % KEYS}" for number in range(rows)]
    table = pa.table({"id": pa.array(ids, pa.int64()), "user": names, "price": [number * 0.5 for number in ids]})
    batches = table.to_batches(max_chunksize=10_000)
    enriched_schema = table.schema.append(pa.field("city", pa.string()))
    counted_schema = pa.schema([("id", pa.int64()), ("count", pa.int64())])
    enriching = OperatorOptions(function=Enrich(), capacity=CAPACITY)
    counting = OperatorOptions(function=Count(), capacity=CAPACITY, key_by=itemgetter("user"))
    ways: dict[str, Callable[[], int]] = {
        POOL: lambda: sum(batch.num_rows for batch in pool(iter(batches))),
        "transform": lambda: _tasks.transform(Enrich(), enriched_schema, batches, CAPACITY),
        "epoch of a host": lambda: _tasks.epoch(enriching, enriched_schema, batches),
        "keyed count, epoch of a host": lambda: _tasks.epoch(counting, counted_schema, batches),
    }
    turns = [{name: _tasks.microseconds_of(way) for name, way in ways.items()} for _ in range(repeats)]
    least = {name: min(turn[name] for turn in turns) for name in ways}
    return [
        {"case": f"tasks, {name}", "microseconds": took, "ratio": round(took / least[POOL], 2)}
        for name, took in least.items()
    ]


def figures(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the cases that were asked for."""
    found = tasks(arguments.rows, arguments.repeats) if "tasks" in arguments.cases else []
    if not {"enrichment", "count"} & set(arguments.cases):
        return found
    cpu = PythonCpu()
    spark = session(CORES)
    spark.conf.set("spark.sql.shuffle.partitions", CORES)
    store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", store)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(spark, cpu, Path(folder), arguments.rows, arguments.batches)
        if "enrichment" in arguments.cases:
            took = enrichment(bench, arguments.repeats, arguments.only)
            for name, microseconds in took.items():
                ratio = round(microseconds / took[POOL], 2)
                found.append({"case": f"enrichment, {name}", "microseconds": microseconds, "ratio": ratio})
        if "count" in arguments.cases:
            counted = counts(bench, arguments.repeats, arguments.only)
            for name, (microseconds, rows) in counted.items():
                ratio = round(rows / counted[SPARKS][1], 2)
                found.append({"case": f"count, {name}", "microseconds": microseconds, "rows": rows, "ratio": ratio})
    spark.stop()
    return found


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rows", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--cases", nargs="*", default=["tasks", "enrichment", "count"], help="which of them")
    parser.add_argument("--only", default="", help="only ways whose name has this text")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of a micro-batch")
    parser.add_argument("--batches", type=int, default=10, help="micro-batches")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each way (default: 3)")
    arguments = parser.parse_args()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    rows = figures(arguments)
    if arguments.json:
        json.dump({"results": rows}, sys.stdout, indent=2)
        return
    for row in rows:
        rest = f"{row['rows']:9.0f} rows/s" if "rows" in row else ""
        print(f"{row['case']:40} {row['microseconds']:7.1f} µs a row {row['ratio']:6.2f} {rest}")


if __name__ == "__main__":
    main()
