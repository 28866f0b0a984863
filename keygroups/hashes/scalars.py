"""Finding the function that takes a key apart, when its exact type is not in a hash's table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from keygroups.errors import NullKey, UnsupportedKey

Result = TypeVar("Result")

_PANDAS_NULLS = frozenset({"NAType", "NaTType"})


def without_numpy(key: object) -> object:
    """Return the Python value of a numpy scalar, and anything else as it is."""
    if isinstance(key, np.datetime64) and np.datetime_data(key.dtype)[0] not in {"Y", "M", "W", "D"}:
        # In a finer unit than microseconds item() answers an integer of that unit.
        return key.astype("datetime64[us]").item()
    return key.item() if isinstance(key, np.generic) else key


def function_for(
    key: object, functions: Mapping[type, Callable[[Any], Result]], hash_name: str, supported: str
) -> Callable[[Any], Result]:
    """Return the function of the nearest base class of the key that has one.

    Raises
    ------
    NullKey
        If the key is None, or a null of pandas.
    UnsupportedKey
        If no base class has a function.
    """
    kind = type(key)
    if key is None or kind.__name__ in _PANDAS_NULLS:
        raise NullKey("the element")
    for base in kind.__mro__:
        if base in functions:
            return functions[base]
    raise UnsupportedKey(kind.__name__, hash_name, supported)
