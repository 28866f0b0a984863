"""State without a key, as the functions of one subtask read and write it.

Writes count at once: unlike those to keyed state, they do not wait for the end of an invocation. Reads return copies of
mutable values, and writes keep copies. A value that cannot be stored is refused when it is written.
"""

from __future__ import annotations

import threading
from _thread import get_ident
from collections.abc import Hashable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TypeAlias

from keygroups.arguments import check_elements
from keygroups.codec import pack
from keygroups.descriptors import OperatorListState, OperatorMapState, OperatorStateDescriptor
from keygroups.representation import representation
from keygroups.state.detached import IMMUTABLE, detached
from keygroups.state.errors import (
    OperatorMapIsFinal,
    OperatorStateNotDeclared,
    OperatorStateOfAnotherThread,
    WrongStateKind,
)
from keygroups.state.storable import check_storable

_CUTS_MAX = 4
"""So many cuts are remembered until they are complete: cuts that a failed attempt left behind are never reported."""


class OperatorListHandle:
    """An `OperatorListState` of one subtask. Only the thread that created it may call it.

    Parameters
    ----------
    descriptor : OperatorListState
        The declaration.
    items : iterable
        The restored items.
    own : (int, int), optional
        The run of these items that the subtask keeps, if it is not all of them.
    """

    __slots__ = ("_complete", "_items", "_owner", "_visible", "descriptor")

    def __init__(
        self, descriptor: OperatorListState, items: Iterable[object] = (), own: tuple[int, int] | None = None
    ) -> None:
        self.descriptor = descriptor
        self._visible = list(items)
        self._items = self._visible if own is None else self._visible[slice(*own)]
        self._complete = tuple(self._items)
        self._owner = threading.current_thread()

    def __repr__(self) -> str:
        facts = {"name": self.descriptor.name, "mode": self.descriptor.mode, "items": len(self._visible)}
        return representation(self, facts)

    def get(self) -> list[Any]:
        """Return the items in a new list; in mode "union" also the items of the other subtasks at the restore."""
        self._check_owner()
        return [item if type(item) in IMMUTABLE else detached(item) for item in self._visible]

    def in_snapshot(self) -> list[Any]:
        """Return the items of this subtask in the newest complete snapshot, as `snapshot_complete` needs them.

        They are what was restored until the operator hears of a later snapshot.
        """
        self._check_owner()
        return [item if type(item) in IMMUTABLE else detached(item) for item in self._complete]

    def add(self, value: object) -> None:
        """Append an item."""
        self._check_owner()
        stored = self._storable(value)
        self._items.append(stored)
        if self._visible is not self._items:
            self._visible.append(stored)

    def update(self, values: Iterable[object]) -> None:
        """Replace the items by those that this subtask is to keep."""
        self._check_owner()
        check_elements("values", values)
        self._items = self._visible = list(map(self._storable, values))

    def cut(self) -> tuple[object, ...]:
        """Return the items as a snapshot holds them: those that this subtask keeps."""
        return tuple(self._items)

    def seal(self) -> None:
        """Do nothing: a list may be written at any time."""

    def complete(self, items: tuple[object, ...]) -> None:
        """Note what the newest complete snapshot holds."""
        self._complete = items

    def _storable(self, value: object) -> object:
        return _storable(value, self.descriptor.type, f"operator state {self.descriptor.name!r}")

    def _check_owner(self) -> None:
        if self._owner.ident != get_ident():
            raise OperatorStateOfAnotherThread(threading.current_thread().name, self._owner.name)


