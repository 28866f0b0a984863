"""Keys and errors as they come: keys that are equal in Python and are not the same, errors of every root."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Hashable
from decimal import Decimal

from keygroups.state import identity_of

KEYS: dict[str, Hashable] = {
    "one": 1,
    "float one": 1.0,
    "true": True,
    "decimal one": Decimal(1),
    "minus": -(2**63),
    "huge": 2**63 - 1,
    "zero": -0.0,
    "nan": math.nan,
    "infinity": math.inf,
    "empty": "",
    "nul": "\0",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
    "last": "\U0010ffff",
    "long": "k" * 5000,
    "no bytes": b"",
    "bytes": b"\xff\x00",
    "date": dt.date(1, 1, 1),
    "instant": dt.datetime(2026, 10, 25, 1, 30, tzinfo=dt.UTC),
    "pair": ("a", 1),
    "other pair": ("a", 1.0),
}
"""By the names that simulations have for them."""

KEYS_OF_FLINK = frozenset(name for name, key in KEYS.items() if isinstance(key, int | float | str | tuple) and key)
"""The keys for which Flink's hash is defined; it has two zeros, which are one key here."""

_NAMES = {identity_of(key): name for name, key in KEYS.items()}


def key_of(name: str) -> Hashable:
    """Return the key that a name stands for; others stand for themselves."""
    return KEYS.get(name, name)


def name_of(key: Hashable) -> str:
    """Return the name of a key."""
    name = _NAMES.get(identity_of(key), key)
    assert isinstance(name, str), f"nobody has the key {key!r}"
    return name


class Unexpected(Exception):
    """An error of nobody's."""


ERRORS: tuple[Exception, ...] = (
    OSError("the service has failed"),
    ValueError(math.nan),
    KeyError(("a", 1)),
    ZeroDivisionError(),
    MemoryError("of the service"),
    StopAsyncIteration(),
    RecursionError("too deep"),
    AttributeError("no such thing"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    ExceptionGroup("several", [OSError("one"), Unexpected("another")]),
    Unexpected("\ud800 is no character"),
)
"""One of each root class that a function may raise."""
