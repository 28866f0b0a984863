"""What tests do as clients of a Spark Connect server, each client a process of its own.

As a program: ``python -m tests.spark.connect_client URL FOLDER CASE``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction
from async_op.connectors import KafkaSink, UnwritableValue
from async_op.connectors.epoch_rows import SinkRows
from async_op.spark import AsyncPipeline, ConnectQuery, EpochFailed
from keygroups import ConfigError, ValueState
from snapshots import SnapshotStore
from tests.spark.connect_processes import session_of
from tests.spark.exactly_once import World

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = ValueState("count", pa.int64(), default=0)
KEYS, ROWS = 7, 40


def kill_once(folder: Path, at: bool, parent: bool, is_written: bool) -> None:
    """Kill the process of the sink, which is the worker, or the server above it, once, before or after it writes."""
    killed = folder / "killed"
    if is_written is at and not killed.exists():
        killed.write_text(str(os.getpid()))
        os.kill(os.getppid() if parent else os.getpid(), signal.SIGKILL)


def exact(spark: SparkSession, folder: Path, *, parallelism: int = 2, **options: Any) -> dict[str, Any]:
    """Run the pipeline of `World` until nothing is in flight."""
    pipeline = World(folder, resident=True).run(spark, parallelism, **options)
    epochs = pipeline.progress()
    return {"parallelism": [one.parallelism for one in epochs], "hosts": sorted({*epochs[-1].hosts} if epochs else [])}


def killed(spark: SparkSession, folder: Path, *, at: bool, parent: bool = False) -> dict[str, Any]:
    """Run it until its worker is killed."""
    try:
        exact(spark, folder, in_sink=partial(kill_once, folder, at, parent))
    except StreamingQueryException:
        return {}
    raise AssertionError("the worker was not killed")


class Gated(AsyncFunction):
    """Numbers the rows of each key, and records its calls. Every tenth waits until the gate is open, and may fail."""

    states = (COUNT,)

    def __init__(self, folder: Path, fails: bool = False) -> None:
        self.gate = folder / "gate"
        self.calls = folder / "calls"
        self.fails = fails

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        with self.calls.open("a") as calls:
            calls.write(f"{value['id']}\n")
        while value["id"] % 10 == 0 and not self.gate.exists():
            await asyncio.sleep(0.05)
        if self.fails and value["id"] % 10 == 0:
            raise ValueError("the service said no")
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(value["id"], count.value())]


class Gates:
    """A query that goes on until it is stopped, over files that come one by one."""

    def __init__(self, spark: SparkSession, folder: Path, barrier_timeout: float | None = 0.1, **options: Any) -> None:
        self.spark = spark
        self.folder = folder
        self.files = 0
        self.gate = folder / "gate"
        (folder / "table").mkdir(parents=True)
        self.write_file()
        function = Gated(folder, **options)
        self.pipeline = AsyncPipeline(
            function,
            key_by="user",
            output_schema="id bigint, count bigint",
            snapshots=folder / "snapshots",
            operator_id="gated",
            parallelism=2,
            max_parallelism=16,
            barrier_timeout=barrier_timeout,
        )
        table, raises = folder / "table", folder / "raises"

        def sink(batch: DataFrame, epoch: int) -> None:
            if raises.exists():
                raise {"SystemExit": SystemExit, "CancelledError": asyncio.CancelledError}[raises.read_text()]("no")
            rows = [list(row) for row in batch.collect()]
            (table / f"{epoch}").write_text(json.dumps(rows))

        stream = spark.readStream.schema("id bigint, user string").parquet(str(folder / "in"))
        query = self.pipeline.start(stream, sink, checkpoint_location=folder / "checkpoint")
        assert isinstance(query, ConnectQuery)
        self.query = query

    def write_file(self) -> None:
        rows = self.spark.range(self.files * ROWS, (self.files + 1) * ROWS, 1, 1)
        rows.selectExpr("id", f"concat('u', id % {KEYS}) as user").write.mode("append").parquet(str(self.folder / "in"))
        self.files += 1

    def wait(self, for_what: Callable[[], object]) -> None:
        until = time.monotonic() + 120
        while not for_what():
            assert self.query.isActive, self.query.exception()
            assert time.monotonic() < until, self.pipeline.progress()
            time.sleep(0.2)

    @property
    def batches(self) -> list[Any]:
        return [one for one in self.pipeline.progress() if one.kind == "batch"]

    @property
    def in_flight(self) -> int:
        latest = SnapshotStore(self.folder / "snapshots", "gated").latest()
        assert latest is not None
        return latest.in_flight_count

    @property
    def calls(self) -> list[int]:
        calls = self.folder / "calls"
        return sorted(map(int, calls.read_text().split())) if calls.exists() else []

    def rows(self) -> list[list[int]]:
        return sorted(row for path in (self.folder / "table").iterdir() for row in json.loads(path.read_text()))


def from_the_client(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Rescale, drain and stop a query from the client."""
    gates = Gates(spark, folder)
    gates.wait(lambda: gates.batches)
    assert gates.in_flight > 0
    gates.pipeline.rescale(3)
    gates.write_file()
    gates.wait(lambda: len(gates.batches) == 2)
    assert [one.parallelism for one in gates.batches] == [2, 3]
    gates.gate.touch()
    gates.pipeline.drain()
    assert gates.in_flight == 0
    gates.gate.unlink()
    gates.write_file()
    gates.wait(lambda: len(gates.batches) == 3)
    assert gates.in_flight > 0
    newest = gates.query.lastProgress
    assert newest is not None
    assert newest["observedMetrics"]["keygroups"].parallelism == 3
    assert "resident" in str(gates.pipeline.explain())
    gates.gate.touch()
    gates.query.stop(drain=True, timeout=60.0)
    assert not gates.query.isActive
    assert gates.in_flight == 0
    assert [row[0] for row in gates.rows()] == list(range(3 * ROWS))
    for user in range(KEYS):
        counts = [count for number, count in gates.rows() if number % KEYS == user]
        assert sorted(counts) == list(range(1, len(counts) + 1))
    try:
        gates.pipeline.drain()
    except ConfigError as error:
        assert "start it again" in str(error)
    else:
        raise AssertionError("there is no worker to drain")
    return {"hosts": sorted({host for one in gates.pipeline.progress() for host in one.hosts})}


