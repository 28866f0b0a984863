"""Refuses values for which no call can be made, or that no snapshot can hold, before their calls are made.

If such a value were noticed only when a snapshot is written, the snapshot would fail, and so would each one after a
restart: all calls since the last good snapshot would be made, and paid for, at every start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from async_op.errors import ValueRefused
from keygroups.codec import Packed, pack
from keygroups.state.detached import IMMUTABLE, own_copy
from keygroups.state.storable import ALWAYS_PLAIN, StorableCheck
from snapshots.format.subtask import RefusedValue

_AN_OUTPUT = "an output"


class Vet(Protocol):
    """Refuses values. Only one thread may use it.

    Attributes
    ----------
    are_decoded : bool
        Whether decoders of this package have made the values, of text, bytes, numbers, times, lists, dicts and None. Of
        these, the collector of garbage knows all that can change, so a dict that it does not know can be copied alone.
    certain : frozenset of type
        Types whose values are never refused: a look at the type of an element takes a tenth of a call of `error_of`.
    """

    are_decoded: bool
    certain: frozenset[type]

    def error_of(self, value: Any) -> Exception | None:
        """Return why a value is refused; usually None."""
        ...

    def errors_among(self, values: Sequence[Any]) -> dict[int, Exception]:
        """Return the errors of values that are refused, by their index; usually nothing, and without a Python loop."""
        ...


class Unreadable:
    """Refuses values that could not be read or stored; all others are known to be storable, as Spark's rows are."""

    certain = ALWAYS_PLAIN.union((str, dict, list, tuple))

    def __init__(self, *, are_decoded: bool = False) -> None:
        self.are_decoded = are_decoded

    def error_of(self, value: Any) -> Exception | None:
        """Return why a value is refused."""
        return _refusal(value) if type(value) is RefusedValue else None

    def errors_among(self, values: Sequence[Any]) -> dict[int, Exception]:
        """Return the errors of values that are refused, by their index."""
        return _each_error(self, values) if RefusedValue in set(map(type, values)) else {}


class Unstorable:
    """Refuses values that no snapshot can hold."""

    certain = ALWAYS_PLAIN

    def __init__(self, *, are_decoded: bool = False) -> None:
        self.are_decoded = are_decoded
        self._check = StorableCheck("the value of an element")

    def error_of(self, value: Any) -> Exception | None:
        """Return why a value is refused."""
        return _refusal(value) if type(value) is RefusedValue else self._check.error_of(value)

    def errors_among(self, values: Sequence[Any]) -> dict[int, Exception]:
        """Return the errors of values that are refused, by their index."""
        return {} if self._check.are_storable(values) else _each_error(self, values)


class StorableOutputs:
    """Refuses outputs that no snapshot can hold, while their call can still fail without its writes."""

    certain: frozenset[type] = ALWAYS_PLAIN

    def __init__(self) -> None:
        self._check = StorableCheck(_AN_OUTPUT)

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
        """Return whether an output certainly can be stored, and its function cannot change it."""
        return type(output) in IMMUTABLE and self._check.error_of(output) is None

    def copied(self, output: Any) -> Any:
        """Return a copy of an output; raises the reason why it cannot be stored."""
        self.check(output)
        return own_copy(output)

    def packed(self, output: Any) -> Any:
        """Return an output as it is stored, so that it is packed only once; numbers and text go on as they are.

        Many of them are packed together later. Raises the reason why an output cannot be stored.
        """
        if type(output) not in IMMUTABLE:
            return Packed(pack(output, _AN_OUTPUT))
        self.check(output)
        return output


def _each_error(vet: Vet, values: Sequence[Any]) -> dict[int, Exception]:
    return {index: error for index, value in enumerate(values) if (error := vet.error_of(value)) is not None}


def _refusal(value: RefusedValue) -> ValueRefused:
    return ValueRefused(value.text, value.reason)
