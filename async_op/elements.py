"""Elements: records and watermarks, as they enter and leave an operator."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol, TypeAlias

from keygroups.arguments import check_integer
from keygroups.errors import ConfigError
from keygroups.representation import fields_repr
from keygroups.safe_text import printable
from keygroups.values.scalars import without_numpy

TIMESTAMP_MAX = 2**63 - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_TEXT_MAX = 40
"""No time has a longer text, and Python refuses to make a number of thousands of digits."""


class Record(NamedTuple):
    """An output, with the timestamp of its input (milliseconds since the epoch, or None)."""

    value: Any
    timestamp: int | None

    def __repr__(self) -> str:
        return fields_repr(self)


class Watermark(NamedTuple):
    """A promise that no record with this timestamp or an earlier one follows (milliseconds since the epoch)."""

    timestamp: int


class Ids(Protocol):
    """Ids that are made only on request. Any thread may ask."""

    def __getitem__(self, index: int, /) -> str:
        """Return one id; asked again, the same."""
        ...


ElementId: TypeAlias = str | tuple[Any, Any]
"""An id, or what it is made of on request, which is rare: `Ids` and an index; a beginning and an end; or the id of
an input, if that is none of text, and the number of an output.

They are plain tuples because the garbage collector soon stops to visit a tuple of numbers and text, and each element in
flight has one. To visit objects of a class again and again would cost as much as a call that returns at once.
"""

Element: TypeAlias = tuple[Any, int | None, ElementId | None]
"""An input: its value, timestamp and id."""


def looked_up(element_id: ElementId | None) -> str | None:
    """Return an id, which is made now unless it was requested before."""
    if element_id is None or isinstance(element_id, str):
        return element_id
    first, last = element_id
    if isinstance(first, str):
        return f"{first}{last}"
    if isinstance(first, tuple):
        return f"{looked_up(first)}/{last}"
    return first[last]  # type: ignore[no-any-return]


def output_id(parent: ElementId, number: int) -> ElementId:
    """Return the id of an output: the id of its input with its own number, so it is the same whenever it is emitted.

    Examples
    --------
    >>> looked_up(output_id("orders/0@17", 2)), looked_up(output_id(output_id(("orders/0@", 17), 2), 0))
    ('orders/0@17/2', 'orders/0@17/2/0')
    """
    return (f"{parent}/", number) if isinstance(parent, str) else (parent, number)


def timestamp_in(found: object) -> int | None:
    """Return the timestamp that a field of a record holds, in milliseconds since the epoch; None if it holds none.

    A field holds a timestamp as a whole number of milliseconds, also as text or as a float without a fraction, or as a
    datetime, also as text in ISO 8601. Times are rounded down, and without a time zone they are in UTC, as in Spark.

    Examples
    --------
    >>> timestamp_in("1700000000000"), timestamp_in("2023-11-14T22:13:20Z"), timestamp_in("soon")
    (1700000000000, 1700000000000, None)
    """
    milliseconds = found if type(found) is int else _milliseconds_in(without_numpy(found))
    return milliseconds if milliseconds is not None and -TIMESTAMP_MAX - 1 <= milliseconds <= TIMESTAMP_MAX else None


def _milliseconds_in(found: object) -> int | None:
    match found:
        case datetime():
            with suppress(ValueError, OverflowError):  # NaT of pandas; the first and last hours that Python has
                return ((found if found.tzinfo is not None else found.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND
        case int() if not isinstance(found, bool):
            return int(found)
        case float() if found.is_integer():
            return int(found)
        case str() if len(found) <= _TEXT_MAX:
            if found.removeprefix("-").isdecimal():
                return int(found)
            with suppress(ValueError):
                return _milliseconds_in(datetime.fromisoformat(found)) if ":" in found else None
    return None


def check_timestamp(timestamp: object) -> int:
    """Return milliseconds since the epoch as an integer; raises `ConfigError` for what is none, or has over 64 bits."""
    reason = "timestamps are milliseconds since the epoch; for a datetime pass int(1000 * moment.timestamp())"
    return check_integer("timestamp", timestamp, -TIMESTAMP_MAX - 1, TIMESTAMP_MAX, reason=reason)


def check_place(timestamp: object, element_id: object) -> None:
    """Check the timestamp and the id of an element; either may be None. Hot paths look at the types first.

    Raises
    ------
    ConfigError
        One of them has a wrong type, or the id is text that no snapshot can hold.
    """
    if timestamp is not None:
        check_timestamp(timestamp)
    if element_id is not None and not isinstance(element_id, str):
        raise ConfigError("element_id", element_id, "ids are text; pass str(…) of it")
    if element_id is not None and printable(element_id, None) != element_id:
        raise ConfigError("element_id", element_id, "it has half of a surrogate pair or a NUL; pass text without them")
