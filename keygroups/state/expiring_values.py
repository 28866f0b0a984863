"""Values with a time to live, and the handles that hide expired values."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from keygroups.arguments import check_elements
from keygroups.descriptors import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    StateDescriptor,
    ValueState,
)
from keygroups.state.backend import MISSING
from keygroups.state.detached import detached
from keygroups.state.handles import (
    HANDLES,
    AggregatingHandle,
    ListHandle,
    ListOverlay,
    MapHandle,
    MapOverlay,
    ReducingHandle,
    SingleHandle,
    ValueHandle,
)
from keygroups.state.key_identity import identity_of, original_of
from keygroups.state.transaction import Handle


class Expiring(NamedTuple):
    """A value with its expiry, as a backend holds it; in a list or a map, each element or value is one.

    Attributes
    ----------
    value : object
        The value that the function wrote.
    expires_at : int
        Milliseconds since the epoch; from then on the value is never returned.
    """

    value: Any
    expires_at: int


HOLE = Expiring(None, 0)
"""Takes the place of an expired element that is no longer stored, so that the others keep their positions."""


class _ExpiringHandle(Handle):
    """The base of handles with a time to live: knows the time and how long a value lives."""

    __slots__ = ()

    def _now(self) -> int:
        return self.backend.wall_time()

    def _is_extended_by_reads(self) -> bool:
        ttl = self.table.descriptor.time_to_live
        return ttl is not None and ttl.update == "read_and_write"

    def _made_to_live(self, value: Any) -> Expiring:
        ttl = self.table.descriptor.time_to_live
        assert ttl is not None, "states without a ttl have other handles"
        return Expiring(value, self._now() + ttl.milliseconds)


class _ExpiringSingle(_ExpiringHandle, SingleHandle):
    """A handle for a state of one value: a read removes an expired value."""

    __slots__ = ()

    def _read(self) -> Any:
        held = super()._read()
        if held is MISSING:
            return MISSING
        if held.expires_at <= self._now():
            self.change = MISSING
            return MISSING
        if self._is_extended_by_reads():
            self.change = self._made_to_live(held.value)
        return held.value

    def _write(self, value: Any) -> None:
        self._check_open()
        self.change = self._made_to_live(self._storable(value))


class ExpiringValueHandle(_ExpiringSingle, ValueHandle):
    """A `ValueState` with a time to live as one invocation sees it."""

    __slots__ = ()

    def value(self) -> Any:
        """Return the key's value, or the descriptor's default if it has none or it has expired."""
        value = self._read()
        return detached(self.table.descriptor.default if value is MISSING else value)  # type: ignore[union-attr]

    def update(self, value: object) -> None:
        """Set the key's value once the invocation completes."""
        self._write(value)


class ExpiringReducingHandle(_ExpiringSingle, ReducingHandle):
    """A `ReducingState` with a time to live as one invocation sees it."""

    __slots__ = ()


class ExpiringAggregatingHandle(_ExpiringSingle, AggregatingHandle):
    """An `AggregatingState` with a time to live as one invocation sees it."""

    __slots__ = ()


class ExpiringListHandle(_ExpiringHandle, ListHandle):
    """A `ListState` with a time to live as one invocation sees it: elements expire individually.

    Expired elements stay in the stored list until they are about half of it, so the cost of adding an element does not
    depend on the length of the list.
    """

    __slots__ = ()

    def get(self) -> list[Any]:
        """Return the key's live elements in a new list."""
        now = self._now()
        living = [element for element in self._elements() if element.expires_at > now]
        if living and self._is_extended_by_reads():
            overlay = self._overlay()
            overlay.kept, overlay.added = None, [self._made_to_live(element.value) for element in living]
        return self._given_out([element.value for element in living])

    def add(self, value: object) -> None:
        """Append an element once the invocation completes."""
        self.add_all((value,))

    def add_all(self, values: Iterable[object]) -> None:
        """Append several elements once the invocation completes."""
        self._overlay().added.extend(self._made_of(values))

    def update(self, values: Iterable[object]) -> None:
        """Set all elements once the invocation completes."""
        overlay = self._overlay()
        overlay.kept, overlay.added = None, self._made_of(values)

    def _made_of(self, values: Iterable[object]) -> list[Expiring]:
        check_elements("values", values)
        return [self._made_to_live(self._storable(value)) for value in values]

    def _overlay(self) -> ListOverlay:
        overlay = super()._overlay()
        kept, now = overlay.kept, self._now()
        # Elements usually expire in order; then the one in the middle speaks for those before it.
        if kept is not None and len(kept) and kept[len(kept) // 2].expires_at <= now:
            overlay.kept = None
            overlay.added = [element for element in kept if element.expires_at > now] + overlay.added
        return overlay


class ExpiringMapHandle(_ExpiringHandle, MapHandle):
    """A `MapState` with a time to live as one invocation sees it: values expire individually."""

    __slots__ = ()

    def get(self, key: Hashable) -> Any:
        """Return the value of a map key, or None if it has none or it has expired."""
        held = self._living(identity_of(key))
        return None if held is None else detached(held.value)

    def put(self, key: Hashable, value: object) -> None:
        """Set the value of a map key once the invocation completes."""
        overlay = self._overlay()
        self._check_key(key)
        self._set(overlay, identity_of(key), self._storable(value))

    def contains(self, key: Hashable) -> bool:
        """Return whether a map key has a live value."""
        return self._living(identity_of(key)) is not None

    def items(self) -> list[tuple[Any, Any]]:
        """Return the live entries, in no particular order."""
        return self._pairs_given_out((key, held.value) for key, held in self._all_living())

    def keys(self) -> list[Any]:
        """Return the map keys with live values, in no particular order."""
        return [original_of(key) for key, _ in self._all_living()]

    def values(self) -> list[Any]:
        """Return the live values, in no particular order."""
        return self._given_out([held.value for _, held in self._all_living()])

    def is_empty(self) -> bool:
        """Return whether the map has no live entries."""
        now = self._now()
        return not any(held.expires_at > now for held in self._overlay().content.values())

    def _living(self, identity: Hashable) -> Expiring | None:
        overlay = self._overlay()
        held: Expiring | None = overlay.content.get(identity)
        if held is None:
            return None
        if held.expires_at <= self._now():
            overlay.content = overlay.content.delete(identity)
            overlay.changed.add(identity)
            return None
        if self._is_extended_by_reads():
            self._set(overlay, identity, held.value)
        return held

    def _all_living(self) -> list[tuple[Hashable, Expiring]]:
        living = ((identity, self._living(identity)) for identity in list(self._overlay().content.keys()))
        return [(identity, held) for identity, held in living if held is not None]

    def _set(self, overlay: MapOverlay, identity: Hashable, value: object) -> None:
        overlay.content = overlay.content.set(identity, self._made_to_live(value))
        overlay.changed.add(identity)


_EXPIRING_HANDLES: dict[type[StateDescriptor], type[Handle]] = {
    ValueState: ExpiringValueHandle,
    ListState: ExpiringListHandle,
    MapState: ExpiringMapHandle,
    ReducingState: ExpiringReducingHandle,
    AggregatingState: ExpiringAggregatingHandle,
}
"""The handle class of each kind of state with a time to live."""


def handle_of(descriptor: StateDescriptor) -> type[Handle]:
    """Return the class of the handles of a state."""
    return (HANDLES if descriptor.ttl is None else _EXPIRING_HANDLES)[type(descriptor)]
