"""The operator against a hand-written pool of coroutines that share one iterator and await the same function.

The pool keeps no order, no timeout, no state and no snapshot: it is the floor. Each case runs both in turn, several
times, and reports the median of the ratios of their wall times, because the speed of a shared machine drifts.

    python -m benchmarks.async_operator --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa

from async_op import AsyncBatchFunction, AsyncFunction, AsyncWaitOperator
from async_op.functions.base import Function
from keygroups import ValueState

CAPACITY = 1000
SEEN = ValueState("seen", pa.int64(), default=0)


class AtOnce(AsyncFunction):
    """Returns at once."""

    async def async_invoke(self, value: Any, ctx: Any) -> tuple[Any]:
        return (value,)


class AtOnceWithState(AsyncFunction):
    """Reads and writes one value of its key."""

    states = (SEEN,)

    async def async_invoke(self, value: Any, ctx: Any) -> tuple[Any]:
        seen = ctx.state(SEEN)
        seen.update(seen.value() + 1)
        return (value,)


class Slow(AsyncFunction):
    """Takes a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def async_invoke(self, value: Any, ctx: Any) -> tuple[Any]:
        await asyncio.sleep(self.seconds)
        return (value,)


class BatchAtOnce(AsyncBatchFunction):
    """Returns a whole batch at once."""

    max_batch_size = CAPACITY

    async def async_invoke_batch(self, values: Any, ctxs: Any) -> list[tuple[Any]]:
        return [(value,) for value in values]


@dataclass(frozen=True)
class Case:
    """What is measured: a function, how many elements, the operator's options, and the ratio to reach."""

    name: str
    function: Callable[[], Function]
    elements: int
    wanted: float | None = None
    options: dict[str, Any] = field(default_factory=dict)
    snapshot_every: float | None = None
    value: Callable[[int], Any] | None = None

    def values(self) -> Sequence[Any]:
        """Return the elements: numbers, unless the case has others."""
        numbers = range(self.elements)
        return numbers if self.value is None else list(map(self.value, numbers))


def a_row(number: int) -> dict[str, Any]:
    """Return a dict of plain values, which a function may change, so that each call gets a copy."""
    return {"id": number, "name": "order", "price": 1.5, "quantity": 3, "city": "Oslo", "is_paid": True}


CASES = (
    Case("10 ms, unordered, timeout", lambda: Slow(0.010), 30_000, 0.85, {"timeout": 60.0}),
    Case("10 ms, ordered, timeout", lambda: Slow(0.010), 30_000, 0.85, {"timeout": 60.0, "mode": "ordered"}),
    Case("1 ms, unordered, timeout", lambda: Slow(0.001), 60_000, 0.55, {"timeout": 60.0}),
    Case("1 ms, ordered, timeout", lambda: Slow(0.001), 60_000, 0.55, {"timeout": 60.0, "mode": "ordered"}),
    Case("at once, unordered", AtOnce, 200_000, 0.15),
    Case("at once, ordered", AtOnce, 200_000, None, {"mode": "ordered"}),
    Case("at once, unordered, timeout", AtOnce, 200_000, None, {"timeout": 60.0}),
    Case(
        "at once, key_ordered, one ValueState read and written",
        AtOnceWithState,
        100_000,
        0.06,
        {"mode": "key_ordered", "key_by": lambda value: value % 10_000},
    ),
    Case("batches of 1000, at once", BatchAtOnce, 200_000, 0.8),
    Case("10 ms, unordered, snapshot every 100 ms", lambda: Slow(0.010), 30_000, None, {}, 0.1),
    Case("10 ms, unordered, dicts", lambda: Slow(0.010), 30_000, None, value=a_row),
    Case("1 ms, unordered, dicts", lambda: Slow(0.001), 60_000, None, value=a_row),
    Case("at once, unordered, dicts", AtOnce, 200_000, None, value=a_row),
)


async def run_operator(case: Case) -> float:
    """Return the seconds that the operator takes for a case."""
    count = 0

    def output(_: object) -> None:
        nonlocal count
        count += 1

    operator = AsyncWaitOperator(case.function(), output, capacity=CAPACITY, **case.options)
    await operator.open()
    cutting = asyncio.create_task(cut_snapshots(operator, case.snapshot_every))
    values = case.values()
    started = time.perf_counter()
    await operator.process_all((value, None, None) for value in values)
    await operator.finish()
    seconds = time.perf_counter() - started
    cutting.cancel()
    await operator.close()
    assert count == case.elements
    return seconds


async def cut_snapshots(operator: AsyncWaitOperator, every: float | None) -> None:
    """Cut a snapshot again and again."""
    while every is not None:
        await asyncio.sleep(every)
        await operator.snapshot()


async def run_floor(case: Case) -> float:
    """Return the seconds that the bare pool takes for the same calls."""
    function: Any = case.function()
    count = 0

    def output(_: object) -> None:
        nonlocal count
        count += 1

    values = iter(case.values())
    if isinstance(function, BatchAtOnce):
        worker = lambda: call_batches(function, values, output)  # noqa: E731
    else:
        invoke = AtOnce().async_invoke if isinstance(function, AtOnceWithState) else function.async_invoke
        worker = lambda: call_each(invoke, values, output)  # noqa: E731
    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(CAPACITY)))
    seconds = time.perf_counter() - started
    assert count == case.elements
    return seconds


async def call_each(invoke: Any, values: Iterator[int], output: Callable[[object], None]) -> None:
    """Call for one value after the other."""
    for value in values:
        for result in await invoke(value, None):
            output(result)


async def call_batches(function: BatchAtOnce, values: Iterator[int], output: Callable[[object], None]) -> None:
    """Call for one batch after the other."""
    while batch := list(islice(values, function.max_batch_size)):
        for results in await function.async_invoke_batch(batch, ()):
            for result in results:
                output(result)


def measure(case: Case, run: Callable[[Coroutine[Any, Any, float]], float], repeats: int) -> dict[str, Any]:
    """Run a case and its floor in turn."""
    pairs = [(run(run_floor(case)), run(run_operator(case))) for _ in range(repeats)]
    ratio = statistics.median(floor / operator for floor, operator in pairs)
    return {
        "case": case.name,
        "floor_per_second": round(case.elements / statistics.median(floor for floor, _ in pairs)),
        "operator_per_second": round(case.elements / statistics.median(operator for _, operator in pairs)),
        "ratio": round(ratio, 3),
        "wanted": case.wanted,
    }


def loops() -> dict[str, Callable[[Coroutine[Any, Any, float]], float]]:
    """Return the event loops to measure under."""
    found: dict[str, Callable[[Coroutine[Any, Any, float]], float]] = {}
    try:
        import uvloop

        found["uvloop"] = uvloop.run
    except ImportError:
        pass
    return found | {"asyncio": asyncio.run}


def main() -> None:
    """Measure all cases and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.async_operator", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each case (default: 5)")
    arguments = parser.parse_args()
    rows = []
    for loop, run in loops().items():
        for case in CASES:
            rows.append({"loop": loop} | measure(case, run, arguments.repeats))
            if not arguments.json:
                print("{loop:8} {case:55} {ratio:6.3f} of {floor_per_second:>9,}/s".format(**rows[-1]), flush=True)
    if arguments.json:
        json.dump({"capacity": CAPACITY, "results": rows}, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
