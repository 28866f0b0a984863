"""Identities of keys: dict keys that keep apart keys which are equal in Python but have different key groups."""

from __future__ import annotations

import datetime as dt
from collections.abc import Hashable
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from keygroups.errors import UnstorableValue
from keygroups.hashes.scalars import without_numpy

_PLAIN = frozenset({int, str, bytes, dt.date})
_NAN = float("nan")


class TypedKey(NamedTuple):
    """A key that equals no key of another type, unlike 1, 1.0 and True.

    Attributes
    ----------
    kind : type or tuple
        The type of the key; for a Decimal, with its scale; for a tuple, the kinds of its items.
    key : object
        The key.
    """

    kind: Hashable
    key: Hashable


def identity_of(key: Hashable) -> Hashable:
    """Return the object that stands for a key in the dicts of state.

    Two keys have the same identity if and only if they are the same key for the key-group hash: they have the same type
    and are equal. All NaN values are one key, and so are 0.0 and -0.0, and the same instant in different time zones.

    Parameters
    ----------
    key : int, float, Decimal, str, bytes, bool, date, datetime, or a tuple of them
        The key. The identity of an int, str or bytes is the key itself, so the common case costs nothing.

    Examples
    --------
    >>> identity_of("a"), len({identity_of(key) for key in (1, 1.0, True)})
    ('a', 3)
    """
    return key if type(key) in _PLAIN else _typed(key)


def original_of(identity: Hashable) -> Hashable:
    """Return the key that an identity stands for.

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
    """Return the canonical form of a key."""
    match key:
        case np.generic() | dt.datetime() if type(key) is not dt.datetime:
            plain = without_numpy(key)
            return key if plain is key else _plain(plain)
        case tuple():
            return tuple(map(_plain, key))
        case float():
            return _NAN if key != key else key + 0.0
        case dt.datetime() if key.tzinfo is not None:
            return key.astimezone(dt.UTC)
        case Decimal() if not key:
            return key.copy_abs()
        case Decimal() if _scale(key) == 0:
            return Decimal(int(key))
        case _:
            return key


def _kind(key: Hashable) -> Hashable | None:
    """Return the kind that distinguishes a key from equal keys of other types; None if there can be none."""
    if isinstance(key, tuple):
        kinds = tuple(map(_kind, key))
        return kinds if any(kind is not None for kind in kinds) else None
    if isinstance(key, Decimal):
        return Decimal, _scale(key)
    kind: Hashable = type(key)
    return kind if isinstance(key, bool | float) else None


def _scale(key: Decimal) -> int:
    exponent = key.as_tuple().exponent
    if not isinstance(exponent, int):
        raise UnstorableValue("Decimal", "a key", "it is infinite or no number, so no key is equal to it")
    return max(-exponent, 0)
