"""One run of the soak: a driver of its own, which its parent may kill at any moment.

It tells about each delivered epoch on stdout, with what the processes hold at that moment.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction, CircuitBreaker, ExponentialBackoffRetry, RateLimit, Resilience
from async_op.spark import AsyncPipeline, Retention
from benchmarks._session import session
from keygroups import ValueState

KEYS = 50
OPERATOR_ID = "soak"
MAX_PARALLELISM = 32
_COUNT = ValueState("count", pa.int64(), default=0)
_SLOW_EVERY = 50
_SLOW_SECONDS = 0.5
_FAILS_EVERY = 7
_HANGS_EVERY = 301
_PERIOD_SECONDS = 90
_DOWN_SECONDS = 6
_BUSY_SECONDS = 20
_BUSY_DELAY_SECONDS = 0.2
_TIMEOUT_SECONDS = 20
_RESILIENCE = Resilience(circuit_breaker=CircuitBreaker(window=20, open_seconds=1.0), rate_limit=RateLimit(60))
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


def user_of(value: int) -> str:
    """Return the key of a row; one whose call hangs has a key of its own, so that no other row waits for it."""
    return f"hangs {value}" if hangs(value) else f"user {value % KEYS}"


def hangs(value: int) -> bool:
    """Tell whether the service never answers for a row."""
    return value % _HANGS_EVERY == 1


async def answer(row: int, attempt: int) -> None:
    """Answer as the service does: now and then slowly, late or never, with errors, and at times not at all."""
    phase = time.time() % _PERIOD_SECONDS
    if phase < _DOWN_SECONDS or (row % _FAILS_EVERY == 0 and attempt == 1):
        raise ConnectionError("the service is down")
    if hangs(row):
        await asyncio.sleep(3600)
    is_busy = phase < _DOWN_SECONDS + _BUSY_SECONDS
    await asyncio.sleep(_SLOW_SECONDS if row % _SLOW_EVERY == 0 else _BUSY_DELAY_SECONDS if is_busy else 0.01)


class Lookup(AsyncFunction):
    """Numbers the rows of each key, through a service that writes down its calls; some outlast the barrier."""

    states = (_COUNT,)

    def __init__(self, calls: Path) -> None:
        self._calls = calls

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        """Write the call down, wait, and count."""
        line = json.dumps([value["id"], ctx.idempotency_key]) + "\n"
        with self._calls.open("a", encoding="utf-8") as calls:
            calls.write(line)
        await answer(value["id"], ctx.attempt)
        count = ctx.state(_COUNT)
        count.update(count.value() + 1)
        return [(value["id"], value["user"], count.value())]

    async def timeout(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        """Put out the row without a number."""
        return [(value["id"], value["user"], None)]


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
        held = [_resident_mb(pid) for pid in workers + hosts]
        places = Path(tempfile.gettempdir()).glob("keygroups-*/*")
        pids = (os.getpid(), self._java_pid)
        return {
            "driver, MB": _resident_mb(os.getpid()),
            "JVM, MB": _resident_mb(self._java_pid),
            "heap of the JVM, MB": self._heap,
            "largest worker or host, MB": max(held, default=0.0),
            "workers": len(workers),
            "hosts": len(hosts),
            "threads": threading.active_count(),
            "threads of the JVM": _entries(f"/proc/{self._java_pid}/task"),
            "open files": sum(_entries(f"/proc/{pid}/fd") for pid in pids),
            "open files of a host": max((_entries(f"/proc/{pid}/fd") for pid in hosts), default=0),
            "files of snapshots": sum(len(files) for _, _, files in os.walk(self._snapshots)),
            "files of hosts": sum(1 for _ in places),
        }

    def kill_host(self) -> list[str]:
        """Kill one of the hosts, if there is one, and tell of it."""
        for host in _hosts_of(self._java_pid)[:1]:
            os.kill(host, signal.SIGKILL)
            return ["host killed"]
        return []


def _entries(folder: str) -> int:
    try:
        return len(os.listdir(folder))  # noqa: PTH208 - of /proc, where only the count matters
    except OSError:  # the process has ended meanwhile
        return 0


def _resident_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/statm").read_text(encoding="ascii")
    except OSError:  # it has ended meanwhile
        return 0.0
    return int(status.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _workers_of(java_pid: int) -> list[int]:
    """Return the Python workers: children of the daemons that the JVM has started."""
    return [worker for daemon in _children_of(java_pid) for worker in _children_of(daemon)]


def _hosts_of(java_pid: int) -> list[int]:
    """Return the processes of operators: in the process groups of the daemons, and children of nobody there."""
    daemons = _children_of(java_pid)
    known = {*daemons, *_workers_of(java_pid)}
    return [pid for pid, group in _processes() if group in daemons and pid not in known]


def _processes() -> Iterator[tuple[int, int]]:
    """Return each process and its group."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        yield int(status.parent.name), int(fields[2])


def _children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text(encoding="ascii").split())
        except OSError:  # the thread has ended meanwhile
            continue
    return found


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
        written = folder / f"epoch-{epoch}"
        written.write_text(json.dumps(rows), encoding="utf-8")
        written.replace(folder / "table" / f"{epoch}.json")
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
        timeout=_TIMEOUT_SECONDS,
        retry=ExponentialBackoffRetry(100, 0.1, 2.0),
        resilience=_RESILIENCE,
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
    user = f"IF(value % {_HANGS_EVERY} = 1, concat('hangs ', value), concat('user ', value % {KEYS}))"
    return passing.selectExpr("value AS id", f"{user} AS user")


def start_arguments(settings: RunSettings) -> list[str]:
    """Return the command of a run."""
    return [sys.executable, "-m", "benchmarks._soak_run", json.dumps(asdict(settings))]


if __name__ == "__main__":
    run(RunSettings(**json.loads(sys.argv[1])))
