"""Copies mutable values, so that no caller shares an object with the state or with another call."""

from __future__ import annotations

import copy
import datetime as dt
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

IMMUTABLE = frozenset(
    {
        *(int, float, bool, str, bytes, type(None), Decimal, uuid.UUID),
        *(dt.date, dt.time, dt.datetime, dt.timedelta),
        object,  # a sentinel default is compared by identity
    }
)
"""Immutable types, whose values need no copy."""

are_immutable = IMMUTABLE.issuperset
"""Tells whether all types are immutable; with ``map(type, values)`` as argument it needs no loop in Python."""

_KINDS_MAX = 1024
"""For how many types it is remembered whether their values can change."""


_SHARED = frozenset({"pyarrow", "asyncio", "_asyncio", "threading", "concurrent", "queue", "multiprocessing", "anyio"})
"""Packages whose objects never change, or have an identity."""

_COPIED_BY = ("__new__", "__reduce__", "__reduce_ex__", "__getstate__")
"""What a class defines that is not just copied."""


def have_types(values: Sequence[Any], kinds: frozenset[Any]) -> bool:
    """Return whether each of many values has one of some types, exactly."""
    found = list(map(type, values))
    # As a rule all are of one type: to count it takes half the time of a look into the set for each.
    if found and found.count(found[0]) == len(found):
        return found[0] in kinds
    return kinds.issuperset(found)


def detached(value: Any, other: Callable[[Any], Any] = copy.deepcopy) -> Any:
    """Return a copy of a value that shares no mutable object with it, apart from the keys of dicts.

    Plain containers are copied several times as fast as by `copy.deepcopy`; `other` copies everything else.

    Examples
    --------
    >>> held = {"clicks": [1, 2]}
    >>> given_out = detached(held)
    >>> given_out["clicks"].append(3)
    >>> held
    {'clicks': [1, 2]}
    """
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind is dict:
        if are_immutable(map(type, value.values())):
            return value.copy()
        return {key: item if type(item) in IMMUTABLE else detached(item, other) for key, item in value.items()}
    if kind is list:
        if are_immutable(map(type, value)):
            return value.copy()
        return [item if type(item) in IMMUTABLE else detached(item, other) for item in value]
    if kind is tuple or kind is frozenset:
        if are_immutable(map(type, value)):
            return value
        return kind([item if type(item) in IMMUTABLE else detached(item, other) for item in value])
    if kind is set:
        return {detached(item, other) for item in value}
    return other(value)


def own_copy(value: Any) -> Any:
    """Return a copy of a value for a function that may change it; what cannot be copied is shared.

    Arrow's tables, batches and arrays never change. Locks, events, queues and futures have an identity that a copy
    would not have, and so has whatever `copy.deepcopy` refuses. A class whose instances are to be shared defines
    `__deepcopy__`.

    Examples
    --------
    >>> row = {"tags": ["new"]}
    >>> own_copy(row)["tags"].append("seen")
    >>> row
    {'tags': ['new']}
    """
    try:
        return detached(value, _copied_or_shared)
    except RecursionError:  # it contains itself, which only `copy.deepcopy` notices, or is nested deeply
        return _deeply_copied(value)


def _copied_or_shared(value: Any) -> Any:
    kind: Any = type(value)
    if _is_shared(kind):
        return value
    if not _is_plain(kind):
        return _deeply_copied(value)
    copied = object.__new__(kind)
    vars(copied).update(detached(vars(value), _copied_or_shared))
    return copied


def _deeply_copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - whatever a class raises, it cannot be copied
        return value


@lru_cache(_KINDS_MAX)
def _is_shared(kind: Any) -> bool:
    return any(base.__module__.partition(".")[0] in _SHARED for base in kind.__mro__)


class _Plain:
    """A class with nothing but a `__dict__`."""


@lru_cache(_KINDS_MAX)
def _is_plain(kind: Any) -> bool:
    """Return whether `copy.deepcopy` would do nothing for instances but copy their `__dict__`, five times as slowly."""
    inherits = all(getattr(kind, name) is getattr(object, name) for name in _COPIED_BY)
    own = hasattr(kind, "__deepcopy__") or hasattr(kind, "__setstate__") or hasattr(kind, "__getnewargs_ex__")
    return inherits and not own and kind.__basicsize__ == _Plain.__basicsize__ and kind.__dictoffset__ != 0
