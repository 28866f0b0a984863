"""Elements that failed for good: what is kept of each, as rows with columns of fixed types, and back to the value.

Every door writes these rows: a job's sink of dead letters, and the column of dead letters on Spark. A value may be
anything, even something that no table, file or message can hold, so it is written as text, beside which a column says
how to read it.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, get_args

import pyarrow as pa

from async_op.errors import shorten
from keygroups.arguments import check_choice
from keygroups.codec import pack, unpack
from keygroups.errors import KeyGroupsError
from keygroups.representation import fields_repr
from keygroups.safe_text import printable, text_of, traceback_of
from snapshots.format.subtask import RefusedValue

OnError = Literal["fail", "skip", "dead_letter"]


def check_on_error(on_error: object) -> None:
    """Raise `ConfigError` unless `on_error` is one of the three."""
    check_choice("on_error", on_error, get_args(OnError))


def is_told(count: int) -> bool:
    """Return whether the log tells of the 1st, 10th, 100th … element that was left out: a bad input has millions.

    Examples
    --------
    >>> [count for count in range(1, 200) if is_told(count)]
    [1, 10, 100]
    """
    return str(count).rstrip("0") == "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """An element that failed for good under the error policy "dead_letter".

    Attributes
    ----------
    value : object
        The element's value.
    timestamp : int or None
        Milliseconds since the epoch.
    key : object
        Its key, or None.
    idempotency_key : str
        The one that its calls had.
    attempts : int
        How many calls were made.
    error : BaseException
        The error of the last call, or `AsyncTimeoutError`.
    """

    value: Any
    timestamp: int | None
    key: Hashable
    idempotency_key: str
    attempts: int
    error: BaseException

    __repr__ = fields_repr


@dataclass(frozen=True, slots=True)
class InPlace:
    """A receiver of dead letters that turns each one into outputs, which the operator emits in place of the element's.

    Attributes
    ----------
    convert : callable
        Returns the outputs for a dead letter.
    """

    convert: Callable[[DeadLetter], Sequence[Any]]

    def __call__(self, letter: DeadLetter) -> Sequence[Any]:
        """Return the outputs that replace the failed element's."""
        return self.convert(letter)


LETTER_SCHEMA = pa.schema(
    [
        pa.field("step", pa.string()),
        pa.field("value", pa.string()),
        pa.field("value_encoding", pa.string()),
        pa.field("timestamp", pa.int64()),
        pa.field("key", pa.string()),
        pa.field("idempotency_key", pa.string()),
        pa.field("attempts", pa.int32()),
        pa.field("error_type", pa.string()),
        pa.field("error_message", pa.string()),
        pa.field("error_traceback", pa.string()),
    ]
)
"""The columns of dead letters. On Spark there is no `step`."""

Encoding = Literal["json", "tagged json", "text", "base64", "repr", "cut"]

DEPTH_MAX = 64
"""How deep values may be nested in a letter: a value that contains itself would never end."""

CUT_LENGTHS = (262_144, 1_024)
"""To how many characters the texts of a letter are cut if its sink refuses the letter, and if it refuses it again.

The first fits into a message of a Kafka broker with default settings, whatever the characters are, and the second into
what any target takes that has columns of text at all.
"""

_INT_BITS_MAX = 4_096
"""Python refuses to write integers of more than about 14,000 bits as decimal digits."""


class LetterWithoutValue(KeyGroupsError, ValueError):
    """The value of a dead letter could not be stored, or its sink refused it whole: its text is only for reading."""

    idempotency_key: str
    """The id of the element."""

    _template = (
        "the dead letter {idempotency_key} does not hold its value, which has a type that cannot be stored, or was cut "
        "because the sink refused it; read the value from the source again, and before the next run call "
        "register_codec for its type, or let the sink take longer texts"
    )


def row_of(letter: DeadLetter, step: str | None = None) -> dict[str, Any]:
    """Return a dead letter as a row with the columns of `LETTER_SCHEMA`.

    It raises nothing, whatever the letter holds.
    """
    text, encoding = encoded(letter.value)
    return {
        "step": step,
        "value": text,
        "value_encoding": encoding,
        "timestamp": letter.timestamp,
        "key": None if letter.key is None else _key_text(letter.key),
        "idempotency_key": printable(letter.idempotency_key, None),
        "attempts": letter.attempts,
        "error_type": type(letter.error).__name__,
        "error_message": text_of(letter.error),
        "error_traceback": traceback_of(letter.error),
    }


