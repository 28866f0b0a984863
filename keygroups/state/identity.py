"""What a dict must be keyed by so that keys which are equal in Python, but hash to other key groups, stay apart."""

from __future__ import annotations

import datetime as dt
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

_PLAIN = frozenset({int, str, bytes, dt.date})
_NAN = float("nan")


class TypedKey(NamedTuple):
    """A key that equals no key of another type, as 1, 1.0 and True would.

    Attributes
    ----------
    kind : type or tuple
        The key's type; for a tuple, the kinds of its items.
    key : object
        The key.
    """

    kind: Hashable
    key: Hashable


def identity_of(key: Hashable) -> Hashable:
    """Return what stands for a key in a dict of state.

    Two keys have one identity if and only if they are one key to the hash of key groups: of the same type and equal,
    where all NaN are one key, as are 0.0 and -0.0, and one instant in several time zones.

    Parameters
    ----------
    key : int, float, str, bytes, bool, date, datetime, or a tuple of them
        The key. Of an int, a str and bytes it is the key itself, so that the common case costs nothing.

    Examples
    --------
    >>> identity_of("a"), len({identity_of(key) for key in (1, 1.0, True)})
    ('a', 3)
    """
    return key if type(key) in _PLAIN else _typed(key)


def original_of(identity: Hashable) -> Hashable:
    """Return the key of an identity.

    Examples
    --------
    >>> original_of(identity_of((1, 2.0)))
    (1, 2.0)
    """
    return identity.key if type(identity) is TypedKey else identity


def _typed(key: Hashable) -> Hashable:
    plain = _plain(key)
    kind = _kind(plain)
    return plain if kind is None else TypedKey(kind, plain)


def _plain(key: Any) -> Any:
    """Return the one form of all keys that are the same."""
    match key:
        case np.generic():
            return _plain(key.item())
        case tuple():
            return tuple(map(_plain, key))
        case float():
            return _NAN if key != key else key + 0.0
        case dt.datetime() if key.tzinfo is not None:
            return key.astimezone(dt.UTC)
        case _:
            return key


def _kind(key: Hashable) -> Hashable | None:
    """Return what the key must be told apart by, None if nothing of another type equals it."""
    if isinstance(key, tuple):
        kinds = tuple(map(_kind, key))
        return kinds if any(kind is not None for kind in kinds) else None
    kind: Hashable = type(key)
    return kind if isinstance(key, bool | float) else None
