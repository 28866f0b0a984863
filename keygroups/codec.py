"""Python values as msgpack, with extension types for what msgpack itself lacks.

The bytes are part of the snapshot format: an extension number never changes its meaning, and nothing
that is decoded is executed.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import msgpack
import numpy as np

from keygroups.errors import KeyGroupsError, UnstorableValue

_BIG_INT, _TUPLE, _SET, _FROZENSET, _DECIMAL, _UUID, _DATETIME, _DATE, _TIME, _TIMEDELTA = range(1, 11)
_NATIVE = (type(None), bool, int, float, str, bytes)

NESTED_EXTENSIONS_MAX = 64
"""Tuples, sets and the like may hold each other so deep. (msgpack itself allows 511 lists and dicts in each.)"""


class UnreadableValue(KeyGroupsError, ValueError):
    """Stored bytes are not a value, or one of a kind that this release does not know.

    Attributes
    ----------
    reason : str
        What was found.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"a stored value cannot be decoded ({reason}); if a newer release wrote it, read it with that one"
        )


def pack(value: object, where: str) -> bytes:
    """Encode a value.

    Parameters
    ----------
    value : object
        Built from None, bool, int, float, str, bytes, list, tuple, dict, set, frozenset, the classes of
        `datetime`, `Decimal`, `UUID` and numpy scalars (stored as the Python value they stand for).
    where : str
        What holds the value, for the error.

    Raises
    ------
    UnstorableValue
        The value, or one inside it, has another type.

    Examples
    --------
    >>> unpack(pack({"at": (1, 2)}, "an example"))
    {'at': (1, 2)}
    """
    return _pack(value, where, 0)


def _pack(value: object, where: str, depth: int) -> bytes:
    def extend(item: Any) -> Any:
        if isinstance(item, np.generic):
            item = _python_value(item)
            if type(item) in _NATIVE:
                return item
        if type(item) not in _ENCODERS:
            raise UnstorableValue(type(item).__qualname__, where)
        number, to_plain = _ENCODERS[type(item)]
        if depth == NESTED_EXTENSIONS_MAX:
            raise ValueError(f"more than {NESTED_EXTENSIONS_MAX} extensions in each other")
        return msgpack.ExtType(number, _pack(to_plain(item), where, depth + 1))

    try:
        return msgpack.packb(value, default=extend, strict_types=True)  # type: ignore[no-any-return]
    except (ValueError, RecursionError) as error:
        raise UnstorableValue(f"{type(value).__qualname__} ({error})", where) from error


def unpack(data: bytes) -> Any:
    """Decode what `pack` encoded.

    Raises
    ------
    UnreadableValue
        The bytes are cut, changed or from a newer release.

    Examples
    --------
    >>> unpack(pack({3, 4}, "an example")) == {3, 4}
    True
    """
    try:
        return _unpack(data)
    except (ArithmeticError, MemoryError, RecursionError, TypeError, ValueError) as error:
        raise UnreadableValue(str(error) or type(error).__name__) from error


def _unpack(data: bytes, depth: int = 0) -> Any:
    # Of each list msgpack reserves what its header promises, at most an item for each byte of the data.
    return msgpack.unpackb(data, ext_hook=_HOOKS[depth], strict_map_key=False)


def _decode(depth: int, number: int, data: bytes) -> Any:
    if number not in _DECODERS:
        raise ValueError(f"extension {number} is unknown")
    if depth == NESTED_EXTENSIONS_MAX:
        raise ValueError(f"more than {depth} extensions in each other")
    return _DECODERS[number](_unpack(data, depth + 1))


_HOOKS = tuple(partial(_decode, depth) for depth in range(NESTED_EXTENSIONS_MAX + 1))


def _python_value(scalar: np.generic) -> Any:
    value = scalar.item()
    if type(value) is int and scalar.dtype.kind in "mM":
        raise ValueError(f"{scalar.dtype} is finer than the microseconds of a datetime")
    return value


def _time_parts(moment: dt.datetime | dt.time) -> str:
    if moment.tzinfo is not None and moment.utcoffset() is None:
        raise ValueError(f"the zone of {moment!r} has no offset")
    return moment.isoformat()


_ENCODERS: dict[type, tuple[int, Callable[[Any], object]]] = {
    # Asked for only where msgpack has no integer that is large enough.
    int: (_BIG_INT, lambda value: value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)),
    tuple: (_TUPLE, list),
    set: (_SET, list),
    frozenset: (_FROZENSET, list),
    Decimal: (_DECIMAL, str),
    uuid.UUID: (_UUID, lambda value: value.bytes),
    dt.datetime: (_DATETIME, _time_parts),
    dt.date: (_DATE, lambda value: value.isoformat()),
    dt.time: (_TIME, _time_parts),
    dt.timedelta: (_TIMEDELTA, lambda value: [value.days, value.seconds, value.microseconds]),
}

_DECODERS: dict[int, Callable[[Any], object]] = {
    _BIG_INT: lambda value: int.from_bytes(value, "big", signed=True),
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _DECIMAL: Decimal,
    _UUID: lambda value: uuid.UUID(bytes=bytes(value)),
    _DATETIME: dt.datetime.fromisoformat,
    _DATE: dt.date.fromisoformat,
    _TIME: dt.time.fromisoformat,
    _TIMEDELTA: lambda parts: dt.timedelta(*parts),
}