def cut_row(row: Mapping[str, Any], limit: int) -> dict[str, Any]:
    r"""Return the row of a dead letter whose texts have at most so many characters, and say how long they were.

    Examples
    --------
    >>> cut_row({"value": "abcdef", "value_encoding": "text", "key": '"abcdef"', "attempts": 1}, 3)
    {'value': 'abc… (6 characters)', 'value_encoding': 'cut', 'key': '"\\"ab… (8 characters)"', 'attempts': 1}
    """
    shorter = {name: printable(text, limit) if type(text) is str else text for name, text in row.items()}
    if shorter["value"] != row["value"]:
        shorter["value_encoding"] = "cut"
    if shorter["key"] != row["key"]:
        shorter["key"] = _json(shorter["key"])
    return shorter


def encoded(value: object) -> tuple[str, Encoding]:
    r"""Return a value as text, and how to read it.

    Examples
    --------
    >>> encoded({"id": 7}), encoded(b"7"), encoded(b"\xff"), encoded((1, Decimal("1.50")))
    (('{"id": 7}', 'json'), ('7', 'text'), ('/w==', 'base64'), ('{"$tuple": [1, {"$decimal": "1.50"}]}', 'tagged json'))
    """
    if type(value) is bytes:
        text = _utf_8(value)
        return (base64.b64encode(value).decode(), "base64") if text is None else (text, "text")
    if type(value) is RefusedValue:
        return printable(value.text), "repr"
    writer = _Writer()
    try:
        text = _json(writer.part(value, 0))
    except Exception:  # noqa: BLE001 - too deep, or a type of the user's own that fails: only its repr is left
        return _json(shorten(value)), "repr"
    return text, "repr" if writer.has_reprs else "tagged json" if writer.has_tags else "json"


def letter_value(row: Mapping[str, Any]) -> Any:
    """Return the value of the element from its dead letter, to try it again.

    Parameters
    ----------
    row : mapping
        A row that a sink has stored, or a row of Spark's column, with `value`, `value_encoding` and `idempotency_key`.

    Raises
    ------
    LetterWithoutValue
        The value has a type that cannot be stored.
    zoneinfo.ZoneInfoNotFoundError
        The value holds a time in a zone that is not known here; update tzdata.

    Examples
    --------
    >>> letter_value({"value": '{"price": {"$decimal": "1.50"}}', "value_encoding": "tagged json"})
    {'price': Decimal('1.50')}
    """
    text = row["value"]
    match row["value_encoding"]:
        case "json":
            return json.loads(text)
        case "tagged json":
            return _read(json.loads(text))
        case "text":
            return text.encode()
        case "base64":
            return base64.b64decode(text)
        case _:
            raise LetterWithoutValue(str(row["idempotency_key"]))


def letter_key(row: Mapping[str, Any]) -> Hashable:
    """Return the key of the element from its dead letter; None without a key.

    Examples
    --------
    >>> letter_key({"key": '["ann", 7]'}), letter_key({"key": None})
    (('ann', 7), None)
    """
    # A file of CSV has no null.
    found = _read(json.loads(row["key"])) if row["key"] else None
    return tuple(found) if isinstance(found, list) else found


