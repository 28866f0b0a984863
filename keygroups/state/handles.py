"""What a function gets for a declared state: its kind's reads and writes, for the key of one invocation.

What was read or written must not be changed in place: write it again. A value that cannot be stored is refused when it
is written.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Callable, Hashable, Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from immutables import Map

from keygroups.descriptors import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    StateDescriptor,
    ValueState,
)
from keygroups.state.backend import MISSING, StateTable
from keygroups.state.collections import SharedList
from keygroups.state.errors import StateAccessOutsideInvocation
from keygroups.state.identity import identity_of, original_of
from keygroups.state.storable import check_storable

if TYPE_CHECKING:
    from keygroups.state.transaction import Transaction

_NO_ENTRIES: Map[Hashable, Any] = Map()

_IMMUTABLE = frozenset({int, float, bool, str, bytes, type(None), Decimal, dt.date, dt.datetime, dt.timedelta})


class Overlay(Protocol):
    """The writes of one invocation to a state of many entries per key."""

    def apply(self, table: StateTable, key_group: int, identity: Hashable) -> None:
        """Write them to the table."""
        ...


class Handle:
    """It has no `__init__`, because that would double the time to make one."""

    __slots__ = ("table", "transaction")

    table: StateTable
    transaction: Transaction

    def _check_open(self) -> None:
        if self.transaction.closed:
            raise StateAccessOutsideInvocation(self.transaction.key)

    def _check_storable(self, value: Any) -> None:
        if not self.table.is_plain(value):
            descriptor = self.table.descriptor
            where = f"state {descriptor.name!r} of key {self.transaction.key!r}"
            check_storable(value, descriptor.value_type, where)

    def _overlay_of(self, kind: Callable[[Any], Overlay], empty: object) -> Any:
        """Return the writes of this invocation, which begin with what the table has."""
        transaction, table = self.transaction, self.table
        if transaction.closed:
            raise StateAccessOutsideInvocation(transaction.key)
        overlays = transaction.overlays
        if overlays is None:
            overlays = transaction.overlays = {}
        overlay = overlays.get(table)
        if overlay is None:
            held = table.get(transaction.key_group, transaction.identity)
            overlay = overlays[table] = kind(empty if held is MISSING else held)
        return overlay

    def _read(self) -> Any:
        transaction, table = self.transaction, self.table
        if transaction.closed:
            raise StateAccessOutsideInvocation(transaction.key)
        if table in transaction.writes:
            return transaction.writes[table]
        return table.get(transaction.key_group, transaction.identity)

    def _write(self, value: Any) -> None:
        self._check_open()
        self._check_storable(value)
        self.transaction.writes[self.table] = value

    def clear(self) -> None:
        """Remove what the key has once the invocation completes."""
        self._check_open()
        self.transaction.writes[self.table] = MISSING


class ValueHandle(Handle):
    """A `ValueState` as one invocation sees it."""

    __slots__ = ()

    def value(self) -> Any:
        """Return the key's value, or the descriptor's default where it has none."""
        transaction, table = self.transaction, self.table
        if transaction.closed:
            raise StateAccessOutsideInvocation(transaction.key)
        if table in transaction.writes:
            value = transaction.writes[table]
        else:
            value = table.get(transaction.key_group, transaction.identity)
        return table.descriptor.default if value is MISSING else value  # type: ignore[union-attr]

    def update(self, value: object) -> None:
        """Set the key's value once the invocation completes."""
        transaction, table = self.transaction, self.table
        if transaction.closed:
            raise StateAccessOutsideInvocation(transaction.key)
        if not table.is_plain(value):
            self._check_storable(value)
        transaction.writes[table] = value


class ReducingHandle(Handle):
    """A `ReducingState` as one invocation sees it."""

    __slots__ = ()

    def get(self) -> Any:
        """Return the key's value, None where nothing was added."""
        value = self._read()
        return None if value is MISSING else value

    def add(self, value: object) -> None:
        """Reduce a value into the key's, once the invocation completes."""
        before = self._read()
        descriptor = self.table.descriptor
        assert isinstance(descriptor, ReducingState), "the table is of this kind"
        self._write(value if before is MISSING else descriptor.reduce(_own(before), value))


class AggregatingHandle(Handle):
    """An `AggregatingState` as one invocation sees it."""

    __slots__ = ()

    def get(self) -> Any:
        """Return the result of the key's accumulator, None where nothing was added."""
        accumulator = self._read()
        if accumulator is MISSING:
            return None
        descriptor = self.table.descriptor
        assert isinstance(descriptor, AggregatingState), "the table is of this kind"
        return descriptor.result(_own(accumulator))

    def add(self, value: object) -> None:
        """Add a value to the key's accumulator, once the invocation completes."""
        before = self._read()
        descriptor = self.table.descriptor
        assert isinstance(descriptor, AggregatingState), "the table is of this kind"
        accumulator = descriptor.create() if before is MISSING else _own(before)
        self._write(descriptor.add(accumulator, value))