def stopping(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Stop a query in the middle of a micro-batch that waits for its calls."""
    gates = Gates(spark, folder, barrier_timeout=None)
    gates.wait(lambda: len(gates.calls) >= ROWS // 2)
    exchange = gates.query._exchange

    def open_gate() -> None:
        while not getattr(exchange.wishes(), "holds", False):
            time.sleep(0.1)
        gates.gate.touch()

    opener = threading.Thread(target=open_gate)
    opener.start()
    gates.query.stop(drain=True, timeout=60.0)
    opener.join()
    assert gates.query.exception() is None
    assert gates.in_flight == 0
    assert [row[0] for row in gates.rows()] == gates.calls == list(range(ROWS)), gates.calls
    return {}


def cutting_off(spark: SparkSession, folder: Path, **how: Any) -> dict[str, Any]:
    """Stop a query in the middle of a micro-batch whose calls take longer than the client waits."""
    gates = Gates(spark, folder, barrier_timeout=None)
    gates.wait(lambda: len(gates.calls) >= ROWS // 2)
    gates.query.stop(**how)
    assert gates.query.exception() is None
    assert len(gates.rows()) + gates.in_flight == ROWS
    assert len({row[0] for row in gates.rows()}) == len(gates.rows()) > 0
    assert len(set(gates.calls)) == len(gates.calls)
    return {}


def leaving(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Leave a query that is running."""
    gates = Gates(spark, folder)
    gates.wait(lambda: gates.batches)
    return {"hosts": gates.batches[0].hosts}


def failing_in_a_micro_batch(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """See what the client sees of a micro-batch that fails."""
    (folder / "gate").touch()
    assert_failed(Gates(spark, folder, fails=True))
    return {}


def assert_failed(gates: Gates) -> None:
    """Wait until the query has failed, for the reason that its function gives."""
    try:
        gates.query.awaitTermination()
    except EpochFailed as failed:
        assert "the service said no" in failed.reason
    else:
        raise AssertionError("an epoch has failed")
    assert isinstance(gates.query.exception(), EpochFailed)


def failing(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """See what the client sees of an epoch without input that fails, and of a sink that cannot be sent."""
    gates = Gates(spark, folder, fails=True)
    gates.wait(lambda: gates.batches)
    gates.gate.touch()
    assert_failed(gates)
    stream = spark.readStream.schema("id bigint, user string").parquet(str(folder / "in"))
    held = threading.Lock()
    try:
        gates.pipeline.start(stream, lambda batch, epoch: held.locked(), checkpoint_location=folder / "checkpoint")
    except ConfigError as error:
        assert error.name == "sink"
    else:
        raise AssertionError("a lock cannot be sent")
    return {}


def interrupted(spark: SparkSession, folder: Path, *, error: str) -> dict[str, Any]:
    """See that whatever the sink raises fails the query: in a micro-batch, and in an epoch without input."""
    told = f"ended with {error}: no, which is not an Exception"
    (folder / "batch").mkdir()
    for flag, content in (("gate", ""), ("raises", error)):
        (folder / "batch" / flag).write_text(content)
    gates = Gates(spark, folder / "batch", barrier_timeout=None)
    try:
        gates.query.awaitTermination()
    except EpochFailed as failed:
        assert told in str(failed), failed
    else:
        raise AssertionError("a micro-batch has failed")

    gates = Gates(spark, folder / "idle")
    gates.wait(lambda: gates.batches)
    for flag, content in (("raises", error), ("gate", "")):
        (folder / "idle" / flag).write_text(content)
    try:
        gates.query.awaitTermination()
    except EpochFailed as failed:
        assert told in str(failed), failed
    else:
        raise AssertionError("an epoch without input has failed")
    return {}


class MortalSink(KafkaSink):
    """Kills its process, once, when it has written the first epoch."""

    def __init__(self, folder: Path) -> None:
        server, topic = (folder / "topic").read_text().split()
        super().__init__(topic, "into-kafka", {"bootstrap.servers": server, "log_level": 0})
        self.folder = folder

    def write_rows(self, rows: SinkRows, epoch: int) -> None:
        super().write_rows(rows, epoch)
        kill_once(self.folder, at=True, parent=False, is_written=True)


async def encode(row: dict[str, Any]) -> dict[str, Any]:
    """Return a record."""
    return {"key": row["user"], "value": f"{row['id']}"}


def into_kafka(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Write into a topic until the worker is killed, and to the end when started again."""
    spark.range(0, ROWS, 1, 1).selectExpr("id", "string(id) as user").write.mode("overwrite").parquet(
        str(folder / "in")
    )
    stream = spark.readStream.schema("id bigint, user string").parquet(str(folder / "in"))

    def start(output_schema: str) -> Any:
        pipeline = AsyncPipeline(
            encode,
            key_by="user",
            output_schema=output_schema,
            snapshots=folder / "snapshots",
            operator_id="into_kafka",
            barrier_timeout=None,
            parallelism=1,
        )
        where = {"checkpoint_location": folder / "checkpoint", "trigger": {"availableNow": True}}
        return pipeline.start(stream, MortalSink(folder), **where)

    try:
        start("key string, value bigint")
    except UnwritableValue as error:
        assert "'value'" in error.reason
    else:
        raise AssertionError("a number is no value")
    try:
        start("key string, value string").awaitTermination()
    except StreamingQueryException:
        start("key string, value string").awaitTermination()
        return {}
    raise AssertionError("the worker was not killed")


CASES: dict[str, Callable[..., dict[str, Any]]] = {
    "exact": partial(exact, rescales=True),
    "restart": partial(exact, parallelism=3),
    "killed after the sink": partial(killed, at=True),
    "server killed in the sink": partial(killed, at=False, parent=True),
    "from the client": from_the_client,
    "stopping": stopping,
    "stopping too late": partial(cutting_off, drain=True, timeout=1.0),
    "stopping at once": cutting_off,
    "leaving": leaving,
    "failing": failing,
    "failing in a micro-batch": failing_in_a_micro_batch,
    "interrupted by SystemExit": partial(interrupted, error="SystemExit"),
    "interrupted by CancelledError": partial(interrupted, error="CancelledError"),
    "into Kafka": into_kafka,
}


def main() -> None:
    """Run one case; prints what it returns."""
    url, folder, case = sys.argv[1:]
    with session_of(url) as spark:
        told = CASES[case](spark, Path(folder))
    print(json.dumps(told))  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
