"""One keyed state in a store on disk."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from keygroups.descriptors import StateDescriptor
from keygroups.errors import KeyGroupOutOfRange
from keygroups.ranges import KeyGroupRange
from keygroups.state.backend import MISSING, LazyGroup, StateCut
from keygroups.state.collections import Entries, entries_of, entry_of
from keygroups.state.disk.cut import ChangedGroups, StoredGroups
from keygroups.state.disk.entries import StoredList, StoredMap
from keygroups.state.disk.rows import CHANGED, CONTENT, WHOLE, RowFormat, length_of, length_row
from keygroups.state.disk.store import Store, View
from keygroups.state.identity import original_of
from keygroups.state.storable import plain_check_of
from keygroups.state.ttl import HOLE

NOTES_MAX = 2**22
"""A key group counts as wholly changed once more has been noted of it, the same rows included that are written anew."""

_LOADED_ROWS = 1024
"""So many rows of a key group that is loaded are handed to the store at once."""

_Group = dict[Hashable, object]


class DiskTable:
    """One state on disk.

    A restored key group is written into the store on its first touch, or by the thread that loads it; until then a cut
    passes it on as it was restored. What has changed since the last cut is noted in rows of its own beside the
    content, so that nothing in memory grows with it. Nothing is noted before there is a cut or a snapshot to be
    relative to.

    Parameters
    ----------
    store : Store
        Where the rows are.
    number : int
        The state's place among those of the store.
    descriptor : StateDescriptor
        The declaration.
    owned : KeyGroupRange
        The key groups of the subtask.
    restored : mapping of int to (LazyGroup or dict), optional
        The restored key groups.
    tracks : bool
        Whether changes are noted from the start.
    """

    __slots__ = (
        "_content",
        "_format",
        "_kinds",
        "_noted",
        "_notes",
        "_owned",
        "_store",
        "_tracks",
        "_unloaded",
        "descriptor",
        "is_plain",
    )

    def __init__(
        self,
        store: Store,
        number: int,
        descriptor: StateDescriptor,
        owned: KeyGroupRange,
        restored: Mapping[int, LazyGroup | _Group] | None = None,
        *,
        tracks: bool = False,
    ) -> None:
        self.descriptor = descriptor
        self.is_plain = plain_check_of(descriptor.value_type)
        self._store = store
        self._owned = owned
        self._format = RowFormat(number, descriptor)
        self._content: dict[int, bytes] = {group: self._format.prefix(CONTENT, group) for group in owned}
        self._noted: dict[int, bytes] = {group: self._format.prefix(CHANGED, group) for group in owned}
        self._kinds: dict[str, set[type]] = {"key": set(), "map_key": set()}
        self._tracks = tracks
        self._notes: dict[int, int] = {}
        self._unloaded: dict[int, _Arrival] = {}
        for key_group, group in (restored or {}).items():
            if key_group not in owned:
                raise self._not_owned(key_group)
            self._unloaded[key_group] = _Arrival(self, key_group, group)

    def get(self, key_group: int, key: Hashable) -> object:
        """Return the value of a key, or `MISSING`; of many entries always a collection, which may be empty."""
        if key_group in self._unloaded or key_group not in self._content:
            self.load(key_group)
        row = self._content[key_group] + self._format.key(key)
        if self._format.has_entries:
            rows = KeyRows(self._store, self._format, row)
            return StoredList(rows, rows.length()) if self._format.is_list else StoredMap(rows)
        data = self._store.get(row)
        return MISSING if data is None else self._format.decode(data)

    def put(self, key_group: int, key: Hashable, value: object) -> None:
        """Store the value of a key; `MISSING` removes it."""
        if self._format.has_entries:
            content: Entries = () if value is MISSING else value  # type: ignore[assignment]
            self.put_entries(key_group, key, content, [entry for entry, _ in entries_of(content)], replaced=True)
            return
        if key_group in self._unloaded or key_group not in self._content:
            self.load(key_group)
        part = self._format.key(key)
        if value is MISSING:
            self._store.put(self._content[key_group] + part, None)
        else:
            self._kinds["key"].add(type(original_of(key)))
            self._store.put(self._content[key_group] + part, self._format.encode(value))
        if self._tracks:
            self._note(key_group, part)

    def put_entries(
        self, key_group: int, key: Hashable, content: Entries, changed: Iterable[Hashable], *, replaced: bool
    ) -> None:
        """Store the changed entries of a key, and note which they are."""
        self.load(key_group)
        format_, store = self._format, self._store
        part = format_.key(key)
        row = self._content[key_group] + part
        if replaced:
            self._remove_all(KeyRows(store, format_, row))
            if self._tracks:
                self._note(key_group, part + WHOLE)
        for entry in changed:
            value = entry_of(content, entry, MISSING)
            packed = format_.entry(entry)
            store.put(row + packed, None if value is MISSING else format_.encode(value))
            self._see(key, entry)
            if self._tracks:
                self._note(key_group, part + packed)
        if format_.is_list:
            store.put(row + WHOLE, length_row(len(content)) if len(content) else None)

    def load(self, key_group: int) -> None:
        """Write a key group that was restored into the store, unless it is there already."""
        if key_group not in self._content:
            raise self._not_owned(key_group)
        if key_group in self._unloaded:
            self._unloaded[key_group].load()
            del self._unloaded[key_group]

    def unloaded(self) -> Mapping[int, LazyGroup]:
        """Return the key groups that are not in the store yet; to load one writes it there."""
        return self._unloaded

    def install(self, key_group: int, loaded: _Group) -> None:
        """Take over what was loaded for a key group, unless it is in the store already."""
        if key_group in self._unloaded:
            self._unloaded[key_group].write(loaded)
        self.load(key_group)

    def cut(self, view: View, cut_id: str, since: str | None) -> StateCut:
        """Return what the state holds in a view.

        Parameters
        ----------
        view : View
            The store as it is now.
        cut_id, since : str, str or None
            As in `StateCut`.
        """
        assert (since is not None) == self._tracks, "changes are noted from the first cut or restore on"
        unloaded = {key_group: arrival.group for key_group, arrival in self._unloaded.items()}
        kinds = {column: frozenset(kinds) for column, kinds in self._kinds.items()}
        groups = StoredGroups(view, self._format, self._owned, unloaded, kinds)
        whole = frozenset(key_group for key_group, notes in self._notes.items() if notes > NOTES_MAX)
        changed = None if since is None else ChangedGroups(view, self._format, self._owned, whole)
        self._notes = {}
        self._tracks = True
        return StateCut(self.descriptor, groups, cut_id, since, changed)

    def write_loaded(self, key_group: int, group: _Group) -> None:
        """Write what was restored, past the rows that the owner has not handed over yet. Any thread may call it."""
        rows: list[tuple[bytes, bytes]] = []
        for row in self._rows_of(self._content[key_group], group):
            rows.append(row)
            if len(rows) == _LOADED_ROWS:
                self._store.write(rows)
                rows = []
        self._store.write(rows)

    def _rows_of(self, prefix: bytes, group: Mapping[Hashable, Any]) -> Iterator[tuple[bytes, bytes]]:
        format_ = self._format
        for key, content in group.items():
            row = prefix + format_.key(key)
            if not format_.has_entries:
                self._kinds["key"].add(type(original_of(key)))
                yield row, format_.encode(content)
                continue
            for entry, value in entries_of(content):
                if value is not HOLE:
                    self._see(key, entry)
                    yield row + format_.entry(entry), format_.encode(value)
            if format_.is_list:
                yield row + WHOLE, length_row(len(content))

    def _remove_all(self, rows: KeyRows) -> None:
        for entry, _ in rows.parts():
            self._store.put(rows.row + entry, None)

    def _note(self, key_group: int, part: bytes) -> None:
        """Note that a row has changed, unless that has become too much."""
        notes = self._notes[key_group] = self._notes.get(key_group, 0) + 1
        if notes <= NOTES_MAX:
            self._store.put(self._noted[key_group] + part, b"")

    def _see(self, key: Hashable, entry: Hashable) -> None:
        self._kinds["key"].add(type(original_of(key)))
        if not self._format.is_list:
            self._kinds["map_key"].add(type(original_of(entry)))

    def _not_owned(self, key_group: int) -> KeyGroupOutOfRange:
        return KeyGroupOutOfRange(key_group, self._owned.start, self._owned.end)


class KeyRows:
    """The rows of one key in a state of many entries. Only the thread that owns the operator may call it."""

    __slots__ = ("_format", "_store", "row")

    def __init__(self, store: Store, format_: RowFormat, row: bytes) -> None:
        self._store = store
        self._format = format_
        self.row = row

    def length(self) -> int:
        """Return how many elements a list has."""
        data = self._store.get(self.row + WHOLE)
        return 0 if data is None else length_of(data)

    def get(self, entry: Hashable) -> Any:
        """Return an entry's value, or `MISSING`."""
        data = self._store.get(self.row + self._format.entry(entry))
        return MISSING if data is None else self._format.decode(data)

    def entries(self) -> Iterator[tuple[Hashable, Any]]:
        """Return all entries, in the order of their rows."""
        for entry, data in self.parts():
            if entry != WHOLE:
                yield self._format.entry_of(entry), self._format.decode(data)

    def parts(self) -> Iterator[tuple[bytes, bytes]]:
        """Return the packed entries with their data."""
        return ((row[len(self.row) :], data) for row, data in self._store.scan(self.row))


class _Arrival:
    """A restored key group on its way into the store. Any thread may load it; what comes second finds it done."""

    __slots__ = ("_is_loaded", "_key_group", "_lock", "_table", "group")

    def __init__(self, table: DiskTable, key_group: int, group: LazyGroup | _Group) -> None:
        self.group = group
        self._table = table
        self._key_group = key_group
        self._lock = threading.Lock()
        self._is_loaded = False

    def load(self) -> _Group:
        """Read it and write it into the store; nothing of it stays in memory."""
        self.write(None)
        return {}

    def write(self, loaded: _Group | None) -> None:
        """Write it into the store, as it was loaded elsewhere or as it is read now."""
        with self._lock:
            if self._is_loaded:
                return
            if loaded is None:
                loaded = self.group if isinstance(self.group, dict) else self.group.load()
            self._table.write_loaded(self._key_group, loaded)
            self._is_loaded = True