class ListOverlay:
    """The list of a key with the writes of one invocation: what it was, or nothing, and what is added."""

    __slots__ = ("added", "kept")

    def __init__(self, kept: SharedList | None) -> None:
        self.kept = kept
        self.added: list[Any] = []

    def apply(self, table: StateTable, key_group: int, identity: Hashable) -> None:
        """Write the list to the table."""
        kept, added = self.kept, self.added
        if kept is not None and not added:
            return
        start = 0 if kept is None else len(kept)
        content = SharedList(added) if kept is None else kept.extended(added)
        table.put_entries(key_group, identity, content, range(start, start + len(added)), replaced=kept is None)


class ListHandle(Handle):
    """A `ListState` as one invocation sees it."""

    __slots__ = ()

    def get(self) -> list[Any]:
        """Return the key's elements in a list of their own."""
        overlay = self._overlay()
        return overlay.added.copy() if overlay.kept is None else [*overlay.kept, *overlay.added]

    def add(self, value: object) -> None:
        """Append an element once the invocation completes."""
        overlay = self._overlay()
        self._check_storable(value)
        overlay.added.append(value)

    def add_all(self, values: Iterable[object]) -> None:
        """Append several elements once the invocation completes."""
        overlay, values = self._overlay(), list(values)
        for value in values:
            self._check_storable(value)
        overlay.added += values

    def update(self, values: Iterable[object]) -> None:
        """Set all elements once the invocation completes."""
        overlay, values = self._overlay(), list(values)
        for value in values:
            self._check_storable(value)
        overlay.kept, overlay.added = None, values

    def clear(self) -> None:
        """Remove all elements once the invocation completes."""
        self.update(())

    def _overlay(self) -> ListOverlay:
        overlay: ListOverlay = self._overlay_of(ListOverlay, SharedList([]))
        return overlay


class MapOverlay:
    """The map of a key with the writes of one invocation, by the identity of each map key."""

    __slots__ = ("changed", "content", "replaced")

    def __init__(self, content: Map[Hashable, Any]) -> None:
        self.content = content
        self.changed: set[Hashable] = set()
        self.replaced = False

    def apply(self, table: StateTable, key_group: int, identity: Hashable) -> None:
        """Write the map to the table."""
        if self.changed or self.replaced:
            table.put_entries(key_group, identity, self.content, self.changed, replaced=self.replaced)


class MapHandle(Handle):
    """A `MapState` as one invocation sees it. Map keys are told apart as keys are: 1, 1.0 and True are three."""

    __slots__ = ()

    def get(self, key: Hashable) -> Any:
        """Return the value of a map key, None where it has none."""
        return self._overlay().content.get(identity_of(key))

    def put(self, key: Hashable, value: object) -> None:
        """Set the value of a map key once the invocation completes."""
        overlay = self._overlay()
        self._check_key(key)
        self._check_storable(value)
        identity = identity_of(key)
        overlay.content = overlay.content.set(identity, value)
        overlay.changed.add(identity)

    def put_all(self, entries: Iterable[tuple[Hashable, object]] | dict[Any, object]) -> None:
        """Set the values of several map keys once the invocation completes."""
        for key, value in entries.items() if isinstance(entries, dict) else entries:
            self.put(key, value)

    def remove(self, key: Hashable) -> None:
        """Remove a map key, if it is there, once the invocation completes."""
        overlay = self._overlay()
        identity = identity_of(key)
        if identity in overlay.content:
            overlay.content = overlay.content.delete(identity)
            overlay.changed.add(identity)

    def contains(self, key: Hashable) -> bool:
        """Tell whether a map key has a value."""
        return identity_of(key) in self._overlay().content

    def items(self) -> list[tuple[Any, Any]]:
        """Return the entries, in no particular order."""
        return [(original_of(key), value) for key, value in self._overlay().content.items()]

    def keys(self) -> list[Any]:
        """Return the map keys, in no particular order."""
        return [original_of(key) for key in self._overlay().content.keys()]  # noqa: SIM118 - a Map, not a dict

    def values(self) -> list[Any]:
        """Return the values, in no particular order."""
        return list(self._overlay().content.values())

    def is_empty(self) -> bool:
        """Tell whether there is no entry."""
        return not self._overlay().content

    def clear(self) -> None:
        """Remove all entries once the invocation completes."""
        overlay = self._overlay()
        overlay.content, overlay.replaced = Map(), True
        overlay.changed.clear()

    def _check_key(self, key: Hashable) -> None:
        descriptor, kind = self.table.descriptor, type(key)
        assert isinstance(descriptor, MapState), "the table is of this kind"
        declared = descriptor.key_type
        if declared is not None or not (kind is int or kind is bool or (kind is str and key.isascii())):  # type: ignore[attr-defined]
            check_storable(key, declared, f"a map key in state {descriptor.name!r} of key {self.transaction.key!r}")

    def _overlay(self) -> MapOverlay:
        overlay: MapOverlay = self._overlay_of(MapOverlay, _NO_ENTRIES)
        return overlay


HANDLES: dict[type[StateDescriptor], Any] = {
    ValueState: ValueHandle,
    ListState: ListHandle,
    MapState: MapHandle,
    ReducingState: ReducingHandle,
    AggregatingState: AggregatingHandle,
}
"""The class of handles of each kind of state."""


def _own(accumulator: Any) -> Any:
    """Return what a user's function may change: another attempt, and a cut, must find what is committed."""
    return accumulator if type(accumulator) in _IMMUTABLE else copy.deepcopy(accumulator)
