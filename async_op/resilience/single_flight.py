"""Identical calls that are under way at once are one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from async_op.context import InvocationContext
from async_op.workers import Invoke, checked

Outcome = Sequence[Any] | Exception | None
"""Outputs or an error; None if the call was given up."""


@dataclass(frozen=True, slots=True)
class SingleFlight:
    """An element whose call would be the same as one under way gets that one's outcome (Go's `singleflight`).

    Outputs and errors are shared; each element has its own retries. If the call is cancelled, as by its element's
    timeout, one of those that waited for it makes it again. The outputs are the same objects, so do not change them.

    Parameters
    ----------
    key : callable
        Returns of a value what makes its call the same as another's.
    """

    key: Callable[[Any], Hashable]


class Flights:
    """The calls under way by key. Only the thread of the event loop may call it.

    Attributes
    ----------
    shared : int
        How many elements have taken the outcome of another's call.
    """

    __slots__ = ("_followers", "_invoke", "_key", "shared")

    def __init__(self, settings: SingleFlight, invoke: Invoke) -> None:
        self._key = settings.key
        self._invoke = invoke
        self._followers: dict[Hashable, list[asyncio.Future[Outcome]]] = {}
        self.shared = 0

    async def invoke(self, value: Any, ctx: InvocationContext) -> Sequence[Any]:
        """Make a call, or wait for the one that is under way."""
        key = self._key(value)
        outcome: Outcome = None
        while outcome is None:
            followers = self._followers.get(key)
            if followers is None:
                return await self._lead(key, value, ctx)
            landing: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            followers.append(landing)
            outcome = await landing
        self.shared += 1
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _lead(self, key: Hashable, value: Any, ctx: InvocationContext) -> Sequence[Any]:
        followers = self._followers[key] = []
        outcome: Outcome = None
        try:
            outcome = outputs = checked(await self._invoke(value, ctx))
        except Exception as error:
            outcome = error
            raise
        finally:
            del self._followers[key]
            for landing in followers:
                if not landing.done():
                    landing.set_result(outcome)
        return outputs
