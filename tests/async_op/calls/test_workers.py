"""The tasks that await calls."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from async_op import AsyncFunction
from async_op.calls.workers import Worker
from tests.async_op.kit import opened


class Short(AsyncFunction):
    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        await asyncio.sleep(0)
        return [value]


def workers() -> int:
    return sum(type(one) is Worker for one in gc.get_objects())


async def test_idle_workers_are_released_with_their_operator_without_the_garbage_collector() -> None:
    """In cycles of references they would wait for a full collection, which takes as long as thousands of calls."""
    gc.collect()
    gc.disable()
    try:
        before = workers()
        async with opened(Short(), capacity=10) as bench:
            await bench.feed(*range(10))
            assert workers() > before
        assert workers() == before
    finally:
        gc.enable()
