"""Timers: registered one by an element, ten by a key, then fired all at once; part of `benchmarks.keyed_state`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from async_op import AsyncFunction, AsyncWaitOperator, InvocationContext
from keygroups import ValueState

TIMERS_PER_KEY = 10
AT_LEAST = 100_000
"""Timers a second."""


class Timers(AsyncFunction):
    """Registers a timer for each element; they are all due at the end."""

    states = (ValueState("unused"),)

    def __init__(self, due: int) -> None:
        self.due = due
        self.fired = 0

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        """Register one."""
        ctx.timers.register(self.due + value, event_time=True)
        return []

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[Any]:
        """Count it."""
        self.fired += 1
        return []


async def run(count: int) -> tuple[float, float]:
    """Return how many timers were registered, and fired, in a second of the processor."""
    function = Timers(due=1)
    keys = max(count // TIMERS_PER_KEY, 1)
    operator = AsyncWaitOperator(function, lambda _: None, key_by=lambda value: value % keys, capacity=1000)
    await operator.open()
    started = time.process_time()
    await operator.process_all((number, None, None) for number in range(count))
    await operator.finish()
    registered = time.process_time()
    await operator.process_watermark(count + 1)
    await operator.finish()
    fired = time.process_time()
    assert function.fired == count, f"{function.fired} of {count} fired"
    await operator.close()
    return count / (registered - started), count / (fired - registered)


def measure(count: int, repeats: int) -> list[dict[str, Any]]:
    """Return a row for each of the two, by the best of some runs."""
    runs = [asyncio.run(run(count)) for _ in range(repeats)]
    return [
        {"case": f"{count:,} timers {what} (a second)", "result": round(max(rates)), "at_least": AT_LEAST}
        for what, rates in zip(("registered", "fired"), zip(*runs, strict=True), strict=True)
    ]
