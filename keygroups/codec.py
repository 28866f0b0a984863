"""Python values as msgpack, with extension types for values that msgpack lacks and for users' types.

The bytes are part of the snapshot format: an extension number never changes its meaning. Decoding executes no stored
code; a user's type is decoded by the function that the user registered.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import msgpack
import numpy as np

from keygroups.errors import ConfigError, KeyGroupsError, MissingCodec, UnstorableValue

_BIG_INT, _TUPLE, _SET, _FROZENSET, _DECIMAL, _UUID, _DATETIME, _DATE, _TIME, _TIMEDELTA, _NAMED = range(1, 12)
_NATIVE = (type(None), bool, int, float, str, bytes)
_BUILTIN = frozenset({*_NATIVE, list, dict})
_CODEC_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")

NESTED_EXTENSIONS_MAX = 64
"""How deep tuples, sets and other extensions may be nested. (msgpack allows 511 nested lists and dicts in each.)"""


@dataclass(frozen=True, slots=True)
class _Codec:
    name: str
    type: type
    encode: Callable[[Any], object]
    decode: Callable[[Any], object]


_codecs: dict[str, _Codec] = {}
_codecs_of_types: dict[type, _Codec] = {}
_used: ContextVar[set[str] | None] = ContextVar("codecs used", default=None)


def register_codec(name: str, type: type, encode: Callable[[Any], object], decode: Callable[[Any], object]) -> None:
    """Let state and elements without an Arrow type hold values of your own type.

    The name is stored with each value, and with the state in every snapshot. A process that restores the snapshot needs
    a codec of that name, so register it in a module that all workers import. Each subclass needs its own codec.
    `decode` must understand the current results of `encode` as long as their snapshots are kept.

    Parameters
    ----------
    name : str
        The permanent name of the codec: letters, digits, `_`, `.` and `-`, such as "shop.Money-1".
    type : type
        The class of the values.
    encode : callable
        Converts a value to storable values, such as a tuple of its fields; these may use other codecs.
    decode : callable
        Converts them back.

    Raises
    ------
    ConfigError
        The name is invalid or belongs to the codec of another class, or the class can be stored without a codec.

    Examples
    --------
    >>> from fractions import Fraction
    >>> register_codec("fraction", Fraction, lambda f: (f.numerator, f.denominator), lambda parts: Fraction(*parts))
    >>> unpack(pack([Fraction(1, 3)], "an example"))
    [Fraction(1, 3)]
    """
    if not _CODEC_NAME.fullmatch(name):
        raise ConfigError("name", name, "a codec is named by letters, digits, '_', '.' and '-', 128 at most")
    if type in _ENCODERS or type in _BUILTIN:
        raise ConfigError("type", type, "values of this type can be stored without a codec")
    codec = _Codec(name, type, encode, decode)
    others = (_codecs.get(name), _codecs_of_types.get(type))
    for other in others:
        # A module that is imported again creates its class again.
        if other is not None and (other.name, _path_of(other.type)) != (name, _path_of(type)):
            raise ConfigError("name", name, f"there is a codec {other.name!r} for {other.type.__qualname__} already")
    _codecs[name] = _codecs_of_types[type] = codec


def missing_codecs(names: Iterable[str]) -> list[str]:
    """Return the names that have no codec in this process, in order."""
    return sorted(set(names) - _codecs.keys())


@contextmanager
def codecs_used() -> Iterator[set[str]]:
    """Yield a set that collects the names of all codecs with which this thread encodes values in this context."""
    names = set[str]()
    token = _used.set(names)
    try:
        yield names
    finally:
        _used.reset(token)


def _path_of(type_: type) -> tuple[str, str]:
    return type_.__module__, type_.__qualname__


class UnreadableValue(KeyGroupsError, ValueError):
    """Stored bytes are not a value, or their kind is unknown to this release.

    Attributes
    ----------
    reason : str
        What is wrong with the bytes.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"a stored value cannot be decoded ({reason}); if a newer release wrote it, read it with that one"
        )


def pack(value: object, where: str) -> bytes:
    """Encode a value as msgpack.

    Parameters
    ----------
    value : object
        Built from None, bool, int, float, str, bytes, list, tuple, dict, set, frozenset, the classes of
        `datetime`, `Decimal`, `UUID`, numpy scalars (stored as the Python value they stand for) and types with a codec.
    where : str
        What holds the value, for the error message.

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
        number, to_plain = _ENCODERS.get(type(item)) or _registered_encoder(item, where)
        if depth == NESTED_EXTENSIONS_MAX:
            raise ValueError(f"more than {NESTED_EXTENSIONS_MAX} extensions in each other")
        return msgpack.ExtType(number, _pack(to_plain(item), where, depth + 1))

    try:
        return msgpack.packb(value, default=extend, strict_types=True)  # type: ignore[no-any-return]
    except (ValueError, RecursionError) as error:
        raise UnstorableValue(f"{type(value).__qualname__} ({error})", where) from error


def _registered_encoder(item: object, where: str) -> tuple[int, Callable[[Any], object]]:
    codec = _codecs_of_types.get(type(item))
    if codec is None:
        raise UnstorableValue(type(item).__qualname__, where)
    names = _used.get()
    if names is not None:
        names.add(codec.name)
    return _NAMED, lambda value: [codec.name, codec.encode(value)]


def _decode_registered(parts: Any) -> object:
    name, plain = parts
    codec = _codecs.get(name)
    if codec is None:
        raise MissingCodec(str(name), "what is read")
    return codec.decode(plain)


def unpack(data: bytes) -> Any:
    """Decode the bytes that `pack` returned.

    Raises
    ------
    UnreadableValue
        The bytes are truncated, damaged, or written by a newer release.
    MissingCodec
        They hold a value whose codec is not registered in this process.

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
    # For each list, msgpack allocates as many items as its header claims, at most one per byte of the data.
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
    # Reached only for integers that are too large for msgpack.
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
    _NAMED: _decode_registered,
}
