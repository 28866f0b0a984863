"""State as a loop over the events has it: the handles of all kinds, over a plain list, dict or value.

What writes to a handle of an invocation writes to one of these as well. So what the state must hold needs no second
description: it is what the same writes, one after the other, have made of a plain object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from keygroups import AggregatingState, ListState, MapState, ReducingState, ValueState
from keygroups.descriptors import StateDescriptor


class Plain:
    """What one key has of a state.

    Attributes
    ----------
    held : object
        The value, accumulator, list or dict; None if there is nothing.
    """

    def __init__(self, descriptor: Any) -> None:
        self.descriptor = descriptor
        self.held: Any = None

    def clear(self) -> None:
        self.held = None


class PlainValue(Plain):
    def value(self) -> Any:
        return self.descriptor.default if self.held is None else self.held

    def update(self, value: object) -> None:
        self.held = value


class PlainReduced(Plain):
    def get(self) -> Any:
        return self.held

    def add(self, value: Any) -> None:
        self.held = value if self.held is None else self.descriptor.reduce(self.held, value)


class PlainAggregate(Plain):
    def get(self) -> Any:
        return None if self.held is None else self.descriptor.result(self.held)

    def add(self, value: Any) -> None:
        self.held = self.descriptor.add(self.descriptor.create() if self.held is None else self.held, value)


class PlainList(Plain):
    def get(self) -> list[Any]:
        return self.held or []

    def add(self, value: object) -> None:
        self.add_all([value])

    def add_all(self, values: Iterable[object]) -> None:
        self.update([*self.get(), *values])

    def update(self, values: Iterable[object]) -> None:
        self.held = list(values) or None


class PlainMap(Plain):
    def items(self) -> list[tuple[Any, Any]]:
        return list((self.held or {}).items())

    def put(self, key: object, value: object) -> None:
        self.held = {**dict(self.items()), key: value}

    def remove(self, key: object) -> None:
        self.held = {other: value for other, value in self.items() if other != key} or None


_PLAIN: dict[type[StateDescriptor], type[Plain]] = {
    ValueState: PlainValue,
    ReducingState: PlainReduced,
    AggregatingState: PlainAggregate,
    ListState: PlainList,
    MapState: PlainMap,
}


def plain(descriptor: StateDescriptor) -> Any:
    """Return the handle of a key that has nothing."""
    return _PLAIN[type(descriptor)](descriptor)


def seen_through(handle: Any, descriptor: StateDescriptor) -> Any:
    """Return what a handle shows, of an invocation or a plain one."""
    match descriptor:
        case ValueState():
            return handle.value()
        case MapState():
            return dict(handle.items())
    return handle.get()


def content_of(loaded: Any, descriptor: StateDescriptor) -> Any:
    """Return what a backend holds for a key, as `Plain.held` has it."""
    match descriptor:
        case ListState():
            return list(loaded or ()) or None
        case MapState():
            return dict(loaded or {}) or None
    return loaded


def without_nothing(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a table without the keys that have nothing."""
    return {key: held for key, held in table.items() if held is not None}
