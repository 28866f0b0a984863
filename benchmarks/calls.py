"""How many functions of the packages an element runs through, and how often it goes from one module to another.

These are counts, not times, so they are the same on every machine. They say how far a reader must go to follow an
element from the source to the sink, and most of what an element costs beside its call.

    python -m benchmarks.calls --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pyarrow as pa

from async_op import AsyncDataStream, AsyncFunction, InvocationContext, Job, Step
from async_op.options import OperatorOptions
from benchmarks._tasks import epoch
from keygroups import ValueState

PACKAGES = ("async_op", "keygroups", "snapshots")
KEYS = 100
COUNT = ValueState("count", pa.int64(), default=0)


class Counting(AsyncFunction):
    """Counts the elements of each key."""

    states = (COUNT,)

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        """Count one."""
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(value["id"],)]


def key_of(value: Any) -> int:
    """Return the key of an element."""
    return int(value["id"]) % KEYS


def rows(count: int) -> list[dict[str, int]]:
    """Return elements."""
    return [{"id": number} for number in range(count)]


def through_stream(count: int) -> None:
    """Run elements through a stream."""

    async def run() -> None:
        async for _ in AsyncDataStream.key_ordered_wait(rows(count), Counting(), key_by=key_of, capacity=1000):
            pass

    asyncio.run(run())


def through_host(count: int) -> None:
    """Run elements through what a host of Spark runs."""
    options = OperatorOptions(function=Counting(), capacity=1000, key_by=key_of, mode="key_ordered")
    batches = pa.Table.from_pylist(rows(count)).to_batches(max_chunksize=1000)
    assert epoch(options, pa.schema([("id", pa.int64())]), batches) == count


def through_job(count: int) -> None:
    """Run elements through a job."""
    step = Step(Counting(), name="count", capacity=1000, key_by=key_of, mode="key_ordered")
    with tempfile.TemporaryDirectory() as folder:
        job = Job(
            rows(count), [step], lambda outputs, epoch: None, snapshots=folder, job_id="calls", snapshot_interval=3600.0
        )
        asyncio.run(job.run())


DOORS: dict[str, Callable[[int], None]] = {"stream": through_stream, "host": through_host, "job": through_job}


def counted(run: Callable[[int], None], elements: int) -> tuple[int, int]:
    """Return the calls of Python functions of the packages on all threads, and the changes of module among them."""
    calls = changes = 0
    last = threading.local()

    def look(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls, changes
        if event != "call":
            return
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in PACKAGES:
            calls += 1
            changes += module != getattr(last, "module", None)
            last.module = module

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        run(elements)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # as documented
    return calls, changes


def per_element(run: Callable[[int], None], elements: int) -> tuple[float, float]:
    """Return the calls and the changes of module that one more element adds."""
    run(elements)  # what is only once for a process, such as imports and caches
    few, many = counted(run, elements), counted(run, 3 * elements)
    calls, changes = ((more - less) / (2 * elements) for less, more in zip(few, many, strict=True))
    return calls, changes


def measure(elements: int) -> list[dict[str, Any]]:
    """Return a row for each door."""
    results = []
    for door, run in DOORS.items():
        calls, changes = per_element(run, elements)
        results.append({"door": door, "calls": round(calls, 1), "changes_of_module": round(changes, 1)})
    return results


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--elements", type=int, default=2000, help="in the smaller of two runs (default: 2000)")
    parser.add_argument("--repeats", type=int, default=1, help="ignored: counts do not vary")
    arguments = parser.parse_args()
    results = measure(arguments.elements)
    if arguments.json:
        json.dump({"results": results}, sys.stdout, indent=2)
        return
    for result in results:
        print(f"{result['door']:8} {result['calls']:6} calls, {result['changes_of_module']:6} changes of module")


if __name__ == "__main__":
    main()
