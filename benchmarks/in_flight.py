"""Many elements in flight: memory, and what an element costs, against a pool of as many bare coroutines.

Each figure comes from a process of its own, because a process does not give memory back.

    python -m benchmarks.in_flight --json
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from async_op import AsyncWaitOperator
from benchmarks.async_operator import Slow, call_each, loops

MANY = 100_000
FEW = 1_000


async def use_floor(capacity: int, seconds: float, elements: int) -> None:
    """Call for all elements in a bare pool of coroutines."""
    function, values = Slow(seconds), iter(range(elements))
    await asyncio.gather(*(call_each(function.async_invoke, values, drop) for _ in range(capacity)))


async def use_operator(capacity: int, seconds: float, elements: int) -> None:
    """Call for all elements in the operator."""
    operator = AsyncWaitOperator(Slow(seconds), drop, capacity=capacity, timeout=600.0)
    await operator.open()
    await operator.process_all((value, None, None) for value in range(elements))
    await operator.finish()
    await operator.close()


def drop(_: object) -> None:
    """Take an output."""


def measure_here(which: str, capacity: int, seconds: float, elements: int, collect: bool) -> dict[str, float]:
    """Return the memory and the time of the processor for one run in this process."""
    if not collect:
        gc.disable()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    run = use_floor if which == "floor" else use_operator
    next(iter(loops().values()))(run(capacity, seconds, elements))  # type: ignore[arg-type]
    used = time.process_time() - started
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"microseconds": used / elements * 1e6, "megabytes": grown / 1024}


def measure(which: str, capacity: int, seconds: float, elements: int, repeats: int, collect: bool) -> dict[str, float]:
    """Return the medians over some processes."""
    arguments = [which, str(capacity), str(seconds), str(elements), str(int(collect))]
    command = [sys.executable, "-m", "benchmarks.in_flight", "--here", *arguments]
    runs = [json.loads(subprocess.check_output(command)) for _ in range(repeats)]
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def compare(repeats: int) -> list[dict[str, Any]]:
    """Measure the operator and its floor, with few and with many elements in flight."""
    rows = []
    for case, capacity, seconds, elements, collect in (
        (f"{MANY:,} in flight: memory", MANY, 30.0, MANY, True),
        (f"a capacity of {FEW:,}, calls of 3 ms", FEW, 0.003, 100_000, False),
        (f"a capacity of {MANY:,}, calls of 300 ms", MANY, 0.3, 500_000, False),
        (f"a capacity of {MANY:,}, calls of 300 ms, with Python's garbage collection", MANY, 0.3, 500_000, True),
    ):
        floor = measure("floor", capacity, seconds, elements, repeats, collect)
        operator = measure("operator", capacity, seconds, elements, repeats, collect)
        rows.append({"case": case, "floor": floor, "operator": operator})
    return rows


def main() -> None:
    """Measure all cases and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.in_flight", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case (default: 3)")
    parser.add_argument("--here", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        which, capacity, seconds, elements, collect = arguments.here
        figures = measure_here(which, int(capacity), float(seconds), int(elements), bool(int(collect)))
        json.dump(figures, sys.stdout)
        return
    rows = compare(arguments.repeats)
    if arguments.json:
        json.dump({"results": rows}, sys.stdout, indent=2)
        return
    for row in rows:
        floor, operator = row["floor"], row["operator"]
        print(
            f"{row['case']:75} floor {floor['microseconds']:6.1f} µs {floor['megabytes']:6.0f} MB, "
            f"operator {operator['microseconds']:6.1f} µs {operator['megabytes']:6.0f} MB"
        )


if __name__ == "__main__":
    main()
