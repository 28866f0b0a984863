"""What a file, or a subtask, costs a job that has many of them ÷ what it costs a job that has few.

Processor time over all threads. At a ratio of 1 the cost grows in proportion; below that, a fixed cost is shared.

    python -m benchmarks.wide_job --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from async_op import Job, Step
from async_op.connectors import FileSource

FEW, MANY = 100, 800
FILES_EACH = 10
"""How many files are read for each subtask of the other case."""

CALL_SECONDS = 2.0
"""How long the calls of a job with many subtasks take. Meanwhile the job only waits, which should cost little."""


async def same(value: Any) -> Any:
    """Return at once."""
    return value


async def slow(value: Any) -> Any:
    """Return after a while."""
    await asyncio.sleep(CALL_SECONDS)
    return value


def run(function: Any, source: Any, folder: Path, parallelism: int = 1) -> float:
    """Run a job with one keyed step; returns its processor time in seconds."""
    steps = Step(function, "step", key_by=str)
    started = time.process_time()
    Job(
        source,
        steps,
        lambda values, epoch: None,
        snapshots=folder,
        job_id="wide",
        parallelism=parallelism,
        watermark_delay=1.0,
    ).run_sync()
    return time.process_time() - started


def with_files(count: int, folder: Path) -> tuple[float, float]:
    """Read so many files with a line each; returns the time of that, and of a second run that finds nothing new."""
    (folder / "files").mkdir()
    for number in range(count):
        (folder / "files" / f"{number:06}.jsonl").write_text(f'{{"id": {number}}}\n', encoding="utf-8")
    first, second = (
        run(same, FileSource(folder / "files" / "*.jsonl", "json"), folder / "snapshots") for _ in range(2)
    )
    return first, second


def with_subtasks(count: int, folder: Path) -> tuple[float]:
    """Run a step with so many subtasks. The source has as many, and each of them can send to all of the step's."""
    return (run(slow, range(count), folder / "snapshots", count),)


def measure(repeats: int) -> list[dict[str, Any]]:
    """Measure all cases, the least time of some runs of each."""
    cases: list[tuple[Callable[[int, Path], tuple[float, ...]], int, tuple[str, ...]]] = [
        (with_files, FILES_EACH, ("a file that is read", "a file that was read before")),
        (with_subtasks, 1, ("a subtask that waits for a call",)),
    ]
    rows = []
    for case, factor, names in cases:
        few, many = (_least(case, factor * count, repeats) for count in (FEW, MANY))
        for name, of_few, of_many in zip(names, few, many, strict=True):
            each_of_few, each_of_many = of_few / FEW / factor, of_many / MANY / factor
            rows.append(
                {
                    "case": f"{name}, of {factor * MANY:,} ÷ of {factor * FEW:,}",
                    "milliseconds": round(each_of_many * 1000, 3),
                    "ratio": round(each_of_many / each_of_few, 2),
                }
            )
    return rows


def _least(case: Callable[[int, Path], tuple[float, ...]], count: int, repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            times.append(case(count, Path(folder)))
    return [min(of_case) for of_case in zip(*times, strict=True)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wide_job", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case (default: 3)")
    arguments = parser.parse_args()
    rows = measure(arguments.repeats)
    if arguments.json:
        json.dump({"results": rows}, sys.stdout, indent=2)
        return
    for row in rows:
        print(f"{row['case']:55} {row['milliseconds']:7} ms {row['ratio']:5}")


if __name__ == "__main__":
    main()
