"""The handles that `ctx.state` returns: the reads and writes of each kind of state, for the key of one invocation.

Reads return copies of mutable values, and writes keep copies. So changes to an object have no effect on the state
until the object is written. A value that cannot be stored is refused when it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Protocol

import pyarrow as pa
from immutables import Map

from keygroups.arguments import check_elements, pairs_in
from keygroups.descriptors import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    StateDescriptor,
    ValueState,
)
from keygroups.errors import UnstorableValue
from keygroups.state.backend import MISSING, EntriesStateTable
from keygroups.state.collections import SharedList
from keygroups.state.detached import IMMUTABLE, detached
from keygroups.state.errors import StateAccessOutsideInvocation
from keygroups.state.key_identity import identity_of, original_of
from keygroups.state.storable import check_storable
from keygroups.state.transaction import UNCHANGED, Handle

_INT64 = pa.int64()

_NO_ENTRIES: Map[Hashable, Any] = Map()


class Overlay(Protocol):
    """The writes of one invocation to a state of many entries per key."""

    def apply(self, table: EntriesStateTable, key_group: int, identity: Hashable) -> None:
        """Write the changes to the table."""
        ...


class SingleHandle(Handle):
    """The base of handles for a state of one value; the change is the new value, `MISSING` if there is to be none."""

    __slots__ = ()

    def clear(self) -> None:
        """Remove the key's value once the invocation completes."""
        self._check_open()
        self.change = MISSING

    def _read(self) -> Any:
        self._check_open()
        if self.change is UNCHANGED:
            return self.table.get(self.place.key_group, self.place.identity)
        return self.change

    def _write(self, value: Any) -> None:
        self._check_open()
        self.change = self._storable(value)


class EntriesHandle(Handle):
    """The base of handles for a state of many entries; the change is an overlay on what the table has."""

    __slots__ = ()

    def apply(self) -> None:
        """Write the change to the table."""
        self.change.apply(self.table, self.place.key_group, self.place.identity)

    def overlay_of(self, kind: Callable[[Any], Overlay], empty: object) -> Any:
        """Return this invocation's overlay, which starts with the content of the table."""
        self._check_open()
        if self.change is UNCHANGED:
            held = self.table.get(self.place.key_group, self.place.identity)
            self.change = kind(empty if held is MISSING else held)
        return self.change

    def _given_out(self, values: list[Any]) -> list[Any]:
        """Return copies of values for the caller, given in a list that may be modified."""
        if not self.table.holds_mutable or IMMUTABLE.issuperset(map(type, values)):
            return values
        return [value if type(value) in IMMUTABLE else detached(value) for value in values]


class ValueHandle(SingleHandle):
    """A `ValueState` as one invocation sees it."""

    __slots__ = ()

    def value(self) -> Any:
        """Return the key's value, or the descriptor's default if it has none."""
        if self.closed:
            raise StateAccessOutsideInvocation(self.place.key)
        value, table = self.change, self.table
        if value is UNCHANGED:
            place = self.place
            value = table.get(place.key_group, place.identity)
        if value is MISSING:
            value = table.descriptor.default  # type: ignore[union-attr]
        elif not table.holds_mutable:
            return value
        return value if type(value) in IMMUTABLE else detached(value)

    def update(self, value: object) -> None:
        """Set the key's value once the invocation completes."""
        if self.closed:
            raise StateAccessOutsideInvocation(self.place.key)
        self.change = value if self.table.is_plain(value) else self._storable(value)


class ReducingHandle(SingleHandle):
    """A `ReducingState` as one invocation sees it."""

    __slots__ = ()

    def get(self) -> Any:
        """Return the key's value, or None if nothing was added."""
        value = self._read()
        return None if value is MISSING else detached(value)

    def add(self, value: object) -> None:
        """Combine a value with the key's value once the invocation completes."""
        before = self._read()
        descriptor = self.table.descriptor
        assert isinstance(descriptor, ReducingState), "the table has this kind"
        self._write(value if before is MISSING else descriptor.reduce(detached(before), value))


class AggregatingHandle(SingleHandle):
    """An `AggregatingState` as one invocation sees it."""

    __slots__ = ()

    def get(self) -> Any:
        """Return the result of the key's accumulator, or None if nothing was added."""
        accumulator = self._read()
        if accumulator is MISSING:
            return None
        descriptor = self.table.descriptor
        assert isinstance(descriptor, AggregatingState), "the table has this kind"
        return descriptor.result(detached(accumulator))

    def add(self, value: object) -> None:
        """Add a value to the key's accumulator, once the invocation completes."""
        before = self._read()
        descriptor = self.table.descriptor
        assert isinstance(descriptor, AggregatingState), "the table has this kind"
        accumulator = detached(descriptor.create() if before is MISSING else before)
        self._write(descriptor.add(accumulator, value))


class ListOverlay:
    """The list of a key with the writes of one invocation: the previous elements unless replaced, and added ones."""

    __slots__ = ("added", "kept")

    def __init__(self, kept: SharedList | None) -> None:
        self.kept = kept
        self.added: list[Any] = []

    def apply(self, table: EntriesStateTable, key_group: int, identity: Hashable) -> None:
        """Write the list to the table."""
        kept, added = self.kept, self.added
        if kept is not None and not added:
            return
        start = 0 if kept is None else len(kept)
        content = SharedList(added) if kept is None else kept.extended(added)
        table.put_entries(key_group, identity, content, range(start, start + len(added)), replaced=kept is None)


