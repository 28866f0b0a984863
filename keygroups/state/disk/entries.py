"""Lists and maps in the store on disk."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from keygroups.state.backend import MISSING
from keygroups.state.collections import Entries, entries_of, entry_of
from keygroups.state.disk.collections import KeyRows, StoredList, StoredMap
from keygroups.state.disk.encoding import WHOLE, length_row
from keygroups.state.disk.table import DiskTable
from keygroups.state.expiring_values import HOLE
from keygroups.state.key_identity import original_of


class EntriesTable(DiskTable):
    """A state of lists or maps on disk, with one row per element or entry. It has the parameters of `DiskTable`."""

    __slots__ = ()

    def get(self, key_group: int, key: Hashable) -> StoredList | StoredMap:
        """Return the list or map of a key, which may be empty; its entries are read on access."""
        rows = self._rows_of_key(key_group, key)
        return StoredList(rows, rows.length()) if self._format.is_list else StoredMap(rows)

    def put(self, key_group: int, key: Hashable, value: Any) -> None:
        """Store the whole list or map of a key; `MISSING` removes it."""
        content: Entries = () if value is MISSING else value
        self.put_entries(key_group, key, content, [entry for entry, _ in entries_of(content)], replaced=True)

    def put_entries(
        self, key_group: int, key: Hashable, content: Entries, changed: Iterable[Hashable], *, replaced: bool
    ) -> None:
        """Store the changed entries of a key, and record that they have changed."""
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
        self._check_owner()
        return KeyRows(self._store, self._format, self._prefix(key_group) + self._format.key(key))

    def _see(self, key: Hashable, entry: Hashable) -> None:
        self._kinds["key"].add(type(original_of(key)))
        self._kinds["map_key"].add(type(original_of(entry)))
