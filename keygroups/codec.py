"""Python values as msgpack, with extension types for what msgpack itself lacks.

The bytes are part of the snapshot format: an extension number never changes its meaning, and nothing
that is decoded is executed.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgpack

from keygroups.errors import UnstorableValue

_BIG_INT, _TUPLE, _SET, _FROZENSET, _DECIMAL, _UUID, _DATETIME, _DATE, _TIME, _TIMEDELTA = range(1, 11)


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

    def extend(item: Any) -> Any:
        encoder = _ENCODERS.get(type(item))
        if encoder is not None:
            number, to_plain = encoder
            return msgpack.ExtType(number, pack(to_plain(item), where))
        if type(item).__module__ == "numpy" and hasattr(item, "item") and getattr(item, "ndim", 0) == 0:
            return item.item()
        raise UnstorableValue(type(item).__qualname__, where)

    try:
        return msgpack.packb(value, default=extend, strict_types=True, use_bin_type=True)  # type: ignore[no-any-return]
    except OverflowError:
        return msgpack.packb(_without_big_ints(value), default=extend, strict_types=True)  # type: ignore[no-any-return]


def unpack(data: bytes) -> Any:
    """Decode what `pack` encoded.

    Examples
    --------
    >>> unpack(pack({3, 4}, "an example")) == {3, 4}
    True
    """
    return msgpack.unpackb(data, ext_hook=_decode, strict_map_key=False, use_list=True)


def _decode(number: int, data: bytes) -> Any:
    return _DECODERS[number](unpack(data))


def _without_big_ints(value: Any) -> Any:
    """Replace integers beyond 64 bits, which msgpack refuses before it asks for an extension."""
    if type(value) is int and not -(2**63) <= value < 2**64:
        return msgpack.ExtType(_BIG_INT, pack(str(value), "an integer"))
    if type(value) is dict:
        return {_without_big_ints(key): _without_big_ints(item) for key, item in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_without_big_ints(item) for item in value)
    return value


def _time_parts(moment: dt.datetime | dt.time) -> str:
    if moment.tzinfo is not None and moment.utcoffset() is None:
        raise UnstorableValue(f"{type(moment).__qualname__} whose zone has no offset", "the value")
    return moment.isoformat()


_ENCODERS: dict[type, tuple[int, Callable[[Any], object]]] = {
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
    _BIG_INT: int,
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _DECIMAL: Decimal,
    _UUID: lambda value: uuid.UUID(bytes=value),
    _DATETIME: dt.datetime.fromisoformat,
    _DATE: dt.date.fromisoformat,
    _TIME: dt.time.fromisoformat,
    _TIMEDELTA: lambda parts: dt.timedelta(*parts),
}