class ListHandle(EntriesHandle):
    """A `ListState` as one invocation sees it."""

    __slots__ = ()

    def get(self) -> list[Any]:
        """Return the key's elements in a new list."""
        return self._given_out(self._elements())

    def add(self, value: object) -> None:
        """Append an element once the invocation completes."""
        self._overlay().added.append(self._storable(value))

    def add_all(self, values: Iterable[object]) -> None:
        """Append several elements once the invocation completes."""
        check_elements("values", values)
        self._overlay().added.extend(list(map(self._storable, values)))

    def update(self, values: Iterable[object]) -> None:
        """Set all elements once the invocation completes."""
        check_elements("values", values)
        overlay = self._overlay()
        overlay.kept, overlay.added = None, list(map(self._storable, values))

    def clear(self) -> None:
        """Remove all elements once the invocation completes."""
        self.update(())

    def _elements(self) -> list[Any]:
        overlay = self._overlay()
        return overlay.added.copy() if overlay.kept is None else [*overlay.kept, *overlay.added]

    def _overlay(self) -> ListOverlay:
        overlay: ListOverlay = self.overlay_of(ListOverlay, SharedList([]))
        return overlay


class MapOverlay:
    """The map of a key with the writes of one invocation, by the identity of each map key."""

    __slots__ = ("changed", "content", "replaced")

    def __init__(self, content: Map[Hashable, Any]) -> None:
        self.content = content
        self.changed: set[Hashable] = set()
        self.replaced = False

    def apply(self, table: EntriesStateTable, key_group: int, identity: Hashable) -> None:
        """Write the map to the table."""
        if self.changed or self.replaced:
            table.put_entries(key_group, identity, self.content, self.changed, replaced=self.replaced)


class MapHandle(EntriesHandle):
    """A `MapState` as one invocation sees it. The types of map keys matter, as for keys: 1, 1.0 and True are three."""

    __slots__ = ()

    def get(self, key: Hashable) -> Any:
        """Return the value of a map key, or None if it has none."""
        return detached(self._overlay().content.get(identity_of(key)))

    def put(self, key: Hashable, value: object) -> None:
        """Set the value of a map key once the invocation completes."""
        overlay = self._overlay()
        self._check_key(key)
        identity = identity_of(key)
        overlay.content = overlay.content.set(identity, self._storable(value))
        overlay.changed.add(identity)

    def put_all(self, entries: Iterable[tuple[Hashable, object]] | Mapping[Any, object]) -> None:
        """Set the values of several map keys once the invocation completes."""
        for key, value in pairs_in("entries", entries):
            self.put(key, value)

    def remove(self, key: Hashable) -> None:
        """Remove a map key, if present, once the invocation completes."""
        overlay = self._overlay()
        identity = identity_of(key)
        if identity in overlay.content:
            overlay.content = overlay.content.delete(identity)
            overlay.changed.add(identity)

    def contains(self, key: Hashable) -> bool:
        """Return whether a map key has a value."""
        return identity_of(key) in self._overlay().content

    def items(self) -> list[tuple[Any, Any]]:
        """Return the entries, in no particular order."""
        return self._pairs_given_out(self._overlay().content.items())

    def keys(self) -> list[Any]:
        """Return the map keys, in no particular order."""
        return [original_of(key) for key in self._overlay().content.keys()]  # noqa: SIM118 - a Map, not a dict

    def values(self) -> list[Any]:
        """Return the values, in no particular order."""
        return self._given_out(list(self._overlay().content.values()))

    def is_empty(self) -> bool:
        """Return whether the map has no entries."""
        return not self._overlay().content

    def clear(self) -> None:
        """Remove all entries once the invocation completes."""
        overlay = self._overlay()
        overlay.content, overlay.replaced = Map(), True
        overlay.changed.clear()

    def _pairs_given_out(self, entries: Iterable[tuple[Hashable, Any]]) -> list[tuple[Any, Any]]:
        return [(original_of(key), value if type(value) in IMMUTABLE else detached(value)) for key, value in entries]

    def _check_key(self, key: Hashable) -> None:
        descriptor, kind = self.table.descriptor, type(key)
        assert isinstance(descriptor, MapState), "the table has this kind"
        declared = descriptor.key_type
        if declared is None and kind is int and not -(2**63) <= key < 2**63:  # type: ignore[operator]
            declared = _INT64  # the column that a snapshot has for them
        elif self.table.is_plain_key(key):
            return
        where = f"a map key in {self._where()}"
        try:
            frozenset((key,))  # which hashes it
        except TypeError:
            raise UnstorableValue(kind.__qualname__, where, "it is unhashable: use a tuple") from None
        if key is not None and identity_of(key) is None:
            raise UnstorableValue(kind.__qualname__, where, "it is no time, and None would take its place")
        check_storable(key, declared, where)

    def _overlay(self) -> MapOverlay:
        overlay: MapOverlay = self.overlay_of(MapOverlay, _NO_ENTRIES)
        return overlay


HANDLES: dict[type[StateDescriptor], type[Handle]] = {
    ValueState: ValueHandle,
    ListState: ListHandle,
    MapState: MapHandle,
    ReducingState: ReducingHandle,
    AggregatingState: AggregatingHandle,
}
"""The handle class of each kind of state."""
