"""Keyed state in dicts, one per key group, so that the key group is the unit of copy-on-write and of loading."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from keygroups.descriptors import ValueState
from keygroups.errors import KeyGroupOutOfRange
from keygroups.ranges import KeyGroupRange
from keygroups.state.backend import MISSING, LazyGroup, StateCut


class MemoryTable:
    """One state in memory.

    A group is a dict, or a `LazyGroup` until its first touch. After a cut every group is frozen; the first
    write to a frozen group copies it, so the cut costs nothing per key and memory grows by what is touched.
    """

    __slots__ = ("_first", "_frozen", "_groups", "descriptor")

    def __init__(
        self, descriptor: ValueState, owned: KeyGroupRange, restored: Mapping[int, LazyGroup] | None = None
    ) -> None:
        self.descriptor = descriptor
        self._first = owned.start
        self._groups: list[dict[Hashable, object] | LazyGroup] = [{} for _ in range(len(owned))]
        self._frozen = bytearray(len(owned))
        for key_group, group in (restored or {}).items():
            self._groups[self._index(key_group)] = group

    def get(self, key_group: int, key: Hashable) -> object:
        """Return the value of a key, or `MISSING`."""
        group = self._groups[key_group - self._first]
        if type(group) is not dict:
            group = self._load(key_group)
        return group.get(key, MISSING)

    def put(self, key_group: int, key: Hashable, value: object) -> None:
        """Store the value of a key; `MISSING` removes it."""
        index = key_group - self._first
        group = self._groups[index]
        if type(group) is not dict:
            group = self._load(key_group)
        if self._frozen[index]:
            group = self._groups[index] = group.copy()
            self._frozen[index] = False
        if value is MISSING:
            group.pop(key, None)
        else:
            group[key] = value

    def cut(self) -> StateCut:
        """Freeze every group as it is now."""
        self._frozen[:] = b"\x01" * len(self._frozen)
        groups = {self._first + index: group for index, group in enumerate(self._groups) if group}
        return StateCut(self.descriptor, groups)

    def _load(self, key_group: int) -> dict[Hashable, object]:
        index = self._index(key_group)
        group = self._groups[index]
        loaded = group if isinstance(group, dict) else group.load()
        self._groups[index] = loaded
        self._frozen[index] = False
        return loaded

    def _index(self, key_group: int) -> int:
        index = key_group - self._first
        if not 0 <= index < len(self._groups):
            raise KeyGroupOutOfRange(key_group, self._first, self._first + len(self._groups) - 1)
        return index


class MemoryBackend:
    """The keyed state of one subtask, in memory. Only the thread that owns the operator may call it.

    Parameters
    ----------
    descriptors : iterable of ValueState
        The states that the function declares.
    owned : KeyGroupRange
        The key groups of the subtask.
    restored : mapping of str to (mapping of int to LazyGroup), optional
        Content by state name and key group, loaded on first touch.

    Examples
    --------
    >>> backend = MemoryBackend([ValueState("seen")], KeyGroupRange(0, 127))
    >>> backend.tables["seen"].put(5, "a", 1)
    >>> backend.tables["seen"].get(5, "a")
    1
    """

    __slots__ = ("tables",)

    def __init__(
        self,
        descriptors: Iterable[ValueState],
        owned: KeyGroupRange,
        restored: Mapping[str, Mapping[int, LazyGroup]] | None = None,
    ) -> None:
        contents = restored or {}
        self.tables: dict[str, MemoryTable] = {
            descriptor.name: MemoryTable(descriptor, owned, contents.get(descriptor.name)) for descriptor in descriptors
        }

    def cut(self) -> tuple[StateCut, ...]:
        """Freeze the content of all states as it is now, without copying it."""
        return tuple(table.cut() for table in self.tables.values())
