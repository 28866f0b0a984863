"""Encodes a state as rows of an ordered key-value store.

A state of one value has a row per key. A list or a map has a row per entry, under its key, so an appended or changed
entry does not rewrite the others. A list has one more row for its length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
from pyarrow import types

from keygroups.codec import pack, unpack
from keygroups.descriptors import StateDescriptor
from keygroups.errors import UnstorableValue
from keygroups.state.backend import MISSING
from keygroups.state.expiring_values import Expiring
from keygroups.state.group import ENTRY_KINDS
from keygroups.state.key_identity import identity_of, original_of
from keygroups.values import array_of, values_of
from keygroups.values.columns import types_in

CONTENT, CHANGED = b"\x00", b"\x01"
"""The first byte of a row: the content of the state, or a note of what has changed since the last cut."""

WHOLE = b""
"""The entry of a row for all entries of a key: the length of a list, or a note that older entries are gone."""

_GROUP = struct.Struct(">HH")
_LENGTH = struct.Struct(">I")
_POSITION = struct.Struct(">Q")
_EXPIRES_AT = struct.Struct(">q")

# msgpack never begins with this byte, so it marks values that are not plain msgpack.
_TAG = 0xC1
_EXPIRING, _ARROW = b"\xc1E", b"\xc1A"

# Shared by all threads: packing a plain value calls no Python code.
pack_plain: Callable[[Any], bytes] = msgpack.Packer().pack
"""Encode a value of a plain type."""

PLAIN_KEYS = frozenset({int, str, bytes})
_PLAIN_VALUES = frozenset({int, float, bool, str, bytes, type(None)})


class RowEncoding:
    """The keys and values of one state as bytes. Any thread may call it.

    Parameters
    ----------
    number : int
        The number of the state within its store.
    descriptor : StateDescriptor
        The declaration of the state.
    """

    __slots__ = ("_has_dictionaries", "_type", "_where", "has_entries", "is_list", "number")

    def __init__(self, number: int, descriptor: StateDescriptor) -> None:
        self.number = number
        self.is_list = descriptor.kind == "list"
        self.has_entries = descriptor.kind in ENTRY_KINDS
        self._type = descriptor.value_type
        self._has_dictionaries = self._type is not None and any(map(types.is_dictionary, types_in(self._type)))
        self._where = f"state {descriptor.name!r}"

    def prefix(self, kind: bytes, key_group: int) -> bytes:
        """Return the prefix of all rows of a key group."""
        return kind + _GROUP.pack(self.number, key_group)

    def key(self, identity: Hashable) -> bytes:
        """Return the part of a row for a key, which follows the prefix."""
        packed = _packed(identity, self._where)
        return _LENGTH.pack(len(packed)) + packed if self.has_entries else packed

    def entry(self, entry: Hashable) -> bytes:
        """Return the part of a row for an entry, which follows the key; `WHOLE` stands for all entries."""
        if self.is_list:
            assert isinstance(entry, int), "an element is known by its position"
            return _POSITION.pack(entry)
        return _packed(entry, self._where)

    def split(self, part: bytes) -> tuple[bytes, bytes]:
        """Split the rest of a row after the prefix into the packed key and the packed entry."""
        if not self.has_entries:
            return part, WHOLE
        end = _LENGTH.size + _LENGTH.unpack_from(part)[0]
        return part[_LENGTH.size : end], part[end:]

    def identity(self, packed: bytes) -> Hashable:
        """Return the identity of a packed key."""
        return identity_of(unpack(packed))

    def entry_of(self, packed: bytes) -> Hashable:
        """Return the position or the identity of the map key; `MISSING` stands for all entries."""
        if packed == WHOLE:
            return MISSING
        return int.from_bytes(packed, "big") if self.is_list else identity_of(unpack(packed))

    def encode(self, value: Any) -> bytes:
        """Encode a value."""
        kind = type(value)
        if kind in _PLAIN_VALUES:
            try:
                return pack_plain(value)
            except (OverflowError, ValueError):
                return pack(value, self._where)
        if kind is Expiring:
            return _EXPIRING + _EXPIRES_AT.pack(value.expires_at) + self.encode(value.value)
        if self._type is not None and isinstance(value, np.generic):
            # Its column gives the Python value that it stands for.
            return self._in_column(value)
        try:
            return pack(value, self._where)
        except UnstorableValue:
            if self._type is None:
                raise
            # A value that only a column of the declared type can hold, such as a numpy array.
            return self._in_column(value)

    def _in_column(self, value: Any) -> bytes:
        batch = pa.record_batch([array_of([value], self._type)], ["value"])
        if not self._has_dictionaries:
            return _ARROW + bytes(batch.serialize())
        stream = pa.BufferOutputStream()  # a batch alone has no dictionary
        with pa.ipc.new_stream(stream, batch.schema) as writer:
            writer.write_batch(batch)
        return _ARROW + bytes(stream.getvalue())

    def decode(self, data: bytes) -> Any:
        """Decode a value."""
        if data[0] != _TAG:
            return unpack(data)
        if data.startswith(_EXPIRING):
            start = len(_EXPIRING)
            end = start + _EXPIRES_AT.size
            return Expiring(self.decode(data[end:]), _EXPIRES_AT.unpack_from(data, start)[0])
        stored = pa.py_buffer(data[len(_ARROW) :])
        if self._has_dictionaries:
            with pa.ipc.open_stream(stored) as reader:
                batch = reader.read_next_batch()
        else:
            batch = pa.ipc.read_record_batch(stored, pa.schema([("value", self._type)]))
        return values_of(batch.column(0))[0]


def length_of(data: bytes) -> int:
    """Decode the length of a list from its row."""
    return int.from_bytes(data, "big")


def length_row(length: int) -> bytes:
    """Encode the length of a list."""
    return _POSITION.pack(length)


def _packed(identity: Hashable, where: str) -> bytes:
    if type(identity) in PLAIN_KEYS:
        try:
            return pack_plain(identity)
        except (OverflowError, ValueError):
            pass
    return pack(original_of(identity), f"a key of {where}")
