"""What has changed since the last cut, noted in rows beside the content, so that nothing in memory grows with it."""

from __future__ import annotations

import struct

import msgpack

from keygroups.state.disk.rows import CHANGED, RowFormat
from keygroups.state.disk.store import Store

NOTES_MAX = 2**20
"""A key group counts as wholly changed once more has been noted of it, what is written again and again included."""

PENDING_MAX = 4096
"""So much is kept in memory, and then written as one row for each key group."""

_NUMBER = struct.Struct(">Q")


class Notes:
    """The changed rows of one state. Only the thread that owns the operator may call it.

    Parameters
    ----------
    store : Store
        Where the notes go.
    format_ : RowFormat
        Of the state.
    """

    __slots__ = ("_count", "_counts", "_format", "_pending", "_store", "_written")

    def __init__(self, store: Store, format_: RowFormat) -> None:
        self._store = store
        self._format = format_
        self._pending: dict[int, set[bytes]] = {}
        self._count = 0
        self._counts: dict[int, int] = {}
        self._written = 0

    def add(self, key_group: int, part: bytes) -> None:
        """Note a row by what follows its prefix."""
        pending = self._pending.get(key_group)
        if pending is None:
            self._pending[key_group] = {part}
        else:
            pending.add(part)
        self._count += 1
        if self._count >= PENDING_MAX:
            self.write()

    def write(self) -> None:
        """Write what is kept in memory."""
        for key_group, parts in self._pending.items():
            count = self._counts[key_group] = self._counts.get(key_group, 0) + len(parts)
            if count <= NOTES_MAX:
                row = self._format.prefix(CHANGED, key_group) + _NUMBER.pack(self._written)
                self._store.put(row, msgpack.packb(list(parts)))
        self._written += 1
        self._pending = {}
        self._count = 0

    def forget(self) -> frozenset[int]:
        """Begin anew; returns the key groups that have wholly changed."""
        whole = frozenset(key_group for key_group, count in self._counts.items() if count > NOTES_MAX)
        self._counts = {}
        return whole


def parts_of(data: bytes) -> list[bytes]:
    """Return what a row of notes holds."""
    parts: list[bytes] = msgpack.unpackb(data)
    return parts