class OperatorMapHandle(MutableMapping[Any, Any]):
    """An `OperatorMapState` of one subtask. After `open` it no longer changes, and any thread may read it.

    Parameters
    ----------
    descriptor : OperatorMapState
        The declaration.
    items : iterable of (key, value)
        The restored entries.
    """

    __slots__ = ("_entries", "_is_final", "descriptor")

    def __init__(self, descriptor: OperatorMapState, items: Iterable[tuple[Any, Any]] = ()) -> None:
        self.descriptor = descriptor
        self._entries = dict(items)
        self._is_final = False

    def __getitem__(self, key: Hashable) -> Any:
        return detached(self._entries[key])

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __setitem__(self, key: Hashable, value: object) -> None:
        descriptor = self.descriptor
        self._check_open()
        where = f"operator state {descriptor.name!r}"
        storable = _storable(key, descriptor.key_type, f"a key of {where}")
        self._entries[storable] = _storable(value, descriptor.value_type, where)

    def __delitem__(self, key: Hashable) -> None:
        self._check_open()
        del self._entries[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return representation(self, {"name": self.descriptor.name, "entries": len(self)})

    def cut(self) -> tuple[object, ...]:
        """Return the entries as a snapshot holds them; their order does not depend on the order of the writes."""
        return tuple(sorted(self._entries.items(), key=lambda entry: pack(entry[0], "a key")))

    def seal(self) -> None:
        """Refuse all writes from now on."""
        self._is_final = True

    def complete(self, items: tuple[object, ...]) -> None:
        """Do nothing: all snapshots hold the same."""

    def _check_open(self) -> None:
        if self._is_final:
            raise OperatorMapIsFinal(self.descriptor.name)


OperatorHandle: TypeAlias = OperatorListHandle | OperatorMapHandle
"""What `runtime.operator_state` returns."""


class OperatorStates:
    """The operator states of one subtask. Only the thread that created it may call it.

    Parameters
    ----------
    declared : iterable of descriptors
        What the function declares.
    restored : mapping of str to items, optional
        The items of the subtask's share of a snapshot; a state that is missing begins empty.
    own : mapping of str to (int, int), optional
        For lists in mode "union", the run of these items that the subtask keeps; it only gets to see the others.

    Examples
    --------
    >>> OFFSETS = OperatorListState("offsets")
    >>> states = OperatorStates([OFFSETS], {"offsets": [("topic-0", 17)]})
    >>> states.handle(OFFSETS).add(("topic-1", 4))
    >>> states.cut("a cut")
    {'offsets': (('topic-0', 17), ('topic-1', 4))}
    """

    __slots__ = ("_cuts", "_final", "_handles")

    def __init__(
        self,
        declared: Iterable[OperatorStateDescriptor] = (),
        restored: Mapping[str, Iterable[Any]] | None = None,
        own: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        items, kept = restored or {}, own or {}
        self._handles = {one.name: _new_handle(one, items.get(one.name, ()), kept.get(one.name)) for one in declared}
        self._final: dict[str, tuple[object, ...]] = {}
        self._cuts: dict[str, dict[str, tuple[object, ...]]] = {}

    @property
    def declared(self) -> tuple[OperatorStateDescriptor, ...]:
        """The declared states."""
        return tuple(handle.descriptor for handle in self._handles.values())

    def handle(self, descriptor: OperatorStateDescriptor) -> Any:
        """Return the handle of a declared state.

        Raises
        ------
        OperatorStateNotDeclared, WrongStateKind
            The function does not declare it, or declares it with another kind or mode.
        """
        name: str = getattr(descriptor, "name", repr(descriptor))
        handle = self._handles.get(name)
        if handle is None:
            raise OperatorStateNotDeclared(name, tuple(self._handles))
        if _kind_of(descriptor) != _kind_of(handle.descriptor):
            raise WrongStateKind(name, _kind_of(descriptor), _kind_of(handle.descriptor))
        return handle

    def seal(self) -> None:
        """Note that `open` has returned: the maps change no more, so they are sorted for snapshots only once."""
        for name, handle in self._handles.items():
            handle.seal()
            if isinstance(handle, OperatorMapHandle):
                self._final[name] = handle.cut()

    def cut(self, cut_id: str) -> dict[str, tuple[object, ...]]:
        """Return the items of each state, as a snapshot holds them, and remember them until the cut is complete."""
        items = {name: self._final[name] if name in self._final else one.cut() for name, one in self._handles.items()}
        if items:
            self._cuts[cut_id] = items
            while len(self._cuts) > _CUTS_MAX:
                del self._cuts[next(iter(self._cuts))]
        return items

    def complete(self, cut_id: str | None) -> None:
        """Note that a snapshot with a cut is complete; None stands for the newest cut."""
        cuts = list(self._cuts)
        newest = cuts[-1] if cut_id is None and cuts else cut_id
        if newest is None or newest not in self._cuts:
            return  # a cut of another operator, or one that a later cut has replaced
        for name, items in self._cuts[newest].items():
            self._handles[name].complete(items)
        for old in cuts[: cuts.index(newest) + 1]:
            del self._cuts[old]


def _kind_of(descriptor: Any) -> str:
    return f"{descriptor.mode} {descriptor.kind}" if hasattr(descriptor, "mode") else str(descriptor.kind)


def _new_handle(
    descriptor: OperatorStateDescriptor, items: Iterable[Any], own: tuple[int, int] | None
) -> OperatorHandle:
    if isinstance(descriptor, OperatorListState):
        return OperatorListHandle(descriptor, items, own)
    return OperatorMapHandle(descriptor, items)


def _storable(value: Any, type_: Any, where: str) -> Any:
    """Return the object to store for a value: an unshared one that is stored without loss."""
    if type_ is not None:
        check_storable(value, type_, where)
    pack(value, where)
    return detached(value)
