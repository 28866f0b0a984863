"""Notes of what has changed since the last cut, stored as rows beside the content, so that memory does not grow."""

from __future__ import annotations

import struct

import msgpack

from keygroups.state.disk.encoding import CHANGED, RowEncoding
from keygroups.state.disk.store import Store

NOTES_MAX = 2**20
"""A key group with more notes than this counts as wholly changed; repeated writes of the same row count too."""

PENDING_MAX = 4096
"""How many notes are kept in memory before they are written as one row per key group."""

_NUMBER = struct.Struct(">Q")


class ChangeTracker:
    """Records the changed rows of one state. Only the thread that owns the operator may call it.

    Parameters
    ----------
    store : Store
        The store that holds the notes of what has changed.
    format_ : RowEncoding
        The encoding of the state.
    """

    __slots__ = ("_count", "_counts", "_format", "_pending", "_store", "_written")

    def __init__(self, store: Store, format_: RowEncoding) -> None:
        self._store = store
        self._format = format_
        self._pending: dict[int, set[bytes]] = {}
        self._count = 0
        self._counts: dict[int, int] = {}
        self._written = 0

    def add(self, key_group: int, part: bytes) -> None:
        """Record that a row has changed; `part` is its key without the prefix."""
        pending = self._pending.get(key_group)
        if pending is None:
            self._pending[key_group] = {part}
        else:
            pending.add(part)
        self._count += 1
        if self._count >= PENDING_MAX:
            self.write()

    def write(self) -> None:
        """Write the notes that are still in memory."""
        for key_group, parts in self._pending.items():
            count = self._counts[key_group] = self._counts.get(key_group, 0) + len(parts)
            if count <= NOTES_MAX:
                row = self._format.prefix(CHANGED, key_group) + _NUMBER.pack(self._written)
                self._store.put(row, msgpack.packb(list(parts)))
        self._written += 1
        self._pending = {}
        self._count = 0

    def forget(self) -> frozenset[int]:
        """Drop all notes and start over; returns the key groups that have wholly changed."""
        whole = frozenset(key_group for key_group, count in self._counts.items() if count > NOTES_MAX)
        self._counts = {}
        return whole


def parts_of(data: bytes) -> list[bytes]:
    """Decode a row of notes."""
    parts: list[bytes] = msgpack.unpackb(data)
    return parts
