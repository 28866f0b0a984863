"""`AsyncDataStream` over an iterable of this process, taken with `async for`.

Each case runs the stream and its floor in turn, several times, and divides the least processor time of the floor by
the least of the stream. The floors are those of `benchmarks.async_operator`: a hand-written pool of coroutines, or
the operator itself, fed by `process_all`.

    python -m benchmarks.stream --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from async_op import AsyncDataStream, AsyncWaitOperator
from async_op.functions.base import Function
from benchmarks.async_operator import CAPACITY, AtOnce, BatchAtOnce, Slow, call_each, loops

Run = Callable[[Coroutine[Any, Any, float]], float]


@dataclass(frozen=True)
class Case:
    """What is measured: a function, how many elements, the floor, and the ratio to reach."""

    name: str
    function: Callable[[], Function]
    elements: int
    floor: Callable[[Case], Coroutine[Any, Any, float]]
    wanted: float | None = None
    mode: str = "unordered"
    options: dict[str, Any] = field(default_factory=dict)


async def run_stream(case: Case) -> float:
    """Return the seconds of the processor that the stream takes for a case."""
    count = 0
    wait = getattr(AsyncDataStream, f"{case.mode}_wait")
    started = time.process_time()
    async for _ in wait(range(case.elements), case.function(), capacity=CAPACITY, **case.options):
        count += 1
    seconds = time.process_time() - started
    assert count == case.elements
    return seconds


async def run_pool(case: Case) -> float:
    """Return the seconds of the processor that the bare pool takes for the same calls."""
    count = 0

    def output(_: object) -> None:
        nonlocal count
        count += 1

    function: Any = case.function()
    values = iter(range(case.elements))
    started = time.process_time()
    await asyncio.gather(*(call_each(function.async_invoke, values, output) for _ in range(CAPACITY)))
    seconds = time.process_time() - started
    assert count == case.elements
    return seconds


async def run_operator(case: Case) -> float:
    """Return the seconds of the processor that the operator takes, fed by `process_all`."""
    count = 0

    def output(_: object) -> None:
        nonlocal count
        count += 1

    operator = AsyncWaitOperator(case.function(), output, capacity=CAPACITY, mode=case.mode, **case.options)
    await operator.open()
    started = time.process_time()
    await operator.process_all((value, None, None) for value in range(case.elements))
    await operator.finish()
    seconds = time.process_time() - started
    await operator.close()
    assert count == case.elements
    return seconds


CASES = (
    Case("calls that return at once ÷ pool", AtOnce, 100_000, run_pool, 0.15),
    Case("the same, ordered", AtOnce, 100_000, run_pool, None, "ordered"),
    Case("calls that return at once ÷ operator", AtOnce, 100_000, run_operator),
    Case("batches of 1,000, at once ÷ operator", BatchAtOnce, 200_000, run_operator, 0.7),
    Case("1 ms calls ÷ pool", lambda: Slow(0.001), 30_000, run_pool, 0.65),
    Case("1 ms calls ÷ operator", lambda: Slow(0.001), 30_000, run_operator),
)


def measure(case: Case, run: Run, repeats: int) -> dict[str, Any]:
    """Run a case and its floor in turn."""
    pairs = [(run(case.floor(case)), run(run_stream(case))) for _ in range(repeats)]
    floor, stream = map(min, zip(*pairs, strict=True))
    return {
        "case": case.name,
        "floor_per_second": round(case.elements / floor),
        "stream_per_second": round(case.elements / stream),
        "ratio": round(floor / stream, 3),
        "wanted": case.wanted,
    }


def main() -> None:
    """Measure all cases and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stream", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=9, help="runs of each case (default: 9)")
    arguments = parser.parse_args()
    rows = []
    for loop, run in loops().items():
        for case in CASES:
            rows.append({"loop": loop} | measure(case, run, arguments.repeats))
            if not arguments.json:
                print("{loop:8} {case:40} {ratio:6.3f} of {floor_per_second:>9,}/s".format(**rows[-1]), flush=True)
    if arguments.json:
        json.dump({"capacity": CAPACITY, "results": rows}, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
