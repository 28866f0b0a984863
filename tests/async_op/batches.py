"""Batch functions of the tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from async_op import AsyncBatchFunction, InvocationContext
from tests.async_op.kit import settle


class Batches(AsyncBatchFunction):
    """Calls that end when the test says so."""

    max_batch_size = 3
    max_batch_delay = 5.0

    def __init__(self, fallback: Any = None) -> None:
        self.called: list[list[Any]] = []
        self.replies: list[asyncio.Future[Any]] = []
        self.ended = 0
        self.closed_with = -1
        self._fallback = fallback

    async def async_invoke_batch(self, values: Sequence[Any], ctxs: Sequence[InvocationContext]) -> Any:
        self.called.append(list(values))
        self.replies.append(asyncio.get_running_loop().create_future())
        try:
            return await self.replies[-1]
        finally:
            await asyncio.sleep(0)
            self.ended += 1

    async def timeout(self, value: Any, ctx: InvocationContext) -> Any:
        return await super().timeout(value, ctx) if self._fallback is None else self._fallback(value)

    async def close(self) -> None:
        self.closed_with = self.ended

    async def answer(self, number: int, results: Any) -> None:
        self.replies[number].set_result(results)
        await settle()

    async def fail(self, number: int, error: Exception) -> None:
        self.replies[number].set_exception(error)
        await settle()


class Doubles(AsyncBatchFunction):
    """Returns at once, with the double of each value."""

    max_batch_size = 2

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    async def async_invoke_batch(self, values: Sequence[Any], ctxs: Any) -> list[Any]:
        self.batches.append(list(values))
        return [[2 * value] for value in values]
