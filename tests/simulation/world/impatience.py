"""Whoever awaits an operator may be cancelled at any await: what was not done then is not done at all."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from async_op import AsyncWaitOperator
from snapshots import SubtaskRestore
from snapshots.testing import Crash

T = TypeVar("T")

_TURNS = (0, 1, 2, 3, 5, 8, 13)
"""After so many turns of the loop a call is cancelled, unless it has ended."""

_OFTEN, _SELDOM = 0.2, 0.03
"""Of how many calls; a life whose operators do not open is soon over."""


class Impatient:
    """An operator whose coroutines are cancelled now and then, and called again.

    Parameters
    ----------
    operator : AsyncWaitOperator
        The operator.
    draw : random.Random
        Decides which calls are cancelled, and when.
    met : Counter of str
        Counts the cancellations by the coroutine.
    """

    def __init__(self, operator: AsyncWaitOperator, draw: random.Random, met: Counter[str]) -> None:
        self._operator = operator
        self._draw = draw
        self._met = met

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)

    async def open(self, restore: SubtaskRestore | None, *, preload: bool) -> None:
        """Open the operator; one whose `open` was cancelled is closed for good."""
        call = lambda: self._operator.open(restore, preload=preload)  # noqa: E731
        is_open, _ = await self._perhaps(call, "open", _SELDOM)
        if not is_open:
            raise Crash

    async def process(self, value: Any, timestamp: int | None, element_id: str | None) -> None:
        """Accept a record, once."""
        await self.until_done(lambda: self._operator.process(value, timestamp, element_id), "process")

    async def process_watermark(self, timestamp: int) -> None:
        """Accept a watermark, once."""
        await self.until_done(lambda: self._operator.process_watermark(timestamp), "process_watermark")

    async def finish(self) -> None:
        """End the input."""
        await self.until_done(self._operator.finish, "finish")

    async def close(self) -> None:
        """Close the operator."""
        await self.until_done(self._operator.close, "close")

    async def until_done(self, call: Callable[[], Coroutine[Any, Any, T]], name: str) -> T:
        """Make a call until it has not been cancelled."""
        while True:
            is_done, result = await self._perhaps(call, name)
            if is_done:
                return cast("T", result)

    async def _perhaps(
        self, call: Callable[[], Coroutine[Any, Any, Any]], name: str, rate: float = _OFTEN
    ) -> tuple[bool, Any]:
        """Make a call, which may be cancelled; returns whether it has ended, and with what."""
        if self._draw.random() >= rate:
            return True, await call()
        task = asyncio.ensure_future(call())
        try:
            for _ in range(self._draw.choice(_TURNS)):
                await asyncio.sleep(0)
        finally:
            task.cancel()
            await asyncio.wait([task])
        if task.cancelled():
            self._met[f"cancelled {name}"] += 1
            return False, None
        return True, task.result()
