"""A state in memory: one dict per key group, which is the unit of freezing and loading."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Hashable, Iterable, Mapping, Sized
from typing import Any, Protocol, TypeAlias

from keygroups.descriptors import StateDescriptor
from keygroups.errors import KeyGroupOutOfRange
from keygroups.ranges import KeyGroupRange
from keygroups.state.backend import MISSING, NO_OWNER, Owned, StateCut
from keygroups.state.collections import Entries
from keygroups.state.expiring_values import handle_of
from keygroups.state.group import KeyGroupContent
from keygroups.state.memory.cut import FreedInSteps, MemoryGroups
from keygroups.state.memory.cut_holds import RESTORED, Hold, Holds
from keygroups.state.memory.layered import LayeredGroup, Values
from keygroups.state.storable import holds_mutable, plain_check_of

CHANGED_KEYS_MIN = 1024
"""A group counts as wholly changed once its changed keys exceed this number and half of the group."""

_Keys: TypeAlias = dict[Hashable, None]
"""A set of keys, kept as a dict: the garbage collector traverses every set, a million keys at once if it is young, but
it skips dicts of text, bytes and numbers."""


class _Group(Protocol):
    """A key group in memory: a dict, or two dicts that are used like one."""

    def __len__(self) -> int: ...
    def __setitem__(self, key: Hashable, value: object, /) -> None: ...
    def get(self, key: Hashable, default: object, /) -> object: ...
    def pop(self, key: Hashable, default: None, /) -> object: ...
    def values(self) -> Iterable[Any]: ...


class MemoryTable(Owned):
    """A state in memory. Only the first thread that uses it may call it.

    A key group is one dict, two dicts while a cut holds it, or restored content that is loaded on first use. The first
    write to a group after a cut *opens* the group: it adds a layer if the cut is still held, and starts to record which
    keys change. So a cut costs nothing per key, a write costs only itself, and memory grows by what is written while a
    cut is held. Changes are recorded only once there is a cut or a snapshot to which they are relative.

    Parameters
    ----------
    descriptor : StateDescriptor
        The declaration of the state.
    owned : KeyGroupRange
        The key groups of the subtask.
    holds : Holds
        The cuts of the backend that are still held.
    restored : mapping of int to KeyGroupContent, optional
        The restored key groups.
    tracks : bool
        Whether changes are recorded from the start.
    """

    __slots__ = (
        "_ages",
        "_holds",
        "_layered",
        "_opened",
        "_owned",
        "_tracks",
        "_unloaded",
        "_values",
        "descriptor",
        "handle",
        "holds_mutable",
        "is_plain",
        "is_plain_key",
    )

    def __init__(
        self,
        descriptor: StateDescriptor,
        owned: KeyGroupRange,
        holds: Holds,
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
        self._owned = owned
        self._holds = holds
        # Each key group is in exactly one of these.
        self._values: dict[int, Values] = {key_group: {} for key_group in owned}
        self._layered: dict[int, LayeredGroup] = {}
        self._unloaded: dict[int, KeyGroupContent] = {}
        # The number of cuts before the dict of a key group was created, if it is not zero.
        self._ages: dict[int, int] = {}
        for key_group, group in (restored or {}).items():
            self._restore(key_group, group)
        self._opened: dict[int, tuple[_Group, _Keys | None]] = {}
        self._tracks = tracks

    def get(self, key_group: int, key: Hashable) -> object:
        """Return the value of a key, or `MISSING`."""
        if get_ident() != self._owner:
            self._check_owner()
        if key_group in self._values:
            return self._values[key_group].get(key, MISSING)
        return self._reached(key_group).get(key, MISSING)

    def put(self, key_group: int, key: Hashable, value: object) -> None:
        """Store the value of a key; `MISSING` removes it."""
        if get_ident() != self._owner:
            self._check_owner()
        try:
            group, changed = self._opened[key_group]
        except KeyError:
            group, changed = self._open(key_group)
        if changed is not None:
            changed[key] = None
        if value is MISSING:
            group.pop(key, None)
            # Only removals can make the changed keys outnumber the present ones.
            if changed is not None and _is_whole(group, changed):
                self._opened[key_group] = group, None
        else:
            group[key] = value

    def put_entries(
        self, key_group: int, key: Hashable, content: Entries, changed: Iterable[Hashable], *, replaced: bool
    ) -> None:
        """Store the list or map of a key, and record which of its entries changed."""
        self._check_owner()
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
        # Counting takes time in proportion to the group, so it is done once for many entries.
        if before // CHANGED_KEYS_MIN != len(noted) // CHANGED_KEYS_MIN:
            entries = sum(len(held) for held in group.values() if isinstance(held, Sized))
            if len(noted) > entries // 2:
                self._opened[key_group] = group, None

    def load(self, key_group: int) -> _Group:
        """Load a key group into memory if needed, and return it."""
        self._check_owner()
        if key_group not in self._owned:
            raise self._not_owned(key_group)
        if key_group in self._unloaded:
            self._values[key_group] = self._unloaded[key_group].load()
            del self._unloaded[key_group]
        layered = self._layered.get(key_group)
        return self._values[key_group] if layered is None else layered

    def unloaded(self) -> Mapping[int, KeyGroupContent]:
        """Return the restored key groups that are not in memory yet."""
        self._check_owner()
        return self._unloaded

    def install(self, key_group: int, loaded: Values) -> None:
        """Take over the loaded content of a key group, unless it is already in memory."""
        self._check_owner()
        if key_group not in self._owned:
            raise self._not_owned(key_group)
        if self._unloaded.pop(key_group, None) is not None:
            self._values[key_group] = loaded

    def cut(self, hold: Hold, cut_id: str, since: str | None) -> StateCut:
        """Freeze the current content of every group.

        Parameters
        ----------
        hold : Hold
            The hold of the cut.
        cut_id, since : str, str or None
            As in `StateCut`.
        """
        self._check_owner()
        assert (since is not None) == self._tracks, "changes are recorded from the first cut or restore on"
        groups = MemoryGroups(
            FreedInSteps((key_group, values) for key_group, values in self._values.items() if values),
            {key_group: group.frozen() for key_group, group in self._layered.items() if group},
            self._unloaded.copy(),
            self.descriptor.kind,
            hold,
        )
        changed = FreedInSteps((key_group, keys) for key_group, (_, keys) in self._opened.items())
        self._opened = {}
        self._tracks = True
        return StateCut(self.descriptor, groups, cut_id, since, None if since is None else changed)

    def _restore(self, key_group: int, group: KeyGroupContent) -> None:
        if key_group not in self._owned:
            raise self._not_owned(key_group)
        values = group.in_memory()
        if values is None:
            del self._values[key_group]
            self._unloaded[key_group] = group
        else:
            self._values[key_group] = values
            self._ages[key_group] = RESTORED

    def _open(self, key_group: int) -> tuple[_Group, _Keys | None]:
        opened = self._opened[key_group] = self._writable(key_group), {} if self._tracks else None
        return opened

    def _writable(self, key_group: int) -> _Group:
        """Return the object to write to: the group, or a layer on it while a cut holds it."""
        self.load(key_group)
        values = self._values.get(key_group)
        if values is None:
            layered = self._layered[key_group]
            return self._settle(key_group, layered.merged(), self._holds.made) if layered.is_frozen else layered
        age = self._ages.get(key_group, 0)
        if not self._holds.hold_what_is_of(age):
            return values
        layered = self._layered[key_group] = LayeredGroup(values, age, self._holds)
        del self._values[key_group]
        return layered

    def _reached(self, key_group: int) -> _Group:
        """Return a group that is not a single dict; if it has layers, fold some keys."""
        layered = self._layered.get(key_group)
        if layered is None:
            return self.load(key_group)
        folded = layered.fold()
        if folded is None:
            return layered
        if key_group in self._opened:
            self._opened[key_group] = folded, self._opened[key_group][1]
        return self._settle(key_group, folded, self._ages.get(key_group, 0))

    def _settle(self, key_group: int, values: Values, age: int) -> Values:
        """Make a group a single dict again."""
        del self._layered[key_group]
        self._values[key_group] = values
        self._ages[key_group] = age
        return values

    def _not_owned(self, key_group: int) -> KeyGroupOutOfRange:
        return KeyGroupOutOfRange(key_group, self._owned.start, self._owned.end)


def _is_whole(group: _Group, changed: _Keys) -> bool:
    return len(changed) > max(CHANGED_KEYS_MIN, len(group) // 2)
