"""The cut of a state in memory, which holds the dicts of the state themselves."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from keygroups.state.backend import MISSING
from keygroups.state.collections import SharedList, entries_of, entry_of
from keygroups.state.group import ENTRY_KINDS, KeyGroupContent, StateRows, TakeRows
from keygroups.state.key_identity import TypedKey, original_of
from keygroups.state.memory.cut_holds import Hold
from keygroups.state.memory.layered import Values, find, merged

_NOTHING: Values = {}

KINDS_AT_ONCE = 8192
"""How many keys are inspected without a pause; meanwhile other threads wait for the interpreter lock."""


class FreedInSteps(dict[int, Any]):
    """The key groups of a cut. The thread that drops the last reference lets others run between two groups.

    Freeing a million keys at once would hold the interpreter lock, and so the event loop, for tens of milliseconds.
    """

    def __del__(self) -> None:
        while self:
            self.popitem()


class MemoryGroup:
    """A key group in dicts that do not change while it exists. Any thread may call it.

    Parameters
    ----------
    values : dict
        The values by the identity of their key.
    kind : str
        The kind of the state; in a list or a map each entry is a row.
    written : dict
        Newer values, which take precedence; `MISSING` for removed keys.
    hold : Hold, KeyGroupContent or None
        Keeps the backend from modifying the dicts.

    Examples
    --------
    >>> group = MemoryGroup({"a": 1, "b": 2}, "value")
    >>> group.kinds("key"), group.rows()(1)
    ({<class 'str'>}, StateRows(keys=['a'], entries=None, values=[1]))
    """

    __slots__ = ("_has_entries", "_hold", "_values", "_written")

    def __init__(
        self,
        values: Values,
        kind: str,
        written: Values = _NOTHING,
        hold: Hold | KeyGroupContent | None = None,
    ) -> None:
        self._values = values
        self._written = written
        self._has_entries = kind in ENTRY_KINDS
        self._hold = hold

    def load(self) -> Values:
        """Return the values by the identity of their key, in a new dict."""
        return merged(self._values, self._written)

    def in_memory(self) -> Values:
        """Return the values by the identity of their key. The caller must not modify the dict."""
        return self.load() if self._written else self._values

    def kinds(self, column: str, keys_max: int | None = None) -> set[type]:
        """Return the types of the keys or map keys."""
        values = self.in_memory()
        held: Iterable[Hashable] = values if column == "key" else chain.from_iterable(values.values())  # type: ignore[arg-type]
        keys = islice(held, keys_max)
        kinds = set[type]()
        while some := list(islice(keys, KINDS_AT_ONCE)):
            found = set(map(type, some))
            kinds |= set(map(type, map(original_of, some))) if TypedKey in found else found
        return kinds

    def rows(self, changed: Collection[Any] | None = None) -> TakeRows:
        """Return a function that returns the next rows: all rows, or the rows of changed keys or entries."""
        if self._has_entries:
            return self._taker(self._entries() if changed is None else self._changed_entries(changed))
        values = self.in_memory()
        keys = iter(values) if changed is None else iter(changed)
        found = iter(values.values()) if changed is None else (self._find(key, MISSING) for key in changed)
        return lambda count: StateRows(list(islice(keys, count)), None, self._next(found, count))

    def stored(self) -> None:
        """Return None: the rows have to be encoded."""

    def _find(self, key: Hashable, default: object) -> Any:
        return find(self._values, self._written, key, default)

    def _next(self, values: Iterator[Any], count: int) -> list[Any]:
        # A method, so that the caller keeps the key group alive, and with it the hold.
        return list(islice(values, count))

    def _entries(self) -> Iterator[tuple[Hashable, Hashable, Any]]:
        for key, content in self.in_memory().items():
            for entry, value in entries_of(content):  # type: ignore[arg-type]
                yield key, entry, value

    def _changed_entries(self, changed: Collection[Any]) -> Iterator[tuple[Hashable, Hashable, Any]]:
        nothing = SharedList([])
        for key, entry in changed:
            yield key, entry, entry_of(self._find(key, nothing), entry, MISSING)

    @staticmethod
    def _taker(rows: Iterator[tuple[Hashable, Hashable, Any]]) -> TakeRows:
        def take(count: int) -> StateRows:
            taken = list(islice(rows, count))
            return StateRows([row[0] for row in taken], [row[1] for row in taken], [row[2] for row in taken])

        return take


class MemoryGroups(Mapping[int, KeyGroupContent]):
    """The key groups of a state at a cut, without those known to be empty. Any thread may call it.

    A key group is in one of the three mappings. An object for it is created when it is asked for: a delta needs few.

    Parameters
    ----------
    values : dict of int to dict
        The key groups that consist of one dict.
    layered : mapping of int to (dict, dict)
        The key groups that consist of two dicts.
    unloaded : mapping of int to KeyGroupContent
        The restored key groups that are not in memory yet.
    kind : str
        The kind of the state.
    hold : Hold
        The hold of the cut.
    """

    def __init__(
        self,
        values: FreedInSteps,
        layered: Mapping[int, tuple[Values, Values]],
        unloaded: Mapping[int, KeyGroupContent],
        kind: str,
        hold: Hold,
    ) -> None:
        self._values = values
        self._layered = layered
        self._unloaded = unloaded
        self._kind = kind
        self._hold = hold

    def __getitem__(self, key_group: int) -> KeyGroupContent:
        values = self._values.get(key_group)
        if values is not None:
            return MemoryGroup(values, self._kind, hold=self._hold)
        layers = self._layered.get(key_group)
        return (
            self._unloaded[key_group] if layers is None else MemoryGroup(layers[0], self._kind, layers[1], self._hold)
        )

    def __iter__(self) -> Iterator[int]:
        return chain(self._values, self._layered, self._unloaded)

    def __len__(self) -> int:
        return len(self._values) + len(self._layered) + len(self._unloaded)
