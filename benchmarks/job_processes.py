"""What more processes bring to a job, and what they cost: `python -m benchmarks.job_processes`.

Each figure is the difference of a long and a short run, so that the start of processes does not count. Processor time
tells what two free cores would do, also on a machine that has none.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from typing import Any

from async_op import Job, Step

PAYLOAD = "x" * 150


def key_of(row: dict[str, Any]) -> int:
    """Return the key of a row."""
    return int(row["id"]) % 1000


async def busy(row: dict[str, Any]) -> dict[str, Any]:
    """Keep a processor busy for a millisecond."""
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        pass
    return row


async def same(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of some 200 bytes as it came in."""
    return row


def run(function: Callable[..., Any], count: int, processes: int) -> list[float]:
    """Return the seconds of a job with so many rows, and the processor time of the parent and of each child."""
    rows = [{"id": number, "payload": PAYLOAD} for number in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        job = Job(
            rows,
            Step(function, key_by=key_of),
            lambda values, epoch: None,
            snapshots=folder,
            job_id="job",
            parallelism=2,
            snapshot_interval=1.0,
            processes=processes,
        )
        began, used = time.perf_counter(), time.process_time()
        job.run_sync()
        of_children = [child.processor_seconds for child in job.progress().children]
        return [time.perf_counter() - began, time.process_time() - used, *of_children]


def per_element(function: Callable[..., Any], short: int, long: int, processes: int) -> list[float]:
    """Return the microseconds of an element: in all, and of each processor's time."""
    first, second = run(function, short, processes), run(function, long, processes)
    return [1e6 * (after - before) / (long - short) for before, after in zip(first, second, strict=True)]


def measure() -> dict[str, float]:
    """Return all figures."""
    one, one_used = per_element(busy, 500, 4500, 1)
    two, *two_used = per_element(busy, 500, 4500, 2)
    _, parent, *_ = per_element(same, 5_000, 105_000, 2)
    return {
        "busy calls, 2 processes / 1": one / two,
        "the same in processor time": one_used / max(*two_used, sum(two_used) / 2),
        "parent, us an element": parent,
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    found = measure()
    if parser.parse_args().json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:32} {value:6.2f}")


if __name__ == "__main__":
    main()
