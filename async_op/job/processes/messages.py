"""What parent and children say to each other, as frames: a length, a kind and a payload. Only they can write to it."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import pickle
import struct
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple, Protocol

import numpy as np

from async_op.elements import Element
from keygroups.codec import has_codec, pack, unpack
from keygroups.safe_text import described, repr_of
from keygroups.state.storable import StorableCheck
from snapshots.format.subtask import RefusedValue

ELEMENTS, WATERMARK, IDLE, CREDIT, CUT, MARK, REQUEST, REPLY, REPORT = range(9)
"""The kinds of frames; the first four are about one channel."""

PARENT = 0
"""The number of the parent among those who send; children count from 1."""

_A_SENT_VALUE = "the value of an element"

_PICKLED_EXACTLY = frozenset(
    (Decimal, uuid.UUID, dt.date, dt.time, dt.datetime, dt.timedelta, dt.timezone, RefusedValue, FunctionType)
)
"""Types beside built-in containers, numbers and text whose values a pickle gives back unchanged."""

_KINDS_PICKLED_EXACTLY = np.generic | np.dtype | type | BuiltinFunctionType
"""The same, with subclasses. A pickle names functions to say how to make the other values."""

_ZONE_INFO = ("zoneinfo", "ZoneInfo")
"""Another such type, of a module that takes 5 ms to load."""

_HEADER = struct.Struct("!QB")
_PLACE = struct.Struct("!?HHHHq")


class Destination(NamedTuple):
    """Where something is sent, and from where.

    Attributes
    ----------
    is_late : bool
        Whether it is state of its channel at the newest cut.
    sender : int
        The process that sends.
    step, target : int
        The number of the receiving step, and its subtask.
    channel : int
        The subtask that sends.
    number : int
        How many elements there are, or the timestamp of a watermark, or whether the channel is idle.
    """

    is_late: bool
    sender: int
    step: int
    target: int
    channel: int
    number: int


def payload_for(place: Destination, elements: list[Element] | None = None) -> bytes:
    """Return what is sent to a place as a payload."""
    head = _PLACE.pack(*place)
    return head if elements is None else head + _dumped_elements(elements)


def destination_of(payload: bytes) -> Destination:
    """Return where a payload is sent; the elements are not looked at."""
    return Destination(*_PLACE.unpack_from(payload))


def elements_in(payload: bytes) -> list[Element]:
    """Return the elements of a payload."""
    return pickle.loads(memoryview(payload)[_PLACE.size :])  # type: ignore[no-any-return]  # noqa: S301


def late(payload: bytes) -> bytes:
    """Return a payload as state of its channel."""
    return b"\1" + payload[1:]


def _dumped_elements(elements: Sequence[Element]) -> bytes:
    """Return elements as bytes, with a `RefusedValue` in place of each value that cannot be sent.

    So a bad value fails only its own element, by `on_error`. Without that, one value would end the job: a pickle holds
    all elements or none, and some of its errors occur only where it is read.
    """
    with suppress(Exception):  # from a user's class; below, the value that raises it is found
        pickled, are_certain = _pickled(elements)
        if are_certain or StorableCheck(_A_SENT_VALUE).are_storable([value for value, _, _ in elements]):
            return pickled
    return _pickled([_sendable(element) for element in elements])[0]


class _Pickler(pickle.Pickler):
    """Pickles values with their codecs, and notes whether some have types that it does not know."""

    has_others = False
    """Whether some values have types that snapshots may not be able to hold."""

    def reducer_override(self, value: Any) -> Any:
        """Return how to pickle a value; not called for built-in containers, numbers and text."""
        kind = type(value)
        if kind in _PICKLED_EXACTLY:
            return NotImplemented
        if has_codec(kind):
            return _decoded, (kind, pack(value, _A_SENT_VALUE))
        is_zone = (kind.__module__, kind.__qualname__) == _ZONE_INFO
        self.has_others |= not (is_zone or isinstance(value, _KINDS_PICKLED_EXACTLY))
        return NotImplemented


def _decoded(kind: type, packed: bytes) -> Any:
    """Return a value that has a codec. Loading `kind` has imported its module, which usually registers the codec."""
    del kind
    return unpack(packed)


def _pickled(elements: Sequence[Element]) -> tuple[bytes, bool]:
    """Return the pickle of elements, and whether it certainly gives back every value unchanged."""
    file = io.BytesIO()
    pickler = _Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.dump(elements)
    return file.getvalue(), not pickler.has_others


def _sendable(element: Element) -> Element:
    """Return an element that can be sent: itself, or with the reason why its value cannot."""
    value, timestamp, element_id = element
    if type(value) is RefusedValue:
        return element
    error = StorableCheck(_A_SENT_VALUE).error_of(value)
    if error is None:
        try:
            _pickled([element])
        except Exception as raised:  # noqa: BLE001 - what a user's class raises
            error = raised
    return element if error is None else (RefusedValue(repr_of(value), described(error)), timestamp, element_id)


class Link(Protocol):
    """A connection of parent and child, as one of them has it."""

    def send(self, kind: int, payload: bytes) -> None:
        """Send a frame behind those before; if the connection is lost, it is dropped."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Receiver(Protocol):
    """Gets what comes through a link."""

    def received(self, kind: int, payload: bytes) -> None:
        """Take a frame; called in the turn of the loop in which it comes."""
        ...

    def lost(self) -> None:
        """Note that nothing more will come; called once."""
        ...


class SocketLink(asyncio.Protocol):
    """A link over a socket.

    Parameters
    ----------
    receiver : Receiver
        Gets what comes.
    """

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport  # type: ignore[assignment]

    def send(self, kind: int, payload: bytes) -> None:
        """Send a frame; credits and the number of open requests bound what is not sent yet."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_HEADER.pack(len(payload), kind) + payload)

    def data_received(self, data: bytes) -> None:
        """Hand on all frames that are whole."""
        self._unread += data
        for kind, payload in self._frames():
            self._receiver.received(kind, payload)

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        unread, begin = self._unread, 0
        whole = []
        while len(unread) - begin >= _HEADER.size:
            size, kind = _HEADER.unpack_from(unread, begin)
            end = begin + _HEADER.size + size
            if len(unread) < end:
                break
            whole.append((kind, bytes(memoryview(unread)[begin + _HEADER.size : end])))
            begin = end
        del unread[:begin]
        yield from whole

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the receiver."""
        self._receiver.lost()

    def close(self) -> None:
        """Close the connection, once everything is sent."""
        if self._transport is not None:
            self._transport.close()


def dumped(what: Any) -> bytes:
    """Return a message as a payload."""
    return pickle.dumps(what, pickle.HIGHEST_PROTOCOL)


def loaded(payload: bytes) -> Any:
    """Return the message in a payload."""
    return pickle.loads(payload)  # noqa: S301 - from a process of this run, over a pair of sockets
