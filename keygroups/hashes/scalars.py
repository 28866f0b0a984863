"""Finds the function that hashes a key whose exact type is not in the hash's table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np

from keygroups.errors import NullKey, UnsupportedKey
from keygroups.values.scalars import without_numpy as python_value

Result = TypeVar("Result")

DECIMAL_DIGITS_MAX = 38
"""The most digits that Spark's decimals and Arrow's 128-bit decimals hold."""

_PANDAS_NULLS = frozenset({"NAType", "NaTType"})


def without_numpy(key: object) -> object:
    """Return the Python value that a scalar of NumPy or pandas equals, None for NaT, and any other key unchanged.

    A time with nanoseconds equals none. Without them, two keys would have one state.
    """
    if isinstance(key, np.datetime64 | np.timedelta64) and np.isnat(key):
        return None
    return python_value(key)


def function_for(
    key: object, functions: Mapping[type, Callable[[Any], Result]], hash_name: str, supported: str
) -> Callable[[Any], Result]:
    """Return the function of the key's nearest base class that has one.

    Raises
    ------
    NullKey
        The key is None or a null value of pandas.
    UnsupportedKey
        No base class has a function.
    """
    kind = type(key)
    if key is None or kind.__name__ in _PANDAS_NULLS:
        raise NullKey("the element")
    if getattr(key, "nanosecond", 0):
        raise UnsupportedKey(f"{kind.__name__} with nanoseconds", hash_name, supported)
    for base in kind.__mro__:
        if base in functions:
            return functions[base]
    raise UnsupportedKey(kind.__name__, hash_name, supported)


def unscaled(key: Decimal, hash_name: str, supported: str) -> int:
    """Return the unscaled integer of a decimal: 150 for 1.50, 15 for 1.5.

    Raises
    ------
    UnsupportedKey
        The decimal is infinite, NaN, or has more digits than a column holds.
    """
    sign, digits, exponent = key.as_tuple()
    if not isinstance(exponent, int) or len(digits) + max(exponent, 0) > DECIMAL_DIGITS_MAX:
        kind = (
            "infinite Decimal or NaN" if not isinstance(exponent, int) else f"Decimal above {DECIMAL_DIGITS_MAX} digits"
        )
        raise UnsupportedKey(kind, hash_name, supported)
    magnitude: int = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    return -magnitude if sign else magnitude
