"""Exactly once: the pipeline is stopped at each point of an epoch, and started again.

Every case is compared with what a run without faults gives: rows, state, calls and their idempotency keys. A seeded
sample runs by default; `--kills all` runs every case.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction
from async_op.spark import AsyncPipeline, epoch
from keygroups import ValueState
from snapshots import Snapshot, SnapshotStore

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = ValueState("count", pa.int64(), default=0)
FILES, ROWS_PER_FILE, KEYS = 3, 60, 7
ROWS = FILES * ROWS_PER_FILE
SLOW = 20
"""Every so many rows one outlasts the barrier."""

DRIVER_POINTS = [
    "before the subtasks",
    "after the subtasks",
    "after the manifest, reply lost",
    "before the sink",
    "in the sink",
    "after the sink",
]
WORKER_POINTS = ["in a call", "in a call made again", "before a subtask writes"]


@dataclass(frozen=True)
class Case:
    """Where the pipeline is stopped, in which epoch, and at which parallelism it starts again."""

    point: str
    kind: str
    restart_parallelism: int
    rescales: bool

    def __str__(self) -> str:
        return f"{self.point}-{self.kind}-{self.restart_parallelism}{'-rescale' if self.rescales else ''}"


def all_cases() -> list[Case]:
    kinds = [(point, kind) for point in DRIVER_POINTS for kind in ("first", "batch", "drain")]
    kinds += [(point, "batch") for point in WORKER_POINTS]
    return [
        Case(point, kind, parallelism, rescales)
        for point, kind in kinds
        for parallelism in (2, 3)
        for rescales in (False, True)
    ]


SAMPLE = 6


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        cases = all_cases()
        if metafunc.config.getoption("kills") != "all":
            cases = random.Random(metafunc.config.getoption("kills")).sample(cases, SAMPLE)
        metafunc.parametrize("case", cases, ids=str)


class Crash(RuntimeError):
    """The driver is gone."""


class Lookup(AsyncFunction):
    """Numbers the rows of each key, through a service that records its calls; may take its worker down, once."""

    states = (COUNT,)

    def __init__(self, folder: Path) -> None:
        self.service = folder / "calls"
        self.killed = folder / "killed"
        self.point: str | None = None

    async def open(self, runtime: Any) -> None:
        self.subtask = runtime.subtask_index

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        with self.service.open("a") as calls:
            calls.write(json.dumps([value["id"], ctx.idempotency_key]) + "\n")
        if value["id"] == ROWS_PER_FILE + 7:
            self.kill_at("in a call")
        if self.point == "in a call made again" and _calls(self.service).count([value["id"], ctx.idempotency_key]) > 1:
            self.kill_at("in a call made again")
        count = ctx.state(COUNT)
        await asyncio.sleep(0 if value["id"] % SLOW else 0.8)
        count.update(count.value() + 1)
        return [(value["id"], value["user"], count.value())]

    async def close(self) -> None:
        if self.subtask == 1:
            self.kill_at("before a subtask writes")

    def kill_at(self, point: str) -> None:
        if self.point == point and not self.killed.exists():
            self.killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def _calls(service: Path) -> list[list[Any]]:
    return [json.loads(line) for line in service.read_text().splitlines()]


class World:
    """What outlives a driver: input, checkpoint, snapshots, the service, and the sink's table."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.function = Lookup(folder)
        self.function.service.touch()
        (folder / "table").mkdir()
        for n in range(FILES):
            rows = spark.range(n * ROWS_PER_FILE, (n + 1) * ROWS_PER_FILE, 1, 1)
            rows.selectExpr("id", f"concat('u', id % {KEYS}) as user").write.mode("append").parquet(str(folder / "in"))

    def run(self, parallelism: int, *, rescales: bool = False, in_sink: Callable[[bool], None] | None = None) -> None:
        pipeline = AsyncPipeline(
            self.function,
            key_by="user",
            output_schema="id bigint, user string, count bigint",
            snapshots=self.folder / "snapshots",
            operator_id="lookup",
            parallelism=parallelism,
            max_parallelism=16,
            order_by="id",
            barrier_timeout=0.2,
        )

        def sink(batch: DataFrame, epoch: int) -> None:
            rows = [list(row) for row in batch.collect()]
            if in_sink is not None:
                in_sink(False)
            (self.folder / "table" / f"{epoch:04d}").write_text(json.dumps(rows))
            if in_sink is not None:
                in_sink(True)
            if rescales:
                pipeline.rescale({1: 4, 2: 3}.get(epoch, 2))

        stream = self.spark.readStream.schema("id bigint, user string").option("maxFilesPerTrigger", 1)
        query = pipeline.start(
            stream.parquet(str(self.folder / "in")),
            sink,
            checkpoint_location=self.folder / "checkpoint",
            trigger={"availableNow": True},
        )
        query.awaitTermination()

    @property
    def store(self) -> SnapshotStore:
        return SnapshotStore(self.folder / "snapshots", "lookup")

    def committed_rows(self) -> set[int]:
        """Return the rows whose outputs are committed, whether delivered or not."""
        rows = set[int]()
        for version in self.store.versions():
            manifest = self.store.load(version).manifest
            for file in manifest.files_of("output"):
                table = pq.read_table(self.folder / "snapshots" / "lookup" / file.path)
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
        calls = _calls(self.function.service)
        repeated = {row for row, _ in calls[calls_before:]} & committed_before
        assert not repeated
        keys = dict[int, set[str]]()
        for row, key in calls:
            keys.setdefault(row, set()).add(key)
        assert {len(found) for found in keys.values()} == {1}
        assert len(set.union(*keys.values())) == ROWS


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    yield World(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


class DriverFault:
    """Raises at one point of one epoch, once."""

    def __init__(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        self.case = case
        self.happened = False
        self.kind = ""
        run, run_subtasks, commit = epoch.EpochRunner._run, epoch._run_subtasks, epoch.EpochRunner._commit
        deliver = epoch.EpochRunner._deliver

        def traced_run(runner: epoch.EpochRunner, *arguments: Any) -> None:
            kind = arguments[-1]
            self.kind = "first" if runner.epoch == 0 else kind
            self.at("before the subtasks")
            run(runner, *arguments)

        def traced_subtasks(*arguments: Any) -> Any:
            reports = run_subtasks(*arguments)
            self.at("after the subtasks")
            return reports

        def traced_commit(*arguments: Any) -> Snapshot:
            snapshot = commit(*arguments)
            self.at("after the manifest, reply lost")
            return snapshot

        def traced_deliver(*arguments: Any) -> None:
            self.at("before the sink")
            deliver(*arguments)

        monkeypatch.setattr(epoch.EpochRunner, "_run", traced_run)
        monkeypatch.setattr(epoch, "_run_subtasks", traced_subtasks)
        monkeypatch.setattr(epoch.EpochRunner, "_commit", traced_commit)
        monkeypatch.setattr(epoch.EpochRunner, "_deliver", traced_deliver)

    def at(self, point: str) -> None:
        if not self.happened and (point, self.kind) == (self.case.point, self.case.kind):
            self.happened = True
            raise Crash(point)

    def in_sink(self, is_written: bool) -> None:
        self.at("after the sink" if is_written else "in the sink")


def test_a_pipeline_that_is_stopped_anywhere_goes_on_exactly_once(
    world: World, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = DriverFault(case, monkeypatch)
    world.function.point = case.point if case.point in WORKER_POINTS else None
    with pytest.raises(Exception, match=r".") as stopped:
        world.run(2, rescales=case.rescales, in_sink=fault.in_sink)
    assert fault.happened or world.function.killed.exists(), stopped.value
    committed, calls = world.committed_rows(), len(_calls(world.function.service))
    world.run(case.restart_parallelism, rescales=case.rescales)
    world.assert_exact()
    world.assert_calls(committed, calls)


def test_of_two_attempts_at_a_subtask_one_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    run_subtasks = epoch._run_subtasks

    def run_twice(*arguments: Any) -> Any:
        attempts = zip(run_subtasks(*arguments), run_subtasks(*arguments), strict=True)
        return [draw.choice(pair) for pair in attempts]

    monkeypatch.setattr(epoch, "_run_subtasks", run_twice)
    world.run(2, rescales=True)
    world.assert_exact()
    world.assert_calls(set(), 0)
