"""A run in which everything happens that is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from async_op import (
    AdaptiveConcurrency,
    AsyncFunction,
    AsyncWaitOperator,
    Cache,
    CircuitBreaker,
    RateLimit,
    Resilience,
    SingleFlight,
)
from async_op.metrics import Watches
from keygroups.events import Event, publish
from tests.async_op.kit import ManualClock, new_store, settle

CALLS = 40

ALL = Resilience(
    cache=Cache(key=lambda value: value, max_entries=4),
    single_flight=SingleFlight(lambda value: value),
    concurrency=AdaptiveConcurrency(minimum=50, maximum=50),
    circuit_breaker=CircuitBreaker(),
    rate_limit=RateLimit(1000.0),
)


class Echo(AsyncFunction):
    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        await asyncio.sleep(0)
        return [value]


async def run_everything(watches: Watches, look: Callable[[], Any] = lambda: None) -> Any:
    """Run an operator with all limits, a snapshot, a rescale, a restore and an epoch; returns what `look` saw."""
    clock = ManualClock()
    operator = AsyncWaitOperator(Echo(), lambda _: None, clock=clock, resilience=ALL, max_parallelism=8)
    await operator.open()
    watches.add("enrich", operator)
    for value in range(CALLS):
        await operator.process(value)
    await operator.process_watermark(1)
    for _ in range(CALLS):
        await clock.advance(0.01)
    await settle()
    await operator.process(CALLS - 1)
    store = new_store()
    await operator.process("pending at the snapshot")
    cut = await operator.snapshot()
    await asyncio.to_thread(store.write, [cut])
    rescaled = await asyncio.to_thread(store.repartition, 2)
    await asyncio.to_thread(rescaled.restore(0).queue)
    publish(Event("epoch", 1.5, {"operator_id": "enrich", "rows": 7, "run_seconds": 1.0, "sink_seconds": 0.5}))
    seen = await asyncio.to_thread(look)
    await operator.close()
    return seen
