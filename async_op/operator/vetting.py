"""Refuses values for which no call can be made, or that no snapshot can hold, before their calls are made.

If such a value were noticed only when a snapshot is written, the snapshot would fail, and so would each one after a
restart: all calls since the last good snapshot would be made, and paid for, at every start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from async_op.errors import ValueRefused
from keygroups.state.storable import ALWAYS_PLAIN, StorableCheck
from snapshots.format.subtask import RefusedValue

Vet: TypeAlias = Callable[[Sequence[Any]], dict[int, Exception]]
"""Returns the errors of values that are refused, by their index; usually nothing."""


def unreadable_among(values: Sequence[Any]) -> dict[int, Exception]:
    """Refuse values that could not be read or stored; all others are known to be storable, as Spark's rows are."""
    if RefusedValue not in set(map(type, values)):  # without a Python loop: this runs for every element
        return {}
    return {index: _refusal(value) for index, value in enumerate(values) if type(value) is RefusedValue}


def unstorable_among() -> Vet:
    """Return what refuses values that no snapshot can hold. Only one thread may use it."""
    check = StorableCheck("the value of an element")

    def vet(values: Sequence[Any]) -> dict[int, Exception]:
        if check.are_storable(values):
            return {}
        found: dict[int, Exception] = {}
        for index, value in enumerate(values):
            error = _refusal(value) if type(value) is RefusedValue else check.error_of(value)
            if error is not None:
                found[index] = error
        return found

    return vet


class StorableOutputs:
    """Refuses outputs that no snapshot can hold, while their call can still fail without its writes."""

    certain: frozenset[type] = ALWAYS_PLAIN

    def __init__(self) -> None:
        self._check = StorableCheck("an output")

    def check(self, output: Any) -> None:
        """Raise the reason why an output cannot be stored.

        Raises
        ------
        UnstorableValue
            It has a type that cannot be stored.
        """
        error = self._check.error_of(output)
        if error is not None:
            raise error

    def fits(self, output: Any) -> bool:
        """Return whether an output certainly can be stored."""
        return self._check.is_storable(output)


def _refusal(value: RefusedValue) -> ValueRefused:
    return ValueRefused(value.text, value.reason)
