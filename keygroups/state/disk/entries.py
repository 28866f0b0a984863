"""One keyed state of many entries per key in a store on disk."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from keygroups.state.backend import MISSING
from keygroups.state.collections import Entries, entries_of, entry_of
from keygroups.state.disk.collections import StoredList, StoredMap
from keygroups.state.disk.rows import WHOLE, RowFormat, length_of, length_row
from keygroups.state.disk.store import Store
from keygroups.state.disk.table import DiskTable
from keygroups.state.identity import original_of
from keygroups.state.ttl import HOLE


class EntriesTable(DiskTable):
    """Lists or maps on disk: each element or entry is a row of its own. Parameters as of `DiskTable`."""

    __slots__ = ()

    def get(self, key_group: int, key: Hashable) -> StoredList | StoredMap:
        """Return the list or map of a key, which may be empty; what is asked of it is read then."""
        rows = self._rows_of_key(key_group, key)
        return StoredList(rows, rows.length()) if self._format.is_list else StoredMap(rows)

    def put(self, key_group: int, key: Hashable, value: Any) -> None:
        """Store the whole list or map of a key; `MISSING` removes it."""
        content: Entries = () if value is MISSING else value
        self.put_entries(key_group, key, content, [entry for entry, _ in entries_of(content)], replaced=True)

    def put_entries(
        self, key_group: int, key: Hashable, content: Entries, changed: Iterable[Hashable], *, replaced: bool
    ) -> None:
        """Store the changed entries of a key, and note which they are."""
        rows, part, format_ = self._rows_of_key(key_group, key), self._format.key(key), self._format
        if replaced:
            rows.clear()
            if self._tracks:
                self._notes.add(key_group, part + WHOLE)
        for entry in changed:
            rows.put(entry, entry_of(content, entry, MISSING))
            self._see(key, entry)
            if self._tracks:
                self._notes.add(key_group, part + format_.entry(entry))
        if format_.is_list:
            rows.set_length(len(content))

    def _encoded(self, prefix: bytes, group: Mapping[Hashable, Any]) -> Iterator[tuple[bytes, bytes]]:
        format_ = self._format
        for key, content in group.items():
            row = prefix + format_.key(key)
            for entry, value in entries_of(content):
                if value is not HOLE:
                    self._see(key, entry)
                    yield row + format_.entry(entry), format_.encode(value)
            if format_.is_list:
                yield row + WHOLE, length_row(len(content))

    def _rows_of_key(self, key_group: int, key: Hashable) -> KeyRows:
        return KeyRows(self._store, self._format, self._prefix(key_group) + self._format.key(key))

    def _see(self, key: Hashable, entry: Hashable) -> None:
        self._kinds["key"].add(type(original_of(key)))
        self._kinds["map_key"].add(type(original_of(entry)))


class KeyRows:
    """The rows of one key. Only the thread that owns the operator may call it."""

    __slots__ = ("_format", "_row", "_store")

    def __init__(self, store: Store, format_: RowFormat, row: bytes) -> None:
        self._store = store
        self._format = format_
        self._row = row

    def length(self) -> int:
        """Return how many elements a list has."""
        data = self._store.get(self._row + WHOLE)
        return 0 if data is None else length_of(data)

    def set_length(self, length: int) -> None:
        """Set how many elements a list has; one without any is not stored."""
        self._store.put(self._row + WHOLE, length_row(length) if length else None)

    def get(self, entry: Hashable) -> Any:
        """Return an entry's value, or `MISSING`."""
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
