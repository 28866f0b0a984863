"""One run of the soak: a driver of its own, which its parent may kill at any moment.

It tells about each delivered epoch on stdout, with what the processes hold at that moment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from async_op.spark import AsyncPipeline, Retention
from benchmarks._session import session
from benchmarks._soak_service import (
    HANGS_EVERY,
    KEYS,
    RESILIENCE,
    RETRY,
    TIMEOUT_SECONDS,
    Lookup,
    children_of,
    entries,
    files_below,
    processes,
    resident_mb,
    write_epoch,
)

OPERATOR_ID = "soak"
MAX_PARALLELISM = 32
_BARRIER_SECONDS = 0.2
_QUIET_SECONDS = 3
_QUIET_EVERY = 4
_RESCALE_EVERY = 10
_KILL_EVERY = 23
_COLLECT_EVERY = 5


@dataclass(frozen=True)
class RunSettings:
    """What a run is told.

    Attributes
    ----------
    folder : str
        Where everything is that outlives a run.
    parallelism : int
        That it begins with.
    epochs : int
        After so many it stops by itself.
    rows_per_second : int
        Of the source.
    is_resident : bool
        Whether operators live in hosts.
    is_last : bool
        Finish what is in flight.
    """

    folder: str
    parallelism: int
    epochs: int
    rows_per_second: int
    is_resident: bool
    is_last: bool


def passes(value: int, rows_per_second: int) -> bool:
    """Tell whether the filter lets a row through: of every four times three seconds the last gives nothing."""
    is_quiet = value // (rows_per_second * _QUIET_SECONDS) % _QUIET_EVERY == _QUIET_EVERY - 1
    return value % 3 != 0 and not is_quiet


class Sampler:
    """What the processes of a run hold: the driver, its JVM, and the Python workers."""

    def __init__(self, spark: SparkSession, snapshots: Path) -> None:
        self._snapshots = snapshots
        self._heap = 0.0
        self._samples = 0
        self._java = spark.sparkContext._jvm.java.lang
        self._java_pid = self._java.ProcessHandle.current().pid()

    def sample(self) -> dict[str, float]:
        """Return it by name; the heap is looked at now and then, since that needs a collection."""
        if self._samples % _COLLECT_EVERY == 0:
            self._java.System.gc()
            runtime = self._java.Runtime.getRuntime()
            self._heap = (runtime.totalMemory() - runtime.freeMemory()) / 2**20
        self._samples += 1
        workers, hosts = _workers_of(self._java_pid), _hosts_of(self._java_pid)
        held = [resident_mb(pid) for pid in workers + hosts]
        places = Path(tempfile.gettempdir()).glob("keygroups-*/*")
        pids = (os.getpid(), self._java_pid)
        return {
            "driver, MB": resident_mb(os.getpid()),
            "JVM, MB": resident_mb(self._java_pid),
            "heap of the JVM, MB": self._heap,
            "largest worker or host, MB": max(held, default=0.0),
            "workers": len(workers),
            "hosts": len(hosts),
            "threads": threading.active_count(),
            "threads of the JVM": entries(f"/proc/{self._java_pid}/task"),
            "open files": sum(entries(f"/proc/{pid}/fd") for pid in pids),
            "open files of a host": max((entries(f"/proc/{pid}/fd") for pid in hosts), default=0),
            "files of snapshots": files_below(self._snapshots),
            "files of hosts": sum(1 for _ in places),
        }

    def kill_host(self) -> list[str]:
        """Kill one of the hosts, if there is one, and tell of it."""
        for host in _hosts_of(self._java_pid)[:1]:
            os.kill(host, signal.SIGKILL)
            return ["host killed"]
        return []


def _workers_of(java_pid: int) -> list[int]:
    """Return the Python workers: children of the daemons that the JVM has started."""
    return [worker for daemon in children_of(java_pid) for worker in children_of(daemon)]


def _hosts_of(java_pid: int) -> list[int]:
    """Return the processes of operators: in the process groups of the daemons, and children of nobody there."""
    daemons = children_of(java_pid)
    known = {*daemons, *_workers_of(java_pid)}
    return [pid for pid, group in processes() if group in daemons and pid not in known]


class Sink:
    """Replaces the table's part of an epoch, and tells about it; rescales, and kills a host, now and then."""

    def __init__(self, settings: RunSettings, sampler: Sampler) -> None:
        self.done = threading.Event()
        self.pipeline: AsyncPipeline
        self._settings = settings
        self._sampler = sampler
        self._delivered = 0

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        """Write an epoch."""
        rows = [list(row) for row in batch.collect()]
        folder = Path(self._settings.folder)
        write_epoch(folder, epoch, rows)
        if epoch % _RESCALE_EVERY == 0:
            self.pipeline.rescale(1 + epoch // _RESCALE_EVERY % 4)
        events = self._sampler.kill_host() if epoch % _KILL_EVERY == 0 else []
        found = {"epoch": epoch, "rows": len(rows), "events": events} | self._sampler.sample() | self._last_epoch()
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        self._delivered += 1
        if self._delivered >= self._settings.epochs:
            self.done.set()

    def _last_epoch(self) -> dict[str, float]:
        """Return what is known of the newest epoch that is over: this one is not yet."""
        progress = self.pipeline.progress()
        if not progress:
            return {}
        last = progress[-1]
        return {
            "parallelism": last.parallelism,
            "epoch, ms": 1000 * (last.run_seconds + last.commit_seconds),
            "calls": last.calls,
            "retries": last.retries,
            "timeouts": last.timeouts,
            "in flight": last.in_flight,
        }


def run(settings: RunSettings) -> None:
    """Go on where the run before has ended."""
    folder = Path(settings.folder)
    spark = session(2)
    spark.sparkContext.setLogLevel("ERROR")
    sink = Sink(settings, Sampler(spark, folder / "snapshots"))
    sink.pipeline = pipeline = AsyncPipeline(
        Lookup(folder / "calls"),
        key_by="user",
        output_schema="id bigint, user string, count bigint",
        snapshots=folder / "snapshots",
        operator_id=OPERATOR_ID,
        parallelism=settings.parallelism,
        max_parallelism=MAX_PARALLELISM,
        timeout=TIMEOUT_SECONDS,
        retry=RETRY,
        resilience=RESILIENCE,
        resident=settings.is_resident,
        barrier_timeout=_BARRIER_SECONDS,
        retention=Retention(keep_last=5, min_age=10.0),
    )
    query = pipeline.start(rows_of(spark, settings.rows_per_second), sink, checkpoint_location=folder / "checkpoint")
    while not sink.done.wait(1) and query.isActive:
        pass
    query.stop()
    if settings.is_last:
        pipeline.drain()
    query.awaitTermination()
    spark.stop()


def rows_of(spark: SparkSession, rows_per_second: int) -> DataFrame:
    """Return the source: rows by the clock, of which a filter leaves some, for seconds none."""
    seconds = rows_per_second * _QUIET_SECONDS
    rate = spark.readStream.format("rate").option("rowsPerSecond", rows_per_second).load()
    passing = rate.where(f"value % 3 != 0 AND value div {seconds} % {_QUIET_EVERY} != {_QUIET_EVERY - 1}")
    user = f"IF(value % {HANGS_EVERY} = 1, concat('hangs ', value), concat('user ', value % {KEYS}))"
    return passing.selectExpr("value AS id", f"{user} AS user")


if __name__ == "__main__":
    run(RunSettings(**json.loads(sys.argv[1])))