class _Writer:
    """Makes of a value what JSON can hold; what JSON lacks becomes a dict with one name that begins with $."""

    def __init__(self) -> None:
        self.has_tags = self.has_reprs = False

    def part(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if depth > DEPTH_MAX:
            raise RecursionError
        if kind is list:
            return [self.part(item, depth + 1) for item in value]
        if kind is dict and self._is_object(value):
            return {name: self.part(item, depth + 1) for name, item in value.items()}
        if (kind is int and value.bit_length() <= _INT_BITS_MAX) or (kind is float and math.isfinite(value)):
            return value
        self.has_tags = True
        if kind in _TAGS and not (isinstance(value, dt.datetime | dt.time) and _loses_its_zone(value)):
            name, to_plain = _TAGS[kind]
            return {name: self.part(to_plain(value), depth + 1)}
        return self._other(value)

    def _is_object(self, value: dict[Any, Any]) -> bool:
        return all(type(name) is str for name in value) and not (len(value) == 1 and next(iter(value))[:1] == "$")

    def _other(self, value: Any) -> Any:
        if type(value) is bytes:
            text = _utf_8(value)
            return {"$base64": base64.b64encode(value).decode()} if text is None else {"$bytes": text}
        try:
            return {"$msgpack": base64.b64encode(pack(value, "a dead letter")).decode()}
        except Exception:  # noqa: BLE001 - it cannot be stored, or a codec of the user's fails
            self.has_reprs = True
            return {"$repr": shorten(value)}


_TAGS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    int: ("$int", hex),
    float: ("$float", repr),
    dict: ("$map", lambda value: [list(item) for item in value.items()]),
    tuple: ("$tuple", list),
    set: ("$set", list),
    frozenset: ("$frozenset", list),
    Decimal: ("$decimal", str),
    uuid.UUID: ("$uuid", str),
    dt.datetime: ("$datetime", lambda value: _moment_text(value)),
    dt.date: ("$date", dt.date.isoformat),
    dt.time: ("$time", lambda value: _moment_text(value)),
    dt.timedelta: ("$timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
}

_READERS: dict[str, Callable[[Any], Any]] = {
    "$int": lambda text: int(text, 16),
    "$float": float,
    "$map": lambda items: {key: item for key, item in items},  # noqa: C416 - `dict` would take text of two letters
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$decimal": Decimal,
    "$uuid": uuid.UUID,
    "$datetime": lambda text: _moment_of(dt.datetime, text),
    "$date": dt.date.fromisoformat,
    "$time": lambda text: _moment_of(dt.time, text),
    "$timedelta": lambda parts: dt.timedelta(*parts),
    "$bytes": str.encode,
    "$base64": base64.b64decode,
    "$msgpack": lambda text: unpack(base64.b64decode(text)),
}


_FOLD = " fold"
"""Marks the second of two equal times, in the hour that a change of clocks repeats; ISO 8601 has no form for it."""


def _moment_text(moment: dt.datetime | dt.time) -> str:
    """Return a time as RFC 9557 has it, with the name of its zone: ``2026-01-02T03:04:05+01:00[Europe/Berlin]``."""
    zone = _zone_name(moment.tzinfo)
    return moment.isoformat() + (f"[{zone}]" if zone else "") + (_FOLD if moment.fold else "")


def _moment_of(kind: type[dt.datetime] | type[dt.time], text: str) -> dt.datetime | dt.time:
    time, _, zone = text.removesuffix(_FOLD).partition("[")
    moment = kind.fromisoformat(time).replace(fold=int(text.endswith(_FOLD)))
    if not zone:
        return moment
    from zoneinfo import ZoneInfo  # loading it takes 5 ms

    return moment.replace(tzinfo=ZoneInfo(zone.removesuffix("]")))


def _zone_name(zone: dt.tzinfo | None) -> str | None:
    if zone is None or type(zone) is dt.timezone:
        return None
    from zoneinfo import ZoneInfo  # loading it takes 5 ms

    return zone.key if type(zone) is ZoneInfo else None


def _loses_its_zone(moment: dt.datetime | dt.time) -> bool:
    """Return whether the text of a time lacks its zone: an offset with a name, or a zone that has none for the time."""
    zone = moment.tzinfo
    if zone is None or _zone_name(zone):
        return False
    offset = moment.utcoffset()
    return offset is None or (type(zone) is dt.timezone and repr(zone) not in (repr(dt.UTC), repr(dt.timezone(offset))))


def _read(part: Any) -> Any:
    if isinstance(part, list):
        return [_read(item) for item in part]
    if not isinstance(part, dict):
        return part
    if len(part) == 1:
        ((name, content),) = part.items()
        if name in _READERS:
            return _READERS[name](_read(content))
    return {name: _read(item) for name, item in part.items()}


def _key_text(key: Hashable) -> str:
    """Return a key as JSON with tags; several key columns are a list."""
    writer = _Writer()
    try:
        return _json([writer.part(item, 1) for item in key] if type(key) is tuple else writer.part(key, 0))
    except Exception:  # noqa: BLE001 - a key of a class of the user's own
        return _json(shorten(key))


def _json(part: Any) -> str:
    text = json.dumps(part, ensure_ascii=False)
    # Half a surrogate pair can only be stored escaped; JSON has that escape, too.
    return text if printable(text, None) == text else json.dumps(part)


def _utf_8(value: bytes) -> str | None:
    """Return text that stands for bytes, if every sink can hold it."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
