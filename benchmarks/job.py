"""`Job` over an iterable, against `AsyncDataStream` with the same function, and two steps against one.

A job does more than a stream: it keeps positions, gives ids, stores outputs and in-flight elements, commits, and
delivers to a sink. Each case runs the job and its floor in turn, several times, and divides the least processor time of
the floor by the least of the job; all threads count.

    python -m benchmarks.job --json

With `--http` it also measures the ways of `benchmarks.http_calls`, so that all bars of a job stand in one output.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from async_op import AsyncDataStream, Job, Step
from async_op.functions.base import Function
from benchmarks import http_calls
from benchmarks.async_operator import CAPACITY, AtOnce, AtOnceWithState, Slow, a_row

KEYS = 10_000


def key_of(value: int) -> int:
    """Return the key of an element."""
    return value % KEYS


@dataclass(frozen=True)
class Case:
    """What is measured: a function, how many elements, how many keyed steps, and the ratio to reach."""

    name: str
    function: Callable[[], Function]
    elements: int
    wanted: float | None = None
    is_keyed: bool = False
    is_row: bool = False
    floor_is_one_step: bool = False

    def values(self) -> Any:
        """Return the elements."""
        return [a_row(number) for number in range(self.elements)] if self.is_row else range(self.elements)


async def run_stream(case: Case, values: Any) -> float:
    """Return the seconds of the processor that a stream takes."""
    count = 0
    options: dict[str, Any] = {"key_by": key_of} if case.is_keyed else {}
    wait = AsyncDataStream.key_ordered_wait if case.is_keyed else AsyncDataStream.unordered_wait
    started = time.process_time()
    async for _ in wait(values, case.function(), capacity=CAPACITY, **options):
        count += 1
    seconds = time.process_time() - started
    assert count == case.elements
    return seconds


async def run_job(case: Case, values: Any, steps: int) -> float:
    """Return the seconds of the processor that a job takes."""
    count = 0

    def sink(outputs: list[Any], _: int) -> None:
        nonlocal count
        count += len(outputs)

    options: dict[str, Any] = {"key_by": key_of, "mode": "key_ordered"} if case.is_keyed else {}
    chain = [Step(case.function(), name=f"step-{n}", capacity=CAPACITY, **options) for n in range(steps)]
    with tempfile.TemporaryDirectory() as folder:
        job = Job(values, chain, sink, snapshots=folder, job_id="benchmark")
        started = time.process_time()
        await job.run()
        seconds = time.process_time() - started
    assert count == case.elements
    return seconds


def floor_of(case: Case, values: Any) -> Coroutine[Any, Any, float]:
    """Return the run of what a case is compared with."""
    return run_job(case, values, 1) if case.floor_is_one_step else run_stream(case, values)


def measured(case: Case, values: Any) -> Coroutine[Any, Any, float]:
    """Return the run of what a case measures."""
    return run_job(case, values, 2 if case.floor_is_one_step else 1)


CASES = (
    Case("calls that return at once ÷ stream", AtOnce, 100_000, 0.7),
    Case("the same, dicts", AtOnce, 100_000, is_row=True),
    Case("a key and a ValueState ÷ stream", AtOnceWithState, 60_000, 0.7, is_keyed=True),
    Case("1 ms calls ÷ stream", lambda: Slow(0.001), 30_000, 0.85),
    Case("two keyed steps ÷ one", AtOnceWithState, 60_000, 0.55, is_keyed=True, floor_is_one_step=True),
)


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Run a case and its floor in turn."""
    values = case.values()

    def seconds(run: Callable[[Case, Any], Coroutine[Any, Any, float]]) -> float:
        gc.collect()  # or this run pays for the garbage of the one before
        return asyncio.run(run(case, values))

    pairs = [(seconds(floor_of), seconds(measured)) for _ in range(repeats)]
    floor, job = map(min, zip(*pairs, strict=True))
    return {
        "case": case.name,
        "floor_microseconds": round(floor / case.elements * 1e6, 2),
        "job_microseconds": round(job / case.elements * 1e6, 2),
        "ratio": round(floor / job, 3),
        "wanted": case.wanted,
    }


def main() -> None:
    """Measure all cases and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.job", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each case (default: 7)")
    parser.add_argument("--http", action="store_true", help="HTTP calls, too")
    arguments = parser.parse_args()
    rows = []
    for case in CASES:
        rows.append(measure(case, arguments.repeats))
        if not arguments.json:
            line = "{case:40} {ratio:6.3f}, at least {wanted}   {floor_microseconds:6.2f} ÷ {job_microseconds:6.2f} µs"
            print(line.format(**rows[-1]), flush=True)
    http = http_calls.measure(arguments.repeats, 10_000) if arguments.http else []
    if arguments.json:
        json.dump({"capacity": CAPACITY, "results": rows, "http": http}, sys.stdout, indent=2)
        return
    for row in http:
        print("HTTP calls: {way} ÷ pool{ratio:26.3f}, at most {wanted}   {microseconds:6.2f} µs".format(**row))


if __name__ == "__main__":
    main()
