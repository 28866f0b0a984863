"""What a backend of keyed state must do."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from keygroups.descriptors import ValueState


class _Sentinel(enum.Enum):
    MISSING = "missing"


MISSING: Final = _Sentinel.MISSING
"""No value is stored: as the result of a read and, as a write, the removal of the key."""


class LazyGroup(Protocol):
    """The rows of one key group that are not in memory yet."""

    def load(self) -> dict[Hashable, object]:
        """Return the values by key; called once, by the thread that owns the backend."""
        ...


@dataclass(frozen=True, slots=True)
class StateCut:
    """The content of one state at a barrier.

    Attributes
    ----------
    descriptor : ValueState
        The declaration of the state.
    groups : mapping of int to (dict or LazyGroup)
        The non-empty key groups. Nobody changes the dicts any more: a later write copies its group first.
    """

    descriptor: ValueState
    groups: Mapping[int, dict[Hashable, object] | LazyGroup]


class StateTable(Protocol):
    """One state of all keys of a subtask. Only the thread that owns the operator may call it."""

    @property
    def descriptor(self) -> ValueState:
        """The declaration of the state."""
        ...

    def get(self, key_group: int, key: Hashable) -> object:
        """Return the value of a key, or `MISSING`."""
        ...

    def put(self, key_group: int, key: Hashable, value: object) -> None:
        """Store the value of a key; `MISSING` removes it."""
        ...


class KeyedStateBackend(Protocol):
    """The keyed state of one subtask. Only the thread that owns the operator may call it."""

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """The states by name."""
        ...

    def cut(self) -> tuple[StateCut, ...]:
        """Freeze the content of all states as it is now, without copying it."""
        ...
