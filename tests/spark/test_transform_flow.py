"""Outputs leave while calls are under way, and whoever stops listening ends the operator."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from async_op import AsyncDataStream, AsyncFunction

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Logged(AsyncFunction):
    """The first five rows of a partition return at once, the others never. Life and death are logged."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def note(self, event: str) -> None:
        with self.log.open("a") as log:
            log.write(f"{event} {os.getpid()}\n")

    async def open(self, runtime: Any) -> None:
        self.calls = 0
        self.note("opened")

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        self.calls += 1
        if self.calls > 5:
            await asyncio.get_running_loop().create_future()
        return [(value["id"],)]

    async def close(self) -> None:
        self.note("closed")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = tmp_path / "log"
    log.touch()
    return log


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def _events(log: Path) -> list[str]:
    return [line.split()[0] for line in log.read_text().splitlines()]


def _gone(log: Path) -> bool:
    return not any(Path(f"/proc/{line.split()[1]}").exists() for line in log.read_text().splitlines())


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_a_limit_is_served_while_calls_are_under_way_and_ends_them(spark: SparkSession, log: Path, mode: str) -> None:
    frame = spark.range(0, 50, 1, 1)
    outputs = getattr(AsyncDataStream, f"{mode}_wait")(frame, Logged(log), output_schema="id bigint")
    assert sorted(row.id for row in outputs.limit(5).collect()) == [0, 1, 2, 3, 4]
    _until(lambda: _events(log) == ["opened", "closed"] and _gone(log))


@pytest.mark.parametrize("hard", [False, True])
def test_a_cancelled_job_leaves_nothing_behind(spark: SparkSession, log: Path, hard: bool) -> None:
    outputs = AsyncDataStream.unordered_wait(spark.range(0, 50, 1, 2), Logged(log), output_schema="id bigint")
    failures = []

    def work() -> None:
        spark.sparkContext.setJobGroup("slow", "cancelled by the test", interruptOnCancel=hard)
        try:
            outputs.collect()
        except Py4JJavaError as failure:
            failures.append(failure)

    job = InheritableThread(target=work)
    job.start()
    _until(lambda: _events(log).count("opened") == 2)
    spark.sparkContext.cancelJobGroup("slow")
    job.join()
    assert "cancel" in str(failures[0])
    _until(lambda: _gone(log))
    assert hard or _events(log).count("closed") == 2


def test_a_failure_downstream_closes_the_operator(spark: SparkSession, log: Path) -> None:
    outputs = AsyncDataStream.unordered_wait(spark.range(0, 50, 1, 1), Logged(log), output_schema="id bigint")
    with pytest.raises(PySparkException, match="the disk is full"):
        outputs.select(
            F.when(F.col("id") < 3, F.col("id")).otherwise(F.raise_error(F.lit("the disk is full")))
        ).collect()
    _until(lambda: _events(log) == ["opened", "closed"] and _gone(log))


@pytest.mark.usefixtures("reused_workers")
def test_a_worker_is_left_as_it_was_found(spark: SparkSession) -> None:
    class OnThreads(AsyncFunction):
        async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
            return [(await asyncio.to_thread(os.getpid),)]

    def threads(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            names = [f"{os.getpid()} {thread.name}" for thread in threading.enumerate()]
            yield pa.RecordBatch.from_pydict({"name": names})

    outputs = AsyncDataStream.unordered_wait(spark.range(0, 50, 1, 2), OnThreads(), output_schema="pid bigint")
    pids = {str(row.pid) for row in outputs.collect()}
    found = spark.range(0, 2, 1, 2).mapInArrow(threads, "name string").collect()
    reused = [row.name.split(" ", 1)[1] for row in found if row.name.split()[0] in pids]
    assert set(reused) == {"MainThread"}
