"""Python values as msgpack, with extension types for values that msgpack lacks and for users' types.

The bytes are part of the snapshot format: an extension number never changes its meaning. Decoding executes no stored
code; a user's type is decoded by the function that the user registered.
"""

from __future__ import annotations

import datetime as dt
import inspect
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import chain
from operator import is_
from typing import Any

import msgpack
import numpy as np

from keygroups.arguments import check_callable
from keygroups.context_managers import contextmanager
from keygroups.errors import ConfigError, KeyGroupsError, MissingCodec, UnstorableValue
from keygroups.names import CODEC_NAME
from keygroups.representation import class_in_message

_BIG_INT, _TUPLE, _SET, _FROZENSET, _DECIMAL, _UUID, _DATETIME, _DATE, _TIME, _TIMEDELTA, _NAMED = range(1, 12)
_BYTEARRAY, _NUMPY = range(12, 14)
_NATIVE = frozenset({type(None), bool, int, float, str, bytes})
_NUMBERS = frozenset({int, float})
_BUILTIN = frozenset({*_NATIVE, bytearray, list, dict})

_NINE_BYTES = b"\xcb\xcf\xd3"
"""What msgpack marks a number of nine bytes with: a float, and an integer of 64 bits without or with a sign."""

_BYTES_OR_EXTENSION = bytes([*range(0xC4, 0xCA), *range(0xD4, 0xD9)])
"""What msgpack marks bytes and extensions with."""

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
        An argument is invalid, the name belongs to the codec of another class, or the class can be stored without a
        codec.

    Examples
    --------
    >>> from fractions import Fraction
    >>> register_codec("fraction", Fraction, lambda f: (f.numerator, f.denominator), lambda parts: Fraction(*parts))
    >>> unpack(pack([Fraction(1, 3)], "an example"))
    [Fraction(1, 3)]
    """
    CODEC_NAME.check("name", name)
    if not inspect.isclass(type):
        raise ConfigError("type", type, "pass the class of the values")
    if type in _ENCODERS or type in _BUILTIN:
        raise ConfigError("type", type, "values of this type can be stored without a codec")
    check_callable("encode", encode, 1, reason="it converts a value to what is stored")
    check_callable("decode", decode, 1, reason="it converts what was stored to a value")
    codec = _Codec(name, type, encode, decode)
    others = (_codecs.get(name), _codecs_of_types.get(type))
    for other in others:
        # A module that is imported again creates its class again.
        if other is not None and (other.name, _path_of(other.type)) != (name, _path_of(type)):
            raise ConfigError("name", name, f"there is a codec {other.name!r} for {other.type.__qualname__} already")
    _codecs[name] = _codecs_of_types[type] = codec


def has_codec(type: type) -> bool:
    """Return whether a codec is registered for the values of a type."""
    return type in _codecs_of_types


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
    """Stored bytes are not a value, or their kind is unknown to this release."""

    reason: str
    """What is wrong with the bytes."""

    _template = "a stored value cannot be decoded ({reason}); if a newer release wrote it, read it with that one"


def pack(value: object, where: str, depth: int = 0) -> bytes:
    """Encode a value as msgpack.

    Parameters
    ----------
    value : object
        Built from None, bool, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset, the classes of
        `datetime` with zones of `datetime` or `zoneinfo`, `Decimal`, `UUID`, numpy scalars and types with a codec.
    where : str
        What holds the value, for the error message.
    depth : int
        How many extensions the value is in.

    Raises
    ------
    UnstorableValue
        The value, or one inside it, has another type, or it has more than `VALUE_BYTES_MAX` bytes.

    Examples
    --------
    >>> unpack(pack({"at": (1, 2)}, "an example"))
    {'at': (1, 2)}
    """
    # One flat function: a job packs each output between two other calls, and finds each further function uncached.
    kind, resting = type(value), _PACKERS[depth]
    try:
        packer = resting.pop()
    except IndexError:
        packer = _Packer(depth)
    packer.where = where
    try:
        if kind is tuple and depth < NESTED_EXTENSIONS_MAX:  # msgpack would call `_extend`, which does the same
            packed: bytes = packer.pack(_new_extension((_TUPLE, pack([*value], where, depth + 1))))  # type: ignore[misc]
        else:
            packed = packer.pack(value)
            # The quick checks first: most values are single ones, or have no byte that could mark bytes.
            is_certain = kind in _SINGLE or (
                len(packed) > _SHORT_BYTES and kind is list and _is_plain(value, packed)  # type: ignore[arg-type]
            )
            if not (is_certain or len(packed.translate(None, _BYTES_OR_EXTENSION)) == len(packed)):
                distinct = _distinct(value, where)
                if distinct is not value:
                    packed = packer.pack(distinct)
    except (ValueError, RecursionError) as error:
        raise UnstorableValue(f"{kind.__qualname__} ({error})", where) from error
    if len(packed) <= _KEPT_BYTES:
        resting.append(packer)
    elif len(packed) > VALUE_BYTES_MAX:
        reason = f"it takes {len(packed):,} bytes, and a stored value has at most {VALUE_BYTES_MAX:,}"
        raise UnstorableValue(kind.__qualname__, where, reason)
    return packed


class Packed(bytes):
    """A value as `pack` has encoded it, which is not encoded again. A deep copy of it is the value."""

    __slots__ = ()

    def __deepcopy__(self, _: object) -> Any:
        return unpack(self)


def pack_all(values: Sequence[Any], where: str) -> tuple[bytes, np.ndarray]:
    """Encode each of many values as `pack` does, but for those that are `Packed`.

    Returns them one behind the other, and how long each of them is. For plain numbers and text it takes a quarter of
    the time.

    Raises
    ------
    UnstorableValue
        A value, or one inside it, has another type, or it has more than `VALUE_BYTES_MAX` bytes.
    """
    packer = None
    if _NATIVE.issuperset(map(type, values)):
        packer = _PACKERS[0].pop() if _PACKERS[0] else _Packer(0)
        try:
            packed = list(map(packer.pack, values))
        except ValueError:
            packed = [pack(value, where) for value in values]  # raises the error that names the value
    else:
        packed = [value if type(value) is Packed else pack(value, where) for value in values]
    lengths = np.fromiter(map(len, packed), np.int64, len(packed))
    if packer is not None:
        if (longest := lengths.max(initial=0)) <= _KEPT_BYTES:
            _PACKERS[0].append(packer)
        elif longest > VALUE_BYTES_MAX:
            packed = [pack(value, where) for value in values]  # raises the error that names the value
    return b"".join(packed), lengths


_new_extension = partial(tuple.__new__, msgpack.ExtType)
"""Makes an extension from its number and content in half the time of its constructor, which checks both."""


class _Packer:
    """Packs values, and what their extensions hold. Only one call at a time may use it.

    Parameters
    ----------
    depth : int
        How many extensions the values are in.
    """

    __slots__ = ("_depth", "pack", "where")

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self.pack: Callable[[Any], bytes] = msgpack.Packer(default=self._extend, strict_types=True).pack
        self.where = ""

    def _extend(self, item: Any) -> Any:
        number, to_plain = _ENCODERS.get(type(item)) or _other_encoder(item, self.where)
        if self._depth == NESTED_EXTENSIONS_MAX:
            raise ValueError(f"more than {NESTED_EXTENSIONS_MAX} extensions in each other")
        if number in (_SET, _FROZENSET):
            return _new_extension((number, _packed_set(item, self.where, self._depth + 1)))
        return _new_extension((number, pack(to_plain(item), self.where, self._depth + 1)))


_PACKERS: tuple[list[_Packer], ...] = tuple([] for _ in range(NESTED_EXTENSIONS_MAX + 1))
"""Packers at rest, by depth: to make one takes longer than to pack a small dict. No two threads pop the same one."""

_SHORT_BYTES = 128
"""In lists up to this size, bytes that could mark bytes are found sooner than numbers."""

_SHORT = 16
"""Up to so many items are looked at one by one: calls that look at all of them would take longer."""

VALUE_BYTES_MAX = 2**31 - 2
"""How long an encoded value may be: an array of Arrow, in which files hold it, has offsets of 32 bits."""

_KEPT_BYTES = 65_536
"""A packer keeps the memory of its largest value, so those that have packed more are not kept."""


def _packed_set(items: Set[Any], where: str, depth: int) -> bytes:
    """Pack a set in an order that is the same in every process.

    Python's order depends on the salt of its hashes, so a digest of an equal value would differ after a restart.
    """
    kinds = set(map(type, items))
    if kinds <= {str} or kinds <= {int}:
        return pack(sorted(items), where, depth)
    packed = sorted(pack(item, where, depth) for item in items)
    return b"".join([msgpack.Packer().pack_array_header(len(packed)), *packed])


def has_marks(packed: bytes) -> bool:
    """Return whether packed bytes may hold bytes or an extension: whether a byte is there that msgpack marks them with.

    msgpack takes bytearrays and views of memory for bytes. Where no byte marks such a thing, there is none.
    """
    return len(packed.translate(None, _BYTES_OR_EXTENSION)) < len(packed)


def is_native(value: Any) -> bool:
    """Return whether a value is made of nothing but what msgpack keeps, and tuples: numbers, text, bytes, lists, dicts.

    A float or a text with accents may have any byte, so this tells what `has_marks` leaves open.
    """
    kind = type(value)
    if kind is dict:
        return _are_native(value.values()) and _are_native(value)
    return kind in _NATIVE or ((kind is list or kind is tuple) and _are_native(value))


def _are_native(values: Collection[Any]) -> bool:
    kinds = set(map(type, values))
    if kinds == {dict}:  # rows: a call for each would take as long as packing it
        return _are_native(list(chain.from_iterable(values))) and _are_native(
            list(chain.from_iterable(map(dict.values, values)))
        )
    return kinds <= _NATIVE or all(map(is_native, values))


def _distinct(value: Any, where: str) -> Any:
    """Return a value with extensions for bytearrays, which msgpack itself packs as bytes; the value itself without any.

    Views of memory would become bytes, too, and an `ExtType` whatever has its number, so both are refused.
    """
    kind = type(value)
    if kind in _NATIVE:
        return value
    if kind is dict:
        if _NATIVE.issuperset(map(type, value.values())) and _NATIVE.issuperset(map(type, value)):
            return value
        items = {_distinct(key, where): _distinct(item, where) for key, item in value.items()}
        return value if all(map(is_, items.values(), value.values())) else items
    if kind is list:
        if len(value) > _SHORT and (
            _are_numbers(value) or _NATIVE.issuperset(map(type, value)) or _are_flat_rows(value)
        ):
            return value
        elements = value
        for place, item in enumerate(value):
            if type(item) not in _NATIVE and (other := _distinct(item, where)) is not item:
                if elements is value:
                    elements = value.copy()
                elements[place] = other
        return elements
    if kind is bytearray:
        return msgpack.ExtType(_BYTEARRAY, msgpack.packb(bytes(value)))
    if kind is memoryview or kind is msgpack.ExtType:
        raise UnstorableValue(kind.__qualname__, where)
    return value


def _is_plain(values: list[Any], packed: bytes) -> bool:
    """Return whether a list, packed in more than a few bytes, certainly has only text, only bytes or only numbers."""
    first, count = type(values[0]), len(values)
    if first is str:
        return _are_texts(values)
    if first is bytes:  # to count one type takes half the time of a look into a set for each item
        return [*map(type, values)].count(bytes) == count
    head = 1 if count < 2**4 else 3 if count < 2**16 else 5
    # Where each ninth byte marks a number of nine bytes, each number ends where the next one begins.
    has_nine = len(packed) == head + 9 * count and not packed[head::9].translate(None, _NINE_BYTES)
    return has_nine or _are_numbers(values)


def _are_texts(values: Iterable[Any]) -> bool:
    """Return whether values that are packed have no bytes among them because they can be joined as text."""
    try:
        "".join(values)
    except TypeError:
        return False
    return True


def _are_flat_rows(values: list[Any]) -> bool:
    """Return whether a list has only dicts of what msgpack keeps, without a call for each of them."""
    return (
        {*map(type, values)} == {dict}
        and _NATIVE.issuperset(map(type, chain.from_iterable(map(dict.values, values))))
        and _NATIVE.issuperset(map(type, chain.from_iterable(values)))
    )


def _are_numbers(values: list[Any]) -> bool:
    """Return whether a list has only numbers that can be added up, which takes a tenth of a look at each type.

    Bytes cannot be added to a number. NumPy adds them to its scalars, but then the sum is an array.
    """
    if not values or type(values[0]) not in _NUMBERS or type(values[-1]) not in _NUMBERS:
        return False
    try:
        return type(sum(values)) in _NUMBERS
    except Exception:  # noqa: BLE001 - whatever the other types say
        return False


def _other_encoder(item: object, where: str) -> tuple[int, Callable[[Any], object]]:
    codec = _codecs_of_types.get(type(item))
    if codec is None and isinstance(item, np.generic) and item.dtype.kind in _NUMPY_KINDS and item.dtype.char != "g":
        return _NUMPY, _numpy_parts
    if codec is None:
        raise UnstorableValue(class_in_message(type(item)), where)
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


def unpack_all(data: Any, count: int) -> list[Any]:
    """Decode values that stand in a row in a buffer; `count` says how many there are.

    Raises
    ------
    UnreadableValue
        As for `unpack`, or the buffer holds another number of values.
    MissingCodec
        As for `unpack`.

    Examples
    --------
    >>> unpack_all(pack(1, "an example") + pack("two", "an example"), 2)
    [1, 'two']
    """
    # As one list: it takes a sixth less time than one by one, and refuses values that are too many or too few.
    values: list[Any] = unpack(b"".join((msgpack.Packer().pack_array_header(count), data)))
    return values


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


_NUMPY_TYPE = re.compile(r"[<>|][biufmM]\d{1,2}(\[\d{0,9}[a-zA-Z]{1,2}\])?")
"""The types of NumPy's scalars as the snapshot has them."""

