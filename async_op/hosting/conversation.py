"""The host's end of one connection of any kind: messages are answered one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from async_op.hosting.host import Host
from async_op.hosting.messages import Failed, Reply

UNDER_WAY_MAX = 16
"""How many messages are read before they are answered; a feeder sends fewer before it waits for a reply."""


class Conversation:
    """Answers a feeder. Only the thread of the event loop may call it.

    Parameters
    ----------
    host : Host
        The host that answers.
    reply : callable
        Sends a reply to the feeder.
    """

    def __init__(self, host: Host, reply: Callable[[Reply], object]) -> None:
        self._host = host
        self._reply = reply
        self._inbox: asyncio.Queue[Any] = asyncio.Queue(UNDER_WAY_MAX)
        self._answering = asyncio.get_running_loop().create_task(self._answer())

    async def hear(self, message: Any) -> None:
        """Take a message, or the error of one that cannot be read; waits while too many are not answered."""
        await self._inbox.put(message)

    def heard(self) -> None:
        """Note that the feeder has shown a sign of life."""
        self._host.heard(self)

    def end(self) -> None:
        """Stop answering: the feeder has hung up."""
        self._answering.cancel()
        self._host.gone(self)

    async def _answer(self) -> None:
        while True:
            message = await self._inbox.get()
            if isinstance(message, Exception):
                self._reply(Failed(message))
            else:
                self._reply(await self._host.answer(self, message))
