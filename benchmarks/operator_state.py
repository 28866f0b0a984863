"""What a consumer with many partitions pays for its offsets: written at each element, or given at the cut.

The floor is the same function without operator state.

    python -m benchmarks.operator_state --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any

from async_op import AsyncFunction, AsyncWaitOperator, InvocationContext
from async_op.functions.runtime import Runtime
from keygroups import OperatorListState

OFFSETS = OperatorListState("offsets")
PARTITIONS = 1_000
ELEMENTS = 200


class Consume(AsyncFunction):
    """Notes the offset of each message."""

    async def open(self, runtime: Runtime) -> None:
        self.offsets = dict.fromkeys(range(PARTITIONS), 0)

    async def async_invoke(self, value: int, ctx: InvocationContext) -> Iterable[Any]:
        self.offsets[value % PARTITIONS] = value
        return []


class Write(Consume):
    """Writes all offsets through the handle."""

    operator_states = (OFFSETS,)

    async def open(self, runtime: Runtime) -> None:
        await super().open(runtime)
        self.handle = runtime.operator_state(OFFSETS)

    async def async_invoke(self, value: int, ctx: InvocationContext) -> Iterable[Any]:
        await super().async_invoke(value, ctx)
        self.handle.update(self.offsets.items())
        return []


class Give(Consume):
    """Gives all offsets at the cut."""

    operator_states = (OFFSETS,)

    def snapshot_state(self, descriptor: OperatorListState) -> list[Any]:
        return list(self.offsets.items())


async def measure(function: AsyncFunction) -> tuple[float, float]:
    """Return the milliseconds of the processor for an element and for a cut."""
    operator = AsyncWaitOperator(function, lambda _: None)
    await operator.open()
    started = time.process_time()
    await operator.process_all((value, None, None) for value in range(ELEMENTS))
    await operator.settle(600)
    fed = time.process_time()
    await operator.snapshot()
    cut = time.process_time()
    await operator.close()
    return 1e3 * (fed - started) / ELEMENTS, 1e3 * (cut - fed)


def compare(repeats: int) -> dict[str, dict[str, float]]:
    """Return the least times of each way, measured by turns."""
    kinds = {"no state": Consume, "through the handle": Write, "given at the cut": Give}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for _ in range(repeats):
        for name, kind in kinds.items():
            found[name].append(asyncio.run(measure(kind())))
    return {
        name: {"an element, ms": min(one for one, _ in runs), "a cut, ms": min(cut for _, cut in runs)}
        for name, runs in found.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator_state", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=5, help="how often each way is measured (default: 5)")
    arguments = parser.parse_args()
    found = compare(arguments.repeats)
    if arguments.json:
        print(json.dumps({"results": found}, indent=2))
        return
    for name, figures in found.items():
        print(f"{name:20}", *(f"{what} {figure:8.4f}" for what, figure in figures.items()))


if __name__ == "__main__":
    main()
