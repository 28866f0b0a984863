"""A state of one value per key in the store on disk."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from keygroups.descriptors import StateDescriptor
from keygroups.errors import KeyGroupOutOfRange
from keygroups.ranges import KeyGroupRange
from keygroups.state.backend import MISSING, NO_OWNER, Owned, StateCut
from keygroups.state.disk.change_tracking import ChangeTracker
from keygroups.state.disk.cut import ChangedGroups, StoredGroups
from keygroups.state.disk.encoding import CONTENT, RowEncoding
from keygroups.state.disk.store import Store, View
from keygroups.state.expiring_values import handle_of
from keygroups.state.group import KeyGroupContent, LazyGroup
from keygroups.state.key_identity import original_of
from keygroups.state.storable import holds_mutable, plain_check_of

_LOADED_ROWS = 1024
"""How many rows of a restored key group are written to the store in one batch."""

_Group = dict[Hashable, object]


class DiskTable(Owned):
    """A state of one value per key on disk. Only the first thread that uses it may call it.

    A restored key group is written into the store on first use, or by the thread that loads it; until then cuts contain
    it as it was restored. Changes are recorded as soon as there is a cut or a snapshot to which they are relative.

    Parameters
    ----------
    store : Store
        The store that holds the rows.
    number : int
        The number of the state within its store.
    descriptor : StateDescriptor
        The declaration of the state.
    owned : KeyGroupRange
        The key groups of the subtask.
    restored : mapping of int to KeyGroupContent, optional
        The restored key groups.
    tracks : bool
        Whether changes are recorded from the start.
    """

    __slots__ = (
        "_changes",
        "_format",
        "_kinds",
        "_owned",
        "_prefixes",
        "_store",
        "_tracks",
        "_unloaded",
        "descriptor",
        "handle",
        "holds_mutable",
        "is_plain",
        "is_plain_key",
    )

    def __init__(
        self,
        store: Store,
        number: int,
        descriptor: StateDescriptor,
        owned: KeyGroupRange,
        restored: Mapping[int, KeyGroupContent] | None = None,
        *,
        tracks: bool = False,
    ) -> None:
        self._owner = NO_OWNER
        self.descriptor = descriptor
        self.handle = handle_of(descriptor)
        self.is_plain = plain_check_of(descriptor.value_type)
        self.is_plain_key = plain_check_of(getattr(descriptor, "key_type", None))  # only maps have keys
        self.holds_mutable = holds_mutable(descriptor.value_type)
        self._store = store
        self._owned = owned
        self._format = RowEncoding(number, descriptor)
        self._kinds: dict[str, set[type]] = {"key": set(), "map_key": set()}
        self._tracks = tracks
        self._changes = ChangeTracker(store, self._format)
        self._unloaded: dict[int, ArrivingGroup] = {}
        for key_group, group in (restored or {}).items():
            if key_group not in owned:
                raise self._not_owned(key_group)
            self._unloaded[key_group] = ArrivingGroup(self, key_group, group)
        # Only for key groups that are in the store, so one lookup also shows whether a group is loaded.
        self._prefixes: dict[int, bytes] = {
            key_group: self._format.prefix(CONTENT, key_group) for key_group in owned if key_group not in self._unloaded
        }

    def get(self, key_group: int, key: Hashable) -> object:
        """Return the value of a key, or `MISSING`."""
        self._check_owner()
        prefix = self._prefixes.get(key_group) or self._prefix(key_group)
        data = self._store.get(prefix + self._format.key(key))
        return MISSING if data is None else self._format.decode(data)

    def put(self, key_group: int, key: Hashable, value: Any) -> None:
        """Store the value of a key; `MISSING` removes it."""
        self._check_owner()
        prefix = self._prefixes.get(key_group) or self._prefix(key_group)
        part = self._format.key(key)
        if value is MISSING:
            self._store.put(prefix + part, None)
        else:
            self._kinds["key"].add(type(original_of(key)))
            self._store.put(prefix + part, self._format.encode(value))
        if self._tracks:
            self._changes.add(key_group, part)

    def load(self, key_group: int) -> None:
        """Write a restored key group into the store, unless it is already there."""
        self._check_owner()
        if key_group not in self._prefixes:
            self._prefix(key_group)

    def unloaded(self) -> Mapping[int, LazyGroup]:
        """Return the restored key groups that are not in the store yet; loading one writes it there."""
        self._check_owner()
        return self._unloaded

    def install(self, key_group: int, loaded: _Group) -> None:
        """Write the loaded content of a key group, unless the store already has it."""
        self._check_owner()
        if key_group in self._unloaded:
            self._unloaded[key_group].write(loaded)
        self.load(key_group)

    def write_loaded(self, key_group: int, group: Mapping[Hashable, Any]) -> None:
        """Write restored rows directly to the store, past the owner's buffered writes. Any thread may call it."""
        rows: list[tuple[bytes, bytes]] = []
        for row in self._encoded(self._format.prefix(CONTENT, key_group), group):
            rows.append(row)
            if len(rows) == _LOADED_ROWS:
                self._store.write(rows)
                rows = []
        self._store.write(rows)

    def write_changes(self) -> None:
        """Write the notes of changed rows, so that a view contains them."""
        self._check_owner()
        self._changes.write()

    def cut(self, view: View, cut_id: str, since: str | None) -> StateCut:
        """Return the content of the state in a view.

        Parameters
        ----------
        view : View
            A view of the store, taken now.
        cut_id, since : str, str or None
            As in `StateCut`.
        """
        self._check_owner()
        assert (since is not None) == self._tracks, "changes are recorded from the first cut or restore on"
        unloaded = {key_group: arrival.group for key_group, arrival in self._unloaded.items()}
        kinds = {column: frozenset(kinds) for column, kinds in self._kinds.items()}
        groups = StoredGroups(view, self._format, self._owned, unloaded, kinds)
        whole = self._changes.forget()
        changed = None if since is None else ChangedGroups(view, self._format, self._owned, whole)
        self._tracks = True
        return StateCut(self.descriptor, groups, cut_id, since, changed)

    def _encoded(self, prefix: bytes, group: Mapping[Hashable, Any]) -> Iterator[tuple[bytes, bytes]]:
        """Encode the rows of a key group."""
        format_, kinds = self._format, self._kinds["key"]
        for key, value in group.items():
            kinds.add(type(original_of(key)))
            yield prefix + format_.key(key), format_.encode(value)

    def _prefix(self, key_group: int) -> bytes:
        """Return the prefix of a key group's rows; loads the key group first if needed."""
        if key_group in self._unloaded:
            self._unloaded[key_group].load()
            del self._unloaded[key_group]
            self._prefixes[key_group] = self._format.prefix(CONTENT, key_group)
        if key_group not in self._prefixes:
            raise self._not_owned(key_group)
        return self._prefixes[key_group]

    def _not_owned(self, key_group: int) -> KeyGroupOutOfRange:
        return KeyGroupOutOfRange(key_group, self._owned.start, self._owned.end)


class ArrivingGroup:
    """One key group that has to be loaded. Any thread may load it; it is loaded only once.

    Parameters
    ----------
    table : DiskTable
        The table to load it into.
    key_group : int
        Its number.
    group : KeyGroupContent
        The restored content.
    """

    __slots__ = ("_is_loaded", "_key_group", "_lock", "_table", "group")

    def __init__(self, table: DiskTable, key_group: int, group: KeyGroupContent) -> None:
        self.group = group
        self._table = table
        self._key_group = key_group
        self._lock = threading.Lock()
        self._is_loaded = False

    def load(self) -> _Group:
        """Read the key group and write it into the store; nothing of it stays in memory."""
        self.write(None)
        return {}

    def write(self, loaded: _Group | None) -> None:
        """Write the key group into the store: the loaded content, or, without it, what is read now."""
        with self._lock:
            if self._is_loaded:
                return
            if loaded is None:
                held = self.group.in_memory()
                loaded = self.group.load() if held is None else held
            self._table.write_loaded(self._key_group, loaded)
            self._is_loaded = True
