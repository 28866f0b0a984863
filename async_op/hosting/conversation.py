"""The host's end of one connection, whatever carries it: messages are answered one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from async_op.hosting.host import Host
from async_op.hosting.messages import Failed, Reply

UNDER_WAY_MAX = 16
"""Messages that are read before they are answered; a feeder has fewer of them under way."""


class Conversation:
    """Answers a feeder. Only the thread of the event loop may call it.

    Parameters
    ----------
    host : Host
        What answers.
    reply : callable
        Sends a reply back.
    """

    def __init__(self, host: Host, reply: Callable[[Reply], object]) -> None:
        self._host = host
        self._reply = reply
        self._inbox: asyncio.Queue[Any] = asyncio.Queue(UNDER_WAY_MAX)
        self._answering = asyncio.get_running_loop().create_task(self._answer())

    async def hear(self, message: Any) -> None:
        """Take a message, or an error in place of one that cannot be read; waits while there are too many."""
        await self._inbox.put(message)

    def heard(self) -> None:
        """Note a sign of life."""
        self._host.heard(self)

    def end(self) -> None:
        """Answer no more: the feeder has gone."""
        self._answering.cancel()
        self._host.gone(self)

    async def _answer(self) -> None:
        while True:
            message = await self._inbox.get()
            if isinstance(message, Exception):
                self._reply(Failed(message))
            else:
                self._reply(await self._host.answer(self, message))
