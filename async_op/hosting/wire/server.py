"""A host behind sockets: a Unix socket for feeders on the same machine, TCP for others."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

from async_op.hosting.errors import MessageTooLarge, NotOurs
from async_op.hosting.host import Conversation, Host
from async_op.hosting.messages import Reply
from async_op.hosting.wire import frames
from async_op.hosting.wire.socket_paths import bindable
from async_op.hosting.wire.sockets import NONCE_BYTES, PROOF_BYTES, is_proof, new_nonce, proof_of

_HANDSHAKE_SECONDS = 60.0

_BUFFER_BYTES = 1 << 20

_GONE = (OSError, EOFError, MessageTooLarge, NotOurs, TimeoutError)


class Server:
    """Lets feeders of the run talk to a host. Only the thread of the event loop may call it.

    Parameters
    ----------
    host : Host
        The host that answers them.
    secret : bytes
        The secret of the run.
    """

    def __init__(self, host: Host, secret: bytes) -> None:
        self._host = host
        self._secret = secret
        self._listening: list[asyncio.AbstractServer] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._paths = ExitStack()  # asyncio removes a socket by the path that it was bound with

    async def listen_unix(self, path: Path) -> None:
        """Listen on a Unix socket with this path."""
        short = self._paths.enter_context(bindable(path))
        self._listening.append(await asyncio.start_unix_server(self._serve, short, limit=_BUFFER_BYTES))

    async def listen_tcp(self, interface: str) -> int:
        """Listen on a free TCP port of an interface, and return the port."""
        server = await asyncio.start_server(self._serve, interface, 0, limit=_BUFFER_BYTES)
        self._listening.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Stop listening and hang up, so that feeders see a lost host, whose epoch is run again, and no failed one."""
        for server in self._listening:
            server.close()
        self._paths.close()
        for writer in self._writers:
            writer.close()  # replies that were written before are still sent

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await asyncio.wait_for(self._check(reader, writer), _HANDSHAKE_SECONDS)
            await self._converse(reader, writer)
        except _GONE:
            pass  # the feeder notices it, too
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _check(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Let both sides prove that they know the secret; until then, few bytes are read, and none is unpickled."""
        host_nonce = new_nonce()
        writer.write(frames.MAGIC + host_nonce)
        answer = await reader.readexactly(NONCE_BYTES + PROOF_BYTES)
        feeder_nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        if not is_proof(proof, self._secret, "feeder", host_nonce, feeder_nonce):
            raise NotOurs("the feeder's proof is wrong")
        writer.write(proof_of(self._secret, "host", host_nonce, feeder_nonce))

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = _WiredConversation(self._host, writer)
        loop = asyncio.get_running_loop()
        hearing, beating = loop.create_task(_hear(reader, conversation)), loop.create_task(_beat(writer))
        try:
            done, _ = await asyncio.wait((hearing, conversation.answering), return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
        finally:
            hearing.cancel()
            beating.cancel()
            conversation.end()


class _WiredConversation(Conversation):
    """A conversation over a socket."""

    def __init__(self, host: Host, writer: asyncio.StreamWriter) -> None:
        super().__init__(host)
        self._writer = writer

    def reply(self, reply: Reply) -> None:
        self._writer.write(frames.encode_reply(reply))


async def _hear(reader: asyncio.StreamReader, conversation: Conversation) -> None:
    while True:
        size, kind = frames.size_and_kind(await reader.readexactly(frames.HEADER_BYTES))
        if kind == frames.ALIVE:
            conversation.heard()
        else:
            await conversation.hear(_message(kind, await reader.readexactly(size)))


async def _beat(writer: asyncio.StreamWriter) -> None:
    """Show signs of life from the loop that the function runs on: they stop if the function blocks it."""
    while True:
        writer.write(frames.alive())
        await asyncio.sleep(frames.BEAT_SECONDS)


def _message(kind: int, payload: bytes) -> object:
    try:
        return frames.decode(kind, payload)
    except Exception as error:  # noqa: BLE001 - a user's class may raise anything when it is unpickled
        return error
