"""The service that a soak calls, and what the processes of a soak hold. Without Spark."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from async_op import AsyncFunction, CircuitBreaker, ExponentialBackoffRetry, RateLimit, Resilience
from keygroups import ValueState

KEYS = 50
TIMEOUT_SECONDS = 20
RESILIENCE = Resilience(circuit_breaker=CircuitBreaker(window=20, open_seconds=1.0), rate_limit=RateLimit(60))
RETRY = ExponentialBackoffRetry(100, 0.1, 2.0)
_COUNT = ValueState("count", pa.int64(), default=0)
_SLOW_EVERY = 50
_SLOW_SECONDS = 0.5
_FAILS_EVERY = 7
HANGS_EVERY = 301
_PERIOD_SECONDS = 90
_DOWN_SECONDS = 6
_BUSY_SECONDS = 20
_BUSY_DELAY_SECONDS = 0.2


def user_of(value: int) -> str:
    """Return the key of a row; one whose call hangs has a key of its own, so that no other row waits for it."""
    return f"hangs {value}" if hangs(value) else f"user {value % KEYS}"


def hangs(value: int) -> bool:
    """Tell whether the service never answers for a row."""
    return value % HANGS_EVERY == 1


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
        line = json.dumps([value["id"], ctx.idempotency_key, time.time()]) + "\n"
        with self._calls.open("a", encoding="utf-8") as calls:
            calls.write(line)
        await answer(value["id"], ctx.attempt)
        count = ctx.state(_COUNT)
        count.update(count.value() + 1)
        return [(value["id"], value["user"], count.value())]

    async def timeout(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        """Put out the row without a number."""
        return [(value["id"], value["user"], None)]


def write_epoch(folder: Path, epoch: int, rows: list[list[Any]]) -> None:
    """Replace what the table in a folder has of an epoch."""
    written = folder / f"epoch-{epoch}"
    written.write_text(json.dumps(rows), encoding="utf-8")
    written.replace(folder / "table" / f"{epoch}.json")


def entries(folder: str) -> int:
    """Return how many entries a folder in /proc has."""
    try:
        return len(os.listdir(folder))  # noqa: PTH208 - of /proc, where only the count matters
    except OSError:  # the process has ended meanwhile
        return 0


def files_below(folder: Path) -> int:
    """Return how many files there are in a folder and all of its folders."""
    return sum(len(files) for _, _, files in os.walk(folder))


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    try:
        status = Path(f"/proc/{pid}/statm").read_text(encoding="ascii")
    except OSError:  # it has ended meanwhile
        return 0.0
    return int(status.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def processes() -> Iterator[tuple[int, int]]:
    """Return each process and its group."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        yield int(status.parent.name), int(fields[2])


def children_of(pid: int) -> list[int]:
    """Return the child processes of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text(encoding="ascii").split())
        except OSError:  # the thread has ended meanwhile
            continue
    return found
