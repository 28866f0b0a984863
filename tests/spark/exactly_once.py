"""A pipeline over files whose every run is to be exact: a function that records its calls, and what to check.

As a program it runs the pipeline once, in a process of its own that a test may kill.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction
from async_op.spark import AsyncPipeline
from keygroups import ValueState
from snapshots import SnapshotStore
from snapshots.format.parquet import ParquetReader
from snapshots.java import use_java
from tests.spark.runs import Gate

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = ValueState("count", pa.int64(), default=0)
FILES, ROWS_PER_FILE, KEYS = 3, 60, 7
ROWS = FILES * ROWS_PER_FILE
SLOW = 20
"""Every so many rows one outlasts the epoch of its file when it is called first."""


class Lookup(AsyncFunction):
    """Numbers the rows of each key, through a service that records its calls.

    It may take its process or executor down, or stall an attempt of its task, once.
    """

    states = (COUNT,)

    def __init__(self, folder: Path) -> None:
        self.gate = Gate(folder / "sinks")
        self.service = folder / "calls"
        self.killed = folder / "killed"
        self.second_attempt = folder / "second attempt"
        self.point: str | None = None

    async def open(self, runtime: Any) -> None:
        self.subtask = runtime.subtask_index
        context = TaskContext.get()
        if context is not None and context.attemptNumber():
            self.second_attempt.touch()

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        with self.service.open("a") as calls:
            calls.write(json.dumps([value["id"], ctx.idempotency_key]) + "\n")
        if value["id"] == ROWS_PER_FILE + 7:
            self.kill_at("in a call")
            self.kill_at("in a call, the executor", executor_of_this_process)
            if self.point == "stall" and not self.killed.exists():
                self.killed.touch()
                time.sleep(3600)  # noqa: ASYNC251 - the barrier, too, would end a stall that leaves the loop free
        is_slow = value["id"] % SLOW == 0
        if is_slow and calls_of(self.service).count([value["id"], ctx.idempotency_key]) > 1:
            self.kill_at("in a call made again")
            is_slow = False
        count = ctx.state(COUNT)
        await self.gate.passed(1 + value["id"] // ROWS_PER_FILE if is_slow else 0)
        count.update(count.value() + 1)
        return [(value["id"], value["user"], count.value())]

    async def close(self) -> None:
        if self.subtask == 1:
            self.kill_at("before a subtask writes")

    def kill_at(self, point: str, process: Callable[[], int] = os.getpid) -> None:
        if self.point == point and not self.killed.exists():
            self.killed.touch()
            os.kill(process(), signal.SIGKILL)


def executor_of_this_process() -> int:
    """Return the process of the executor: it has started the daemon, whose group this one is in."""
    answer = subprocess.run(["ps", "-o", "ppid=", "-p", str(os.getpgid(0))], check=True, stdout=subprocess.PIPE)
    return int(answer.stdout)


def calls_of(service: Path) -> list[list[Any]]:
    return [json.loads(line) for line in service.read_text().splitlines()]


class World:
    """What outlives a driver: input, checkpoint, snapshots, the service, and the sink's table."""

    def __init__(
        self,
        folder: Path,
        snapshots: str | None = None,
        storage_options: dict[str, Any] | None = None,
        *,
        resident: bool = False,
    ) -> None:
        self.folder = folder
        self.snapshots = snapshots or str(folder / "snapshots")
        self.storage_options = storage_options
        self.resident = resident
        self.function = Lookup(folder)

    def prepare(self) -> None:
        """Write the input."""
        self.function.service.touch()
        (self.folder / "table").mkdir()
        (self.folder / "in").mkdir()
        for start in range(0, ROWS, ROWS_PER_FILE):
            ids = range(start, start + ROWS_PER_FILE)
            table = pa.table({"id": list(ids), "user": [f"u{n % KEYS}" for n in ids]})
            path = self.folder / "in" / f"{start}.parquet"
            pq.write_table(table, path)
            # Spark takes the oldest first.
            os.utime(path, (start, start))

    def run(
        self,
        spark: SparkSession,
        parallelism: int,
        *,
        rescales: bool = False,
        in_sink: Callable[[bool], None] | None = None,
        meanwhile: Callable[[AsyncPipeline, Any], None] | None = None,
    ) -> AsyncPipeline:
        """Run until nothing is in flight; returns the pipeline. `meanwhile` gets it and its query."""
        pipeline = AsyncPipeline(
            self.function,
            key_by="user",
            output_schema="id bigint, user string, count bigint",
            snapshots=self.snapshots,
            storage_options=self.storage_options,
            operator_id="lookup",
            parallelism=parallelism,
            max_parallelism=16,
            order_by="id",
            barrier_timeout=0.2,
            resident=self.resident,
        )

        def sink(batch: DataFrame, epoch: int) -> None:
            rows = [list(row) for row in batch.collect()]
            # After a crash, Spark may make one micro-batch of two files; calls would wait for ever for the second sink.
            files = 1 + max((row[0] for row in rows), default=0) // ROWS_PER_FILE
            self.function.gate.count(max(1, files - self.function.gate.counted()))
            if in_sink is not None:
                in_sink(False)
            written = self.folder / f"table-{epoch}"
            written.write_text(json.dumps(rows))
            written.replace(self.folder / "table" / f"{epoch:04d}")
            if in_sink is not None:
                in_sink(True)
            if rescales:
                pipeline.rescale({1: 4, 2: 3}.get(epoch, 2))

        stream = spark.readStream.schema("id bigint, user string").option("maxFilesPerTrigger", 1)
        query = pipeline.start(
            stream.parquet(str(self.folder / "in")),
            sink,
            checkpoint_location=self.folder / "checkpoint",
            trigger={"availableNow": True},
        )
        if meanwhile is not None:
            meanwhile(pipeline, query)
        query.awaitTermination()
        return pipeline

    @property
    def store(self) -> SnapshotStore:
        return SnapshotStore(self.snapshots, "lookup", storage_options=self.storage_options)

    def calls(self) -> list[list[Any]]:
        """Return the row and the idempotency key of each call."""
        return calls_of(self.function.service)

    def committed_rows(self) -> set[int]:
        """Return the rows whose outputs are committed, whether delivered or not."""
        rows = set[int]()
        for version in self.store.versions():
            snapshot = self.store.load(version)
            for file in snapshot.manifest.files_of("output"):
                table = ParquetReader(snapshot.folder, file).read_all()
                rows.update(table.column("id").to_pylist())
        return rows

    def assert_exact(self) -> None:
        """Every row is delivered once with the right count, and the state is that of all rows."""
        table = [row for path in sorted((self.folder / "table").iterdir()) for row in json.loads(path.read_text())]
        assert sorted(table) == [[n, f"u{n % KEYS}", n // KEYS + 1] for n in range(ROWS)]
        for user in range(KEYS):
            counts = [row[2] for row in table if row[1] == f"u{user}"]
            assert counts == sorted(counts), "the order of a key holds from epoch to epoch"
        latest = self.store.latest()
        assert latest is not None
        assert latest.in_flight_count == 0
        state = latest.to_arrow("count").to_pydict()
        wanted = {f"u{user}": len(range(user, ROWS, KEYS)) for user in range(KEYS)}
        assert dict(zip(state["key"], state["value"], strict=True)) == wanted
        assert self.store.verify().ok

    def assert_calls(self, committed_before: set[int], calls_before: int) -> None:
        """No call is repeated whose output was committed; every repeated one has its old idempotency key."""
        calls = self.calls()
        repeated = {row for row, _ in calls[calls_before:]} & committed_before
        assert not repeated
        keys = dict[int, set[str]]()
        for row, key in calls:
            keys.setdefault(row, set()).add(key)
        assert {len(found) for found in keys.values()} == {1}
        assert len(set.union(*keys.values())) == ROWS


def session(master: str, **options: str) -> SparkSession:
    """Return a session of this process."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("keygroups tests")
    loopback = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
    loopback["spark.ui.showConsoleProgress"] = "false"
    for name, value in (loopback | options).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    """Run the pipeline as the one argument, in JSON, says; tells about each delivered epoch on stdout."""
    settings = json.loads(sys.argv[1])
    storage = settings.get("snapshots"), settings.get("storage_options")
    world = World(Path(settings["folder"]), *storage, resident=settings.get("resident", False))
    world.function.point = settings.get("point")
    spark = session(settings["master"], **settings.get("options", {}))
    tell = lambda is_written: _tell(f"sink {int(is_written)}")  # noqa: E731
    pipeline = world.run(spark, settings["parallelism"], rescales=settings.get("rescales", False), in_sink=tell)
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    parallelism = [one.parallelism for one in pipeline.progress()]
    _tell(json.dumps({"parallelism": parallelism, "executors": executors}))
    spark.stop()


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
