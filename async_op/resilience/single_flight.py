"""Combines identical calls that are under way at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from async_op.functions.context import InvocationContext, Invoke
from async_op.outputs import checked, own_outputs
from keygroups.arguments import check_callable, not_awaitable
from keygroups.state import identity_of

Outcome = Sequence[Any] | BaseException | None
"""Outputs or an error; None if the call was cancelled."""


@dataclass(frozen=True, slots=True)
class SingleFlight:
    """Shares the outcome of a call with elements whose calls would be identical to it (Go's `singleflight`).

    Outputs and errors are shared; each element has its own retries. If the call is cancelled, for instance by its
    element's timeout, one of the waiting elements repeats it. Each element gets its own copy of the outputs, so you
    may modify them.

    Parameters
    ----------
    key : callable
        Returns the same for values whose calls are identical. Types matter, as for keys: 1, 1.0 and True are three
        different ones.

    Raises
    ------
    ConfigError
        An argument is invalid.
    """

    key: Callable[[Any], Hashable]

    def __post_init__(self) -> None:
        check_callable("key", self.key, 1, reason="it returns the same for identical calls")


class Flights:
    """The calls under way by key. Only the thread of the event loop may call it.

    Attributes
    ----------
    shared : int
        How many elements have shared the outcome of another element's call.
    """

    __slots__ = ("_followers", "_invoke", "_key", "shared")

    def __init__(self, settings: SingleFlight, invoke: Invoke) -> None:
        self._key = settings.key
        self._invoke = invoke
        self._followers: dict[Hashable, list[asyncio.Future[Outcome]]] = {}
        self.shared = 0

    async def invoke(self, value: Any, ctx: InvocationContext) -> Sequence[Any]:
        """Make the call for a value, or wait for an identical call that is under way."""
        key = identity_of(not_awaitable("key", self._key(value)))
        outcome: Outcome = None
        while outcome is None:
            followers = self._followers.get(key)
            if followers is None:
                return await self._lead(key, value, ctx)
            landing: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            followers.append(landing)
            outcome = await landing
        self.shared += 1
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def _lead(self, key: Hashable, value: Any, ctx: InvocationContext) -> Sequence[Any]:
        followers = self._followers[key] = []
        outcome: Outcome = None
        try:
            outcome = outputs = checked(await self._invoke(value, ctx))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            outcome = error
            raise
        finally:
            del self._followers[key]
            for landing in followers:
                if not landing.done():
                    landing.set_result(own_outputs(outcome) if isinstance(outcome, Sequence) else outcome)
        return outputs
