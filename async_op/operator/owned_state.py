"""Opens and closes the keyed state of one operator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from async_op.options import StateBackend
from async_op.threads.own_thread import on_own_thread
from keygroups.descriptors import StateDescriptor
from keygroups.ranges import KeyGroupRange
from keygroups.state import KeyedStateBackend, KeyGroupContent, MemoryBackend


class OwnedState:
    """Opens and closes a state backend; both run to completion even if the waiting task is cancelled.

    Threads create and remove the files, not the event loop. Only the thread of the event loop may call it.

    Parameters
    ----------
    kind : {"memory"} or DiskStateBackend
        Where the state lives.
    """

    __slots__ = ("_closing", "_kind", "_opening")

    def __init__(self, kind: StateBackend) -> None:
        self._kind = kind
        self._opening: asyncio.Task[KeyedStateBackend] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def open(
        self,
        states: Sequence[StateDescriptor],
        owned: KeyGroupRange,
        restored: Mapping[str, Mapping[int, KeyGroupContent]] | None,
        since: str | None,
        wall_time: Callable[[], int],
    ) -> KeyedStateBackend:
        """Return the backend, with the parameters of `MemoryBackend`."""
        if self._kind == "memory":
            return MemoryBackend(states, owned, restored, since, wall_time)
        work = on_own_thread(self._kind.open, states, owned, restored, since, wall_time)
        self._opening = asyncio.create_task(work, name="keygroups state")
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        """Release the backend, even if the task that opened it was cancelled; may be called again."""
        if self._opening is None:  # a backend in memory needs no closing
            return
        if self._closing is None:
            self._closing = asyncio.create_task(_close(self._opening), name="keygroups state")
        await asyncio.shield(self._closing)


async def _close(opening: asyncio.Task[KeyedStateBackend]) -> None:
    await asyncio.wait([opening])
    if opening.exception() is None:
        await on_own_thread(opening.result().close)
