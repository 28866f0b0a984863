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

    Attributes
    ----------
    answering : asyncio.Task
        Ends by itself only if not even an error can be sent; then nobody hears the feeder any more.
    """

    def __init__(self, host: Host, reply: Callable[[Reply], object]) -> None:
        self._host = host
        self._reply = reply
        self._inbox: asyncio.Queue[Any] = asyncio.Queue(UNDER_WAY_MAX)
        self.answering = asyncio.get_running_loop().create_task(self._answer())

    async def hear(self, message: Any) -> None:
        """Take a message, or the error of one that cannot be read; waits while too many are not answered."""
        await self._inbox.put(message)

    def heard(self) -> None:
        """Note that the feeder has shown a sign of life."""
        self._host.heard(self)

    def end(self) -> None:
        """Stop answering: the feeder has hung up."""
        self.answering.cancel()
        self._host.gone(self)

    async def _answer(self) -> None:
        while True:
            message = await self._inbox.get()
            reply = Failed(message) if isinstance(message, Exception) else await self._host.answer(self, message)
            try:
                self._reply(reply)
            except Exception as error:  # noqa: BLE001 - the feeder, which waits for a reply, raises it
                self._reply(Failed(error))
