"""The rows of one key, for lists and maps on disk."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from keygroups.state.backend import MISSING
from keygroups.state.disk.encoding import WHOLE, RowEncoding, length_of, length_row
from keygroups.state.disk.store import Store


class KeyRows:
    """Reads and writes the rows of one key. Only the thread that owns the operator may call it."""

    __slots__ = ("_format", "_row", "_store")

    def __init__(self, store: Store, format_: RowEncoding, row: bytes) -> None:
        self._store = store
        self._format = format_
        self._row = row

    def length(self) -> int:
        """Return the length of the list."""
        data = self._store.get(self._row + WHOLE)
        return 0 if data is None else length_of(data)

    def set_length(self, length: int) -> None:
        """Store the length of the list; a length of zero removes the row."""
        self._store.put(self._row + WHOLE, length_row(length) if length else None)

    def get(self, entry: Hashable) -> Any:
        """Return the value of an entry, or `MISSING`."""
        data = self._store.get(self._row + self._format.entry(entry))
        return MISSING if data is None else self._format.decode(data)

    def put(self, entry: Hashable, value: Any) -> None:
        """Store an entry; `MISSING` removes it."""
        data = None if value is MISSING else self._format.encode(value)
        self._store.put(self._row + self._format.entry(entry), data)

    def clear(self) -> None:
        """Remove all entries."""
        for row, _ in self._store.scan(self._row):
            self._store.put(row, None)

    def entries(self) -> Iterator[tuple[Hashable, Any]]:
        """Return all entries, in the order of their rows."""
        for row, data in self._store.scan(self._row):
            entry = row[len(self._row) :]
            if entry != WHOLE:
                yield self._format.entry_of(entry), self._format.decode(data)
