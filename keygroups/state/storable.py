"""Checks at the time of a write that the value can be stored, so that the error hits the element that wrote it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgpack
import pyarrow as pa
from pyarrow import types

from keygroups.codec import NESTED_EXTENSIONS_MAX, VALUE_BYTES_MAX, has_marks, is_native, pack
from keygroups.errors import UnstorableValue
from keygroups.state.detached import have_types
from keygroups.values import Misfit, array_of

IsPlain: TypeAlias = Callable[[Any], bool]
"""A quick check that a value can be stored; False means that only a full check can show it."""

_CERTAIN: tuple[tuple[Callable[[pa.DataType], bool], type], ...] = ((types.is_float64, float), (types.is_boolean, bool))
"""Checks of Arrow types that hold every value of a Python type."""

ALWAYS_PLAIN: frozenset[type] = frozenset({int, float, bool, type(None)})
"""Types whose values can always be stored. Text may hold half a surrogate pair, and text and bytes may be too long."""

_BYTES = frozenset({bytes})
_LENGTH_MAX = VALUE_BYTES_MAX // 2
"""Text and bytes up to this length are certainly not too long."""

_IMMUTABLE = (
    *(types.is_integer, types.is_floating, types.is_boolean, types.is_temporal, types.is_decimal),
    *(types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_fixed_size_binary),
)
"""Checks of Arrow types whose values are immutable in Python."""


def plain_check_of(type_: pa.DataType | None) -> IsPlain:
    """Return the quick check for values that are stored with an Arrow type, or as msgpack."""
    if type_ is None:
        return _is_plain
    if types.is_integer(type_):
        signed = types.is_signed_integer(type_)
        low = -(2 ** (type_.bit_width - 1)) if signed else 0
        high = 2 ** (type_.bit_width - signed) - 1
        return lambda value: type(value) is int and low <= value <= high
    if types.is_string(type_) or types.is_large_string(type_):
        return lambda value: type(value) is str and value.isascii() and len(value) <= _LENGTH_MAX
    if types.is_binary(type_) or types.is_large_binary(type_):
        return lambda value: type(value) is bytes and len(value) <= _LENGTH_MAX
    for has_type, kind in _CERTAIN:
        if has_type(type_):
            return lambda value: type(value) is kind
    return lambda value: value is None


def holds_mutable(type_: pa.DataType | None) -> bool:
    """Return whether values that are stored with an Arrow type, or as msgpack, may be mutable."""
    return type_ is None or not any(has_type(type_) for has_type in _IMMUTABLE)


def check_storable(value: Any, type_: pa.DataType | None, where: str) -> None:
    """Raise unless a value can be stored and read back unchanged.

    Parameters
    ----------
    value : object
        The value.
    type_ : pyarrow.DataType or None
        The declared type; None for msgpack.
    where : str
        What would hold the value, for the error message.

    Raises
    ------
    UnstorableValue
        The value would not be read back unchanged.
    """
    if type_ is None:
        pack(value, where)
        return
    try:
        array_of([value], type_)
    except Misfit as error:
        raise UnstorableValue(
            f"{type(value).__qualname__} that does not fit {type_}", where, error.place_and_reason
        ) from error


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is str:
        return value.isascii() and len(value) <= _LENGTH_MAX
    return len(value) <= _LENGTH_MAX if kind is bytes else kind in ALWAYS_PLAIN


class StorableCheck:
    """Tells quickly whether values without an Arrow type can be stored. Only one thread may use it.

    Parameters
    ----------
    where : str
        What holds the values, for error messages.
    """

    __slots__ = ("_packer", "_tuples", "_where")

    def __init__(self, where: str) -> None:
        self._where = where
        self._tuples = 0
        # Reused: to make a packer takes longer than to pack a small dict.
        self._packer = msgpack.Packer(default=self._items_of_tuple, strict_types=True)

    def are_storable(self, values: Sequence[Any]) -> bool:
        """Return whether all values can certainly be stored; False if only a check of each one can tell."""
        if have_types(values, _BYTES) and max(map(len, values), default=0) <= _LENGTH_MAX:
            return True
        return have_types(values, ALWAYS_PLAIN) or self._is_native(list(values))

    def error_of(self, value: Any) -> Exception | None:
        """Return the error of an attempt to store a value; None if it can be stored."""
        if _is_plain(value) or self._is_native(value):
            return None
        try:
            pack(value, self._where)
        except Exception as error:  # noqa: BLE001 - a codec of the user's may fail in any way
            return error
        return None

    def _is_native(self, value: Any) -> bool:
        self._tuples = 0
        try:
            packed = self._packer.pack(value)
        except Exception:  # noqa: BLE001 - the exact check tells what is wrong
            return False
        return len(packed) <= VALUE_BYTES_MAX and (not has_marks(packed) or is_native(value))

    def _items_of_tuple(self, value: object) -> list[Any]:
        """Return what a tuple holds; not of so many that they could be in each other more deeply than `pack` allows."""
        self._tuples += 1
        if type(value) is not tuple or self._tuples > NESTED_EXTENSIONS_MAX:
            raise TypeError
        return list(value)