_NUMPY_KINDS = "biufmMUS"
"""The kinds of NumPy's scalars whose bytes are the same on all machines, but for the order, which is stored."""


def _numpy_parts(scalar: np.generic) -> list[object]:
    """Return the type and the content of a scalar; text and bytes as such, because arrays drop zeros at their end."""
    if isinstance(scalar, str | bytes):
        return [scalar.dtype.kind, str(scalar) if isinstance(scalar, str) else bytes(scalar)]
    return [scalar.dtype.str, scalar.tobytes()]


def _numpy_scalar(parts: Any) -> np.generic:
    name, content = parts
    if name in ("U", "S"):
        return np.str_(content) if name == "U" else np.bytes_(content)
    if not _NUMPY_TYPE.fullmatch(name):
        raise ValueError(f"{name} is no type of a scalar")
    scalar: np.generic = np.frombuffer(content, np.dtype(name), 1)[0]
    return scalar


def _bytearray(content: Any) -> bytearray:
    if type(content) is not bytes:
        raise ValueError("a bytearray is made of bytes")
    return bytearray(content)


def _time_parts(moment: dt.datetime | dt.time) -> object:
    """Return a time as text with its offset, or with its zone and fold if the text would lose them."""
    zone = moment.tzinfo
    if not moment.fold and (zone is None or (type(zone) is dt.timezone and _is_whole(zone))):
        return moment.isoformat()
    return [moment.replace(tzinfo=None).isoformat(), moment.fold, _zone_parts(zone)]


