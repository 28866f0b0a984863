"""One keyed state in a store on disk."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from keygroups.descriptors import StateDescriptor
from keygroups.errors import KeyGroupOutOfRange
from keygroups.ranges import KeyGroupRange
from keygroups.state.backend import MISSING, LazyGroup, StateCut
from keygroups.state.collections import Entries
from keygroups.state.disk.arrival import Arrival
from keygroups.state.disk.cut import ChangedGroups, StoredGroups
from keygroups.state.disk.notes import Notes
from keygroups.state.disk.rows import CONTENT, RowFormat
from keygroups.state.disk.store import Store, View
from keygroups.state.identity import original_of
from keygroups.state.storable import plain_check_of

_LOADED_ROWS = 1024
"""So many rows of a key group that is loaded are handed to the store at once."""

_Group = dict[Hashable, object]


class DiskTable:
    """One state of one value per key on disk.

    A restored key group is written into the store on its first touch, or by the thread that loads it; until then a cut
    passes it on as it was restored. Changes are noted as soon as there is a cut or a snapshot to be relative to.

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
        "_format",
        "_kinds",
        "_notes",
        "_owned",
        "_prefixes",
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
        self._kinds: dict[str, set[type]] = {"key": set(), "map_key": set()}
        self._tracks = tracks
        self._notes = Notes(store, self._format)
        self._unloaded: dict[int, Arrival] = {}
        for key_group, group in (restored or {}).items():
            if key_group not in owned:
                raise self._not_owned(key_group)
            self._unloaded[key_group] = Arrival(self, key_group, group)
        # Of the key groups that are in the store, so that one look says whether one is.
        self._prefixes: dict[int, bytes] = {
            key_group: self._format.prefix(CONTENT, key_group) for key_group in owned if key_group not in self._unloaded
        }

    def get(self, key_group: int, key: Hashable) -> object:
        """Return the value of a key, or `MISSING`."""
        prefix = self._prefixes.get(key_group) or self._prefix(key_group)
        data = self._store.get(prefix + self._format.key(key))
        return MISSING if data is None else self._format.decode(data)

    def put(self, key_group: int, key: Hashable, value: Any) -> None:
        """Store the value of a key; `MISSING` removes it."""
        prefix = self._prefixes.get(key_group) or self._prefix(key_group)
        part = self._format.key(key)
        if value is MISSING:
            self._store.put(prefix + part, None)
        else:
            self._kinds["key"].add(type(original_of(key)))
            self._store.put(prefix + part, self._format.encode(value))
        if self._tracks:
            self._notes.add(key_group, part)

    def put_entries(
        self, key_group: int, key: Hashable, content: Entries, changed: Iterable[Hashable], *, replaced: bool
    ) -> None:
        """Refuse: a state of one value has no entries."""
        raise AssertionError(f"a {self.descriptor.kind} state has no entries")

    def load(self, key_group: int) -> None:
        """Write a key group that was restored into the store, unless it is there already."""
        if key_group not in self._prefixes:
            self._prefix(key_group)

    def unloaded(self) -> Mapping[int, LazyGroup]:
        """Return the key groups that are not in the store yet; to load one writes it there."""
        return self._unloaded

    def install(self, key_group: int, loaded: _Group) -> None:
        """Take over what was loaded for a key group, unless it is in the store already."""
        if key_group in self._unloaded:
            self._unloaded[key_group].write(loaded)
        self.load(key_group)

    def write_loaded(self, key_group: int, group: Mapping[Hashable, Any]) -> None:
        """Write what was restored, past the rows that the owner has not handed over yet. Any thread may call it."""
        rows: list[tuple[bytes, bytes]] = []
        for row in self._encoded(self._format.prefix(CONTENT, key_group), group):
            rows.append(row)
            if len(rows) == _LOADED_ROWS:
                self._store.write(rows)
                rows = []
        self._store.write(rows)

    def write_notes(self) -> None:
        """Write which rows have changed, so that a view has them."""
        self._notes.write()

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
        whole = self._notes.forget()
        changed = None if since is None else ChangedGroups(view, self._format, self._owned, whole)
        self._tracks = True
        return StateCut(self.descriptor, groups, cut_id, since, changed)

    def _encoded(self, prefix: bytes, group: Mapping[Hashable, Any]) -> Iterator[tuple[bytes, bytes]]:
        """Return the rows of a key group."""
        format_, kinds = self._format, self._kinds["key"]
        for key, value in group.items():
            kinds.add(type(original_of(key)))
            yield prefix + format_.key(key), format_.encode(value)

    def _prefix(self, key_group: int) -> bytes:
        """Return how the rows of a key group begin, once it is in the store."""
        if key_group in self._unloaded:
            self._unloaded[key_group].load()
            del self._unloaded[key_group]
            self._prefixes[key_group] = self._format.prefix(CONTENT, key_group)
        if key_group not in self._prefixes:
            raise self._not_owned(key_group)
        return self._prefixes[key_group]

    def _not_owned(self, key_group: int) -> KeyGroupOutOfRange:
        return KeyGroupOutOfRange(key_group, self._owned.start, self._owned.end)
