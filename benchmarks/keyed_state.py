"""What keyed state costs: each case is compared with the least that it could be.

python -m benchmarks.keyed_state [--json] [--repeats N] [--keys N] [--timers N] [--only memory|timers|disk]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from benchmarks import _disk_state, _memory_state, _timers
from keygroups import KeyGroupRange, ListState, MapState, ReducingState, StateDescriptor, ValueState
from keygroups.state import MemoryBackend, Transaction

INVOCATIONS = 50_000
KEYS = 1000
VALUE = ValueState("value", pa.int64(), default=0)
LIST = ListState("list", pa.int64())
MAP = MapState("map", pa.map_(pa.string(), pa.int64()))
SUM = ReducingState("sum", lambda one, other: one + other, pa.int64())


@dataclass(frozen=True)
class Case:
    """What is measured: an access, on entries of one size, and beside what."""

    name: str
    state: StateDescriptor
    access: Callable[[Any], object]
    entries: int = 0
    floor_entries: int | None = None
    """The same with so many entries is the floor; None for an invocation that does not touch its state."""
    at_most: float | None = None


def read_and_write(handle: Any) -> None:
    """Count one up."""
    handle.update(handle.value() + 1)


CASES = (
    Case("ValueState, read and written, above an invocation without it (µs)", VALUE, read_and_write, at_most=1.5),
    Case("ReducingState, added to, above an invocation without it (µs)", SUM, lambda handle: handle.add(1)),
    Case("ListState, added to, 10,000 elements ÷ 10", LIST, lambda handle: handle.add(1), 10_000, 10, 2.0),
    Case("MapState, put, 10,000 entries ÷ 10", MAP, lambda handle: handle.put("3", 1), 10_000, 10),
)


def filled(case: Case, entries: int) -> MemoryBackend:
    """Return a backend in which every key has so many entries."""
    backend = MemoryBackend([case.state], KeyGroupRange(0, 0))
    keys = KEYS if case.floor_entries is None else 10
    for key in range(keys if entries else 0):
        transaction = Transaction(backend, key, 0)
        handle = transaction.state(case.state)
        if case.state is LIST:
            handle.update(range(entries))
        else:
            handle.put_all({str(number): number for number in range(entries)})
        transaction.commit()
    return backend


def run(case: Case, entries: int, access: Callable[[Any], object] | None) -> float:
    """Return the microseconds of an invocation, a thousand of them between two cuts."""
    backend = filled(case, entries)
    keys = KEYS if case.floor_entries is None else 10
    seconds = 0.0
    for first in range(0, INVOCATIONS, 1000):
        backend.cut()
        started = time.perf_counter()
        for number in range(first, first + 1000):
            if access is not None:
                transaction = Transaction(backend, number % keys, 0)
                access(transaction.state(case.state))
                transaction.commit()
        seconds += time.perf_counter() - started
    return seconds / INVOCATIONS * 1e6


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Run a case and its floor in turn."""
    pairs = []
    for _ in range(repeats):
        if case.floor_entries is None:
            pairs.append((run(case, case.entries, None), run(case, case.entries, case.access)))
        else:
            pairs.append((run(case, case.floor_entries, case.access), run(case, case.entries, case.access)))
    results = [other - floor if case.floor_entries is None else other / floor for floor, other in pairs]
    return {
        "case": case.name,
        "floor_us": round(statistics.median(floor for floor, _ in pairs), 3),
        "us": round(statistics.median(other for _, other in pairs), 3),
        "result": round(statistics.median(results), 3),
        "at_most": case.at_most,
    }


def main() -> None:
    """Measure all cases and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keyed_state", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each case (default: 5)")
    parser.add_argument("--timers", type=int, default=1_000_000, help="how many timers (default: 1,000,000)")
    parser.add_argument("--keys", type=int, default=200_000, help="keys of the state on disk (default: 200,000)")
    parser.add_argument("--only", choices=("memory", "timers", "disk"), help="only these cases")
    arguments = parser.parse_args()
    rows = []
    for case in CASES if arguments.only in (None, "memory") else ():
        rows.append(measure(case, arguments.repeats))
        if not arguments.json:
            print("{case:70} {result:7.3f} ({us} µs)".format(**rows[-1]), flush=True)
    if arguments.only in (None, "memory"):
        rows.append(_memory_state.measure())
        if not arguments.json:
            print("{case:70} {result:7.3f} ({mb} MB)".format(**rows[-1]), flush=True)
    for row in _timers.measure(arguments.timers, repeats=1) if arguments.only in (None, "timers") else ():
        rows.append(row)
        if not arguments.json:
            print("{case:70} {result:7,}".format(**row), flush=True)
    for row in _disk_state.measure(arguments.keys) if arguments.only in (None, "disk") else ():
        rows.append(row)
        if not arguments.json:
            print(*(f"{name}: {value}" for name, value in row.items()), sep=", ", flush=True)
    if arguments.json:
        json.dump({"invocations": INVOCATIONS, "results": rows}, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
