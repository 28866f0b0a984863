"""A host's end of a connection, with replies that cannot be sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from async_op.hosting import messages as say
from async_op.hosting.messages import Address
from async_op.hosting.wire.server import Server
from async_op.hosting.wire.sockets import SocketChannel, connect
from tests.hosting.kit import SECRET, ask


@dataclass
class Answering:
    """A host that answers with these replies."""

    replies: list[say.Reply]

    def heard(self, feeder: object) -> None:
        """Hosts renew leases here."""

    def gone(self, feeder: object) -> None:
        """Hosts end sessions here."""

    async def answer(self, feeder: object, message: say.Message) -> say.Reply:
        return self.replies.pop(0)


class Unspeakable(Exception):
    """Can be sent neither as it is nor as text, nor can the error of trying."""

    def __reduce__(self) -> Any:
        raise self

    def __str__(self) -> str:
        raise self


@asynccontextmanager
async def connected(*replies: say.Reply) -> AsyncIterator[SocketChannel]:
    host: Any = Answering(list(replies))
    server = Server(host, SECRET)
    port = await server.listen_tcp("127.0.0.1")
    channel = await asyncio.to_thread(connect, Address("/nowhere", "127.0.0.1", port), SECRET)
    try:
        yield channel
    finally:
        channel.close()
        server.close()


async def test_instead_of_a_reply_that_cannot_be_sent_the_feeder_gets_the_error() -> None:
    async with connected(say.Part("job", 0, 1, lambda: None), say.Done()) as channel:
        reply = await asyncio.to_thread(ask, channel, say.Cut(1))
        assert isinstance(reply, say.Failed)
        assert "<lambda>" in str(reply.error)
        assert await asyncio.to_thread(ask, channel, say.Poll()) == say.Done()


async def test_an_error_that_cannot_be_sent_and_has_no_text_arrives_by_its_type() -> None:
    async with connected(say.Failed(Unspeakable()), say.Done()) as channel:
        reply = await asyncio.to_thread(ask, channel, say.Poll())
        assert isinstance(reply, say.Failed)
        assert "str() of this Unspeakable raised Unspeakable" in str(reply.error)
        assert await asyncio.to_thread(ask, channel, say.Poll()) == say.Done()
