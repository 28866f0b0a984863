"""What an import takes, in a process of its own: each package, all of its names, and what these need in any case.

python -m benchmarks.imports --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

CASES = (
    "pass",
    "import keygroups",
    "import snapshots",
    "import async_op",
    "import asyncio, numpy, pyarrow",
    "from keygroups import *",
    "from snapshots import *",
    "from async_op import *",
)
"""The first is what Python takes itself, and is taken off the others."""


def seconds_of(statement: str) -> float:
    """Return the wall time of a Python that runs a statement."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - started


def measure(repeats: int) -> list[dict[str, Any]]:
    """Measure all cases in turn, after one round that brings their files into memory."""
    rounds = [[seconds_of(statement) for statement in CASES] for _ in range(repeats + 1)][1:]
    bare, *others = (statistics.median(times) for times in zip(*rounds, strict=True))
    return [
        {"case": case, "milliseconds": round((time - bare) * 1000)}
        for case, time in zip(CASES[1:], others, strict=True)
    ]


def main() -> None:
    """Measure the imports and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.imports", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=9, help="runs of each case (default: 9)")
    arguments = parser.parse_args()
    rows = measure(arguments.repeats)
    if arguments.json:
        json.dump({"results": rows}, sys.stdout, indent=2)
        return
    for row in rows:
        print(f"{row['case']:40} {row['milliseconds']:5} ms")


if __name__ == "__main__":
    main()
