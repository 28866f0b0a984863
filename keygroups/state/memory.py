"""Keyed state in dicts, one per key group, so that the key group is the unit of freezing and of loading."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Iterable, Mapping, Sized
from typing import Any, TypeAlias

from keygroups.descriptors import StateDescriptor
from keygroups.errors import ConfigError, KeyGroupOutOfRange
from keygroups.ranges import KeyGroupRange
from keygroups.state.backend import MISSING, LazyGroup, StateCut
from keygroups.state.collections import Entries
from keygroups.state.layered import LayeredGroup, is_shared
from keygroups.state.storable import plain_check_of
from keygroups.ttl import wall_time

CHANGED_KEYS_MIN = 1024
"""A group counts as wholly changed once removals have brought more keys than this, and than half of the group."""

_Group: TypeAlias = dict[Hashable, object]

_Keys: TypeAlias = dict[Hashable, None]
"""A set of keys, as a dict: the garbage collector walks through every set, a million keys at once if they are young,
and leaves out dicts of text, bytes and numbers."""


class _FreedInSteps(dict[int, Any]):
    """Key groups of a cut. Whichever thread lets go of the last reference lets others run between two groups.

    To free a million keys at once would hold the interpreter lock, so the event loop, for tens of milliseconds.
    """

    def __del__(self) -> None:
        while self:
            self.popitem()


class MemoryTable:
    """One state in memory.

    A group is a dict, or a `LazyGroup` until its first touch. The first write to a group after a cut *opens* it: puts a
    layer on it if something else holds it, a cut as a rule, and begins to note which keys change. So a cut costs
    nothing per key, a write no more than its own, and memory grows by what is written while a cut is held. Nothing is
    noted before there is a cut or a snapshot to be relative to.
    """

    __slots__ = ("_groups", "_opened", "_owned", "_tracks", "descriptor", "is_plain")

    def __init__(
        self,
        descriptor: StateDescriptor,
        owned: KeyGroupRange,
        restored: Mapping[int, LazyGroup | _Group] | None = None,
        *,
        tracks: bool = False,
    ) -> None:
        self.descriptor = descriptor
        self.is_plain = plain_check_of(descriptor.value_type)
        self._owned = owned
        self._groups: dict[int, _Group | LayeredGroup | LazyGroup] = {key_group: {} for key_group in owned}
        for key_group, group in (restored or {}).items():
            if key_group not in owned:
                raise self._not_owned(key_group)
            self._groups[key_group] = group
        self._opened: dict[int, tuple[_Group | LayeredGroup, _Keys | None]] = {}
        self._tracks = tracks

    def get(self, key_group: int, key: Hashable) -> object:
        """Return the value of a key, or `MISSING`."""
        try:
            group = self._groups[key_group]
        except KeyError:
            raise self._not_owned(key_group) from None
        if type(group) is not dict:
            group = self.load(key_group)
            if type(group) is LayeredGroup:
                group = self._fold(key_group, group)
        return group.get(key, MISSING)

    def put(self, key_group: int, key: Hashable, value: object) -> None:
        """Store the value of a key; `MISSING` removes it."""
        try:
            group, changed = self._opened[key_group]
        except KeyError:
            group, changed = self._open(key_group)
        if changed is not None:
            changed[key] = None
        if value is MISSING:
            group.pop(key, None)
            # Only removals make more keys change than there are.
            if changed is not None and _is_whole(group, changed):
                self._opened[key_group] = group, None
        else:
            group[key] = value

    def put_entries(
        self, key_group: int, key: Hashable, content: Entries, changed: Iterable[Hashable], *, replaced: bool
    ) -> None:
        """Store the list or map of a key, and note which of its entries changed."""
        group, noted = self._opened.get(key_group) or self._open(key_group)
        if content:
            group[key] = content
        else:
            group.pop(key, None)
        if noted is None:
            return
        if replaced:
            noted[key, MISSING] = None
        before = len(noted)
        noted.update([((key, entry), None) for entry in changed])
        # To count is as long as the group, so it is done once for many entries.
        if before // CHANGED_KEYS_MIN != len(noted) // CHANGED_KEYS_MIN:
            held_by_key = group if isinstance(group, dict) else group.load()
            entries = sum(len(held) for held in held_by_key.values() if isinstance(held, Sized))
            if len(noted) > entries // 2:
                self._opened[key_group] = group, None

    def unloaded(self) -> dict[int, LazyGroup]:
        """Return the key groups that are not in memory yet."""
        return {
            key_group: group for key_group, group in self._groups.items() if not isinstance(group, dict | LayeredGroup)
        }

    def install(self, key_group: int, loaded: _Group) -> None:
        """Take over what was loaded for a key group, unless it is in memory already."""
        if key_group not in self._groups:
            raise self._not_owned(key_group)
        if not isinstance(self._groups[key_group], dict | LayeredGroup):
            self._groups[key_group] = loaded

    def cut(self, cut_id: str, since: str | None) -> StateCut:
        """Freeze every group as it is now.

        Parameters
        ----------
        cut_id, since : str, str or None
            As in `StateCut`.
        """
        assert (since is not None) == self._tracks, "changes are noted from the first cut or restore on"
        groups = _FreedInSteps(
            (key_group, group.frozen() if isinstance(group, LayeredGroup) else group)
            for key_group, group in self._groups.items()
            if group
        )
        changed = _FreedInSteps((key_group, keys) for key_group, (_, keys) in self._opened.items())
        self._opened = {}
        self._tracks = True
        return StateCut(self.descriptor, groups, cut_id, since, None if since is None else changed)

    def _open(self, key_group: int) -> tuple[_Group | LayeredGroup, _Keys | None]:
        group = self._groups[key_group] = self._writable(key_group)
        opened = self._opened[key_group] = group, {} if self._tracks else None
        return opened

    def _writable(self, key_group: int) -> _Group | LayeredGroup:
        """Return a group, or what is written to in its place if something else holds it."""
        self.load(key_group)
        # Asked before a variable holds it.
        shared = is_shared(self._groups, key_group)
        group = self.load(key_group)
        if isinstance(group, dict):
            return LayeredGroup(group) if shared else group
        return group.load() if group.is_frozen else group

    def _fold(self, key_group: int, group: LayeredGroup) -> _Group | LayeredGroup:
        """Go on folding the layers of a group, and return what is left."""
        folded = group.fold()
        if folded is None:
            return group
        self._groups[key_group] = folded
        if key_group in self._opened:
            self._opened[key_group] = folded, self._opened[key_group][1]
        return folded

    def load(self, key_group: int) -> _Group | LayeredGroup:
        """Bring a key group into memory, and return it."""
        if key_group not in self._groups:
            raise self._not_owned(key_group)
        group = self._groups[key_group]
        if isinstance(group, dict | LayeredGroup):
            return group
        loaded = self._groups[key_group] = group.load()
        return loaded

    def _not_owned(self, key_group: int) -> KeyGroupOutOfRange:
        return KeyGroupOutOfRange(key_group, self._owned.start, self._owned.end)


class MemoryBackend:
    """The keyed state of one subtask, in memory. Only the thread that owns the operator may call it.

    Parameters
    ----------
    descriptors : iterable of StateDescriptor
        The states that the function declares.
    owned : KeyGroupRange
        The key groups of the subtask.
    restored : mapping of str to (mapping of int to LazyGroup or dict), optional
        Content by state name and key group, loaded on first touch; a dict is never changed.
    since : str, optional
        The id of the snapshot that `restored` is the whole content of, so that the next one can be a delta on it.
    wall_time : callable
        Returns the processing time (milliseconds since the epoch).

    Raises
    ------
    ConfigError
        Two states have the same name.

    Examples
    --------
    >>> from keygroups import ValueState
    >>> backend = MemoryBackend([ValueState("seen")], KeyGroupRange(0, 127))
    >>> backend.tables["seen"].put(5, "a", 1)
    >>> backend.tables["seen"].get(5, "a")
    1
    """

    __slots__ = ("_since", "tables", "wall_time")

    def __init__(
        self,
        descriptors: Iterable[StateDescriptor],
        owned: KeyGroupRange,
        restored: Mapping[str, Mapping[int, LazyGroup | _Group]] | None = None,
        since: str | None = None,
        wall_time: Callable[[], int] = wall_time,
    ) -> None:
        self.wall_time = wall_time
        contents = restored or {}
        self._since = since
        self.tables: dict[str, MemoryTable] = {}
        for descriptor in descriptors:
            if descriptor.name in self.tables:
                raise ConfigError("states", descriptor.name, "two states have this name; each needs one of its own")
            table = MemoryTable(descriptor, owned, contents.get(descriptor.name), tracks=since is not None)
            self.tables[descriptor.name] = table

    def cut(self) -> tuple[StateCut, ...]:
        """Freeze the content of all states as it is now, without copying it."""
        cut_id = uuid.uuid4().hex
        cuts = tuple(table.cut(cut_id, self._since) for table in self.tables.values())
        self._since = cut_id
        return cuts

    def close(self) -> None:
        """Do nothing: memory is freed by itself."""


def _is_whole(group: _Group | LayeredGroup, changed: _Keys) -> bool:
    return len(changed) > max(CHANGED_KEYS_MIN, len(group) // 2)
