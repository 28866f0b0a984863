"""Converts Python values to Arrow arrays without loss, and back."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types


class Misfit(Exception):
    """A column of this type would not return a value unchanged."""


_EXACT: tuple[tuple[Callable[[pa.DataType], bool], type], ...] = (
    (types.is_integer, int),
    (types.is_string, str),
    (types.is_large_string, str),
    (types.is_binary, bytes),
    (types.is_large_binary, bytes),
    (types.is_fixed_size_binary, bytes),
    (types.is_boolean, bool),
    (types.is_float64, float),
    (types.is_date32, dt.date),
)
"""Python types of which a column keeps every value that it accepts, so no comparison is needed."""


def array_of(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Encode values as a column.

    Apart from the Python values that the column returns, this accepts tuples and numpy arrays for lists, pairs for
    maps, numpy scalars, and integers for floats, if they equal the values that the column returns.

    Raises
    ------
    Misfit
        A value would change. Only the rounding of floats to the column's type is allowed.
    """
    try:
        array = pa.array(values, type_)
        if _is_kept(values, type_, array) or all(map(_comes_back, values, values_of(array))):
            return array
    except (pa.ArrowException, OverflowError, TypeError, ValueError, KeyError) as error:
        raise Misfit(str(type_)) from error
    raise Misfit(str(type_))


def values_of(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Decode a column: lists for lists, dicts for structs and maps."""
    values: list[Any] = array.to_pylist(maps_as_pydicts="strict") if _has_maps(array.type) else array.to_pylist()
    return values


def _is_kept(values: Sequence[Any], type_: pa.DataType, array: pa.Array) -> bool:
    """Return whether the types alone show that all values are kept; False means that a comparison is needed."""
    kinds = set(map(type, values)) - {type(None)}
    for has_type, kind in _EXACT:
        if has_type(type_):
            return kinds <= {kind}
    if types.is_float32(type_):
        return kinds <= {float} and not np.isinf(array.to_numpy(zero_copy_only=False)).any()
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return _are_lists_kept(values, kinds, type_, array)
    if types.is_struct(type_):
        return kinds <= {dict} and _are_structs_kept([value for value in values if value is not None], type_, array)
    if types.is_map(type_):
        maps = [value for value in values if value is not None]
        return (
            kinds <= {dict}
            and _is_kept(list(chain.from_iterable(maps)), type_.key_type, array.keys)
            and _is_kept(list(chain.from_iterable(map(dict.values, maps))), type_.item_type, array.items)
        )
    return False


def _are_lists_kept(values: Sequence[Any], kinds: set[type], type_: pa.DataType, array: pa.Array) -> bool:
    lists = (value for value in values if value is not None)
    if kinds == {np.ndarray}:
        dtypes = {value.dtype for value in lists}
        return all(dtype.kind in "iuf" and pa.from_numpy_dtype(dtype) == type_.value_type for dtype in dtypes)
    return kinds <= {list, tuple} and _is_kept(list(chain.from_iterable(lists)), type_.value_type, array.flatten())


def _are_structs_kept(structs: list[dict[str, Any]], type_: pa.StructType, array: pa.StructArray) -> bool:
    names = {field.name for field in type_}
    return all(struct.keys() == names for struct in structs) and all(
        _is_kept([struct[field.name] for struct in structs], field.type, array.field(field.name)) for field in type_
    )


def _comes_back(value: Any, back: Any) -> bool:
    """Return whether a column keeps a value unchanged; Arrow silently truncates 1.5 to an integer, and times."""
    match value, back:
        case float(), float():
            return math.isinf(value) == math.isinf(back)
        case dt.datetime(), dt.datetime():
            # Not with ==, which is never true between two time zones in the hour that a clock change repeats.
            return (value.tzinfo is None) == (back.tzinfo is None) and not value - back
        case np.ndarray(), list():
            return _comes_back(value.tolist(), back)
        case list() | tuple(), list():
            return len(value) == len(back) and all(map(_comes_back, value, back))
        case list(), dict():
            return _comes_back(dict(value), back)
        case dict(), dict():
            return value.keys() == back.keys() and all(_comes_back(value[name], back[name]) for name in value)
        case _:
            return bool(value == back)


def _has_maps(type_: pa.DataType) -> bool:
    return types.is_map(type_) or any(_has_maps(type_.field(index).type) for index in range(type_.num_fields))