def _is_whole(zone: dt.timezone) -> bool:
    """Return whether the text of an offset has all of a zone: no name, and no fraction of a second."""
    offset = zone.utcoffset(None)
    return zone.tzname(None) == dt.timezone(offset).tzname(None) and not offset.microseconds


def _zone_parts(zone: dt.tzinfo | None) -> object:
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        offset = zone.utcoffset(None)
        return [offset.days, offset.seconds, offset.microseconds, zone.tzname(None)]
    from zoneinfo import ZoneInfo  # such a value's module is already loaded; loading it takes 5 ms

    if type(zone) is ZoneInfo and zone.key is not None:
        return zone.key
    kind = f"{type(zone).__module__}.{type(zone).__qualname__}"  # such as pytz.UTC
    raise ValueError(f"its time zone is a {kind}: use zoneinfo.ZoneInfo or datetime.timezone")


def _with_zone(kind: type[Any]) -> Callable[[Any], object]:
    def decode(parts: Any) -> object:
        if isinstance(parts, str):
            return kind.fromisoformat(parts)
        text, fold, zone = parts
        return kind.fromisoformat(text).replace(fold=fold, tzinfo=_zone_of(zone))

    return decode


def _zone_of(parts: Any) -> dt.tzinfo | None:
    if parts is None:
        return None
    if isinstance(parts, str):
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            return ZoneInfo(parts)
        except (ZoneInfoNotFoundError, OSError):
            raise ValueError(f"the time zone {parts!r} is not known here; update tzdata") from None
    *offset, name = parts
    zone = dt.timezone(dt.timedelta(*offset))
    return zone if zone.tzname(None) == name else dt.timezone(dt.timedelta(*offset), name)


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

_SINGLE = _NATIVE.union(_ENCODERS)
"""Types that can hold no bytearray. Packed, one would look like bytes."""

_DECODERS: dict[int, Callable[[Any], object]] = {
    _BIG_INT: lambda value: int.from_bytes(value, "big", signed=True),
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _DECIMAL: Decimal,
    _UUID: lambda value: uuid.UUID(bytes=bytes(value)),
    _DATETIME: _with_zone(dt.datetime),
    _DATE: dt.date.fromisoformat,
    _TIME: _with_zone(dt.time),
    _TIMEDELTA: lambda parts: dt.timedelta(*parts),
    _NAMED: _decode_registered,
    _BYTEARRAY: _bytearray,
    _NUMPY: _numpy_scalar,
}
