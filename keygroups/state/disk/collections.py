"""Lists and maps on disk: their table, and each read entry by entry, with the writes of one invocation on top."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from immutables import Map

from keygroups.state.backend import MISSING
from keygroups.state.collections import Entries, entries_of, entry_of
from keygroups.state.disk.encoding import WHOLE, RowEncoding, length_of, length_row
from keygroups.state.disk.store import Store
from keygroups.state.disk.table import DiskTable
from keygroups.state.expiring_values import HOLE
from keygroups.state.key_identity import original_of


class StoredList(Sequence[Any]):
    """The stored elements of a list, followed by new ones. Only the thread that owns the operator may call it."""

    __slots__ = ("_added", "_rows", "_stored")

    def __init__(self, rows: KeyRows, stored: int, added: Sequence[Any] = ()) -> None:
        self._rows = rows
        self._stored = stored
        self._added = added

    def __len__(self) -> int:
        return self._stored + len(self._added)

    def __iter__(self) -> Iterator[Any]:
        position = 0
        for at, value in self._rows.entries():
            assert isinstance(at, int), "the entries of a list are positions"
            for _ in range(position, at):
                yield HOLE
            yield value
            position = at + 1
        assert position == self._stored, "a list ends with an element that is stored"
        yield from self._added

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return list(self)[index]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        if index >= self._stored:
            return self._added[index - self._stored]
        value = self._rows.get(index)
        return HOLE if value is MISSING else value

    def extended(self, more: Iterable[Any]) -> StoredList:
        """Return a list with more elements at the end; this list stays unchanged."""
        return StoredList(self._rows, self._stored, [*self._added, *more])


class StoredMap(Mapping[Hashable, Any]):
    """The stored entries of a map, with new and deleted ones on top. Only the owner's thread may call it.

    `set` and `delete` return a new map, as in `immutables.Map`.
    """

    __slots__ = ("_rows", "_written")

    def __init__(self, rows: KeyRows, written: Map[Hashable, Any] | None = None) -> None:
        self._rows = rows
        self._written: Map[Hashable, Any] = Map() if written is None else written

    def __getitem__(self, key: Hashable) -> Any:
        value = self._find(key)
        if value is MISSING:
            raise KeyError(key)
        return value

    def get(self, key: Hashable, default: Any = None) -> Any:
        """Return the value of a map key, or a default if it has none."""
        value = self._find(key)
        return default if value is MISSING else value

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not MISSING

    def __iter__(self) -> Iterator[Hashable]:
        written = self._written
        for key, _ in self._rows.entries():
            if key not in written:
                yield key
        yield from (key for key, value in written.items() if value is not MISSING)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def set(self, key: Hashable, value: Any) -> StoredMap:
        """Return a map in which the map key has this value."""
        return StoredMap(self._rows, self._written.set(key, value))

    def delete(self, key: Hashable) -> StoredMap:
        """Return a map without this map key."""
        return StoredMap(self._rows, self._written.set(key, MISSING))

    def _find(self, key: Any) -> Any:
        value = self._written.get(key, self)
        return self._rows.get(key) if value is self else value


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
                self._changes.add(key_group, part + WHOLE)
        for entry in changed:
            rows.put(entry, entry_of(content, entry, MISSING))
            self._see(key, entry)
            if self._tracks:
                self._changes.add(key_group, part + format_.entry(entry))
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
