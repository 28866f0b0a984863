"""Messages as bytes: a length, a kind and a payload. This module does no input or output.

Nothing is unpickled before both sides have proved that they know the secret of the run.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import replace
from typing import Any

from async_op.hosting.errors import HostFailed, MessageTooLarge
from async_op.hosting.messages import Failed, Feed, Message, Reply, Status
from keygroups.errors import KeyGroupsError, notes_of
from keygroups.safe_text import described

MAGIC = b"keygroups-host-1"
"""The first bytes that a host sends."""

ALIVE = 0
MESSAGE = 1
ROWS = 2
"""The kinds: a sign of life, a pickled message, a feed of rows in Arrow's stream format."""

FRAME_BYTES_MAX = 512 * 2**20

BEAT_SECONDS = 1.0
"""Time from one sign of life to the next."""

_HEADER = struct.Struct("!IB")
HEADER_BYTES = _HEADER.size


def alive() -> bytes:
    """Return a sign of life."""
    return _HEADER.pack(0, ALIVE)


def encode(message: Message | Reply) -> bytes:
    """Return a message as a frame.

    Raises
    ------
    MessageTooLarge
        The other side would not accept it.
    """
    import pyarrow as pa  # a host does not need it before its first rows

    if isinstance(message, Feed) and isinstance(message.rows, pa.RecordBatch):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, message.rows.schema) as stream:
            stream.write_batch(message.rows)
        return _frame(ROWS, sink.getvalue().to_pybytes())
    return _frame(MESSAGE, pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def encode_reply(reply: Reply) -> bytes:
    """Return a reply as a frame; an error that cannot be pickled is replaced by one with the same text."""
    if isinstance(reply, Failed):
        reply = Failed(_sendable(reply.error))
    elif isinstance(reply, Status) and reply.failure is not None:
        reply = replace(reply, failure=_sendable(reply.failure))
    return encode(reply)


def _sendable(error: BaseException) -> BaseException:
    """Return an error that can be sent; a project's error takes the traceback of its cause along by itself."""
    try:
        sent: BaseException = pickle.loads(pickle.dumps(error))  # noqa: S301 - made in this process
        if not isinstance(error, KeyGroupsError):
            BaseException.__setattr__(sent, "__notes__", notes_of(error))  # also of a frozen dataclass
    except Exception:  # noqa: BLE001 - a user's exception may fail in any way
        sent = HostFailed(described(error))
        sent.__cause__ = error
    return sent


def size_and_kind(header: bytes) -> tuple[int, int]:
    """Return the size of the payload and the kind of the message, from a header.

    Raises
    ------
    MessageTooLarge
        The payload is over the limit; do not read it.
    """
    size, kind = _HEADER.unpack(header)
    if size > FRAME_BYTES_MAX:
        raise MessageTooLarge(size, FRAME_BYTES_MAX)
    return size, kind


def decode(kind: int, payload: bytes | memoryview) -> Any:
    """Return the message in a payload."""
    if kind != ROWS:
        return pickle.loads(payload)  # noqa: S301 - the other side knows the run's secret
    import pyarrow as pa

    with pa.ipc.open_stream(payload) as stream:
        return Feed(stream.read_next_batch())


def _frame(kind: int, payload: bytes) -> bytes:
    if len(payload) > FRAME_BYTES_MAX:
        raise MessageTooLarge(len(payload), FRAME_BYTES_MAX)
    return _HEADER.pack(len(payload), kind) + payload
