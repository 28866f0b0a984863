"""Whether a value can be stored, asked when it is written, so that the error falls on the element that wrote it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import types

from keygroups.codec import pack
from keygroups.errors import UnstorableValue
from keygroups.values import Misfit, array_of

IsPlain: TypeAlias = Callable[[Any], bool]
"""Tells at next to no cost that a value can be stored; False if that takes a closer look."""

_CERTAIN: tuple[tuple[Callable[[pa.DataType], bool], type], ...] = (
    (types.is_float64, float),
    (types.is_boolean, bool),
    (types.is_binary, bytes),
    (types.is_large_binary, bytes),
)
"""Arrow types that hold every value of a Python type."""


def plain_check_of(type_: pa.DataType | None) -> IsPlain:
    """Return the quick look at values that are to be stored with an Arrow type, or as msgpack."""
    if type_ is None:
        return _is_plain
    if types.is_integer(type_):
        signed = types.is_signed_integer(type_)
        low = -(2 ** (type_.bit_width - 1)) if signed else 0
        high = 2 ** (type_.bit_width - signed) - 1
        return lambda value: type(value) is int and low <= value <= high
    if types.is_string(type_) or types.is_large_string(type_):
        return lambda value: type(value) is str and value.isascii()
    for has_type, kind in _CERTAIN:
        if has_type(type_):
            return lambda value: type(value) is kind
    return lambda value: value is None


def check_storable(value: Any, type_: pa.DataType | None, where: str) -> None:
    """Raise unless a value can be stored.

    Parameters
    ----------
    value : object
        The value.
    type_ : pyarrow.DataType or None
        The declared type; None for msgpack.
    where : str
        What would hold it, for the error.

    Raises
    ------
    UnstorableValue
        It would not come back as it is.
    """
    if type_ is None:
        pack(value, where)
        return
    try:
        array_of([value], type_)
    except Misfit as error:
        raise UnstorableValue(f"{type(value).__qualname__} that does not fit {error}", where) from error


def _is_plain(value: Any) -> bool:
    kind = type(value)
    return kind is int or kind is float or kind is bool or value is None or (kind is str and value.isascii())
