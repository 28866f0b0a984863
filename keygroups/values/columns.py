"""Converts Python values to Arrow arrays without loss, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from keygroups.values.casts import coarse
from keygroups.values.fitting import EXACT, Fitter, Rules, fitter_of
from keygroups.values.misfit import Misfit, Refusal
from keygroups.values.scalars import CONVERSION_ERRORS


def array_of(values: Sequence[Any], type_: pa.DataType, rules: Rules = EXACT, column: str = "") -> pa.Array:
    """Encode values as a column. Columns of plain values are converted as a whole.

    Parameters
    ----------
    values : sequence
        The values; None is null.
    type_ : pyarrow.DataType
        The type of the column.
    rules : Rules
        What the column accepts besides values of its own Python type.
    column : str
        The name of the column, for the error.

    Raises
    ------
    Misfit
        A value would change.

    Examples
    --------
    >>> array_of([1, None], pa.int64()).to_pylist()
    [1, None]
    """
    fitter = fitter_of(type_, rules)
    try:
        if fitter.is_plain(values):
            array = pa.array(values, type_)
            if not (fitter.narrows and _is_infinite(array)):
                return array
        return pa.array(_fitted(values, fitter, column), type_)
    except CONVERSION_ERRORS:
        # Arrow's own message shows the value.
        raise _first_misfit(values, type_, fitter, column) from None


def values_of(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Decode a column: lists for lists, dicts for structs and maps."""
    array = coarse(array)
    values: list[Any] = array.to_pylist(maps_as_pydicts="strict") if _has_maps(array.type) else array.to_pylist()
    return values


def _fitted(values: Sequence[Any], fitter: Fitter, column: str) -> list[Any]:
    fitted = []
    for row, value in enumerate(values):
        try:
            fitted.append(None if value is None else fitter.one(value))
        except Refusal as refusal:
            raise Misfit(row, column + refusal.path, refusal.reason) from None
    return fitted


def _first_misfit(values: Sequence[Any], type_: pa.DataType, fitter: Fitter, column: str) -> Misfit:
    """Return why Arrow refused a column."""
    try:
        fitted = _fitted(values, fitter, column)
    except Misfit as misfit:
        return misfit
    except CONVERSION_ERRORS:
        return Misfit(0, column, f"a value does not fit {type_}")
    for row, value in enumerate(fitted):
        try:
            pa.array([value], type_)
        except CONVERSION_ERRORS:
            return Misfit(row, column, f"it is a {type(values[row]).__qualname__} that does not fit {type_}")
    return Misfit(0, column, f"the values are too large for one column of {type_}")


def _is_infinite(array: pa.Array) -> bool:
    """Return whether a float is infinite, perhaps because it was rounded."""
    return any(np.isinf(leaf.to_numpy(zero_copy_only=False)).any() for leaf in _narrow_floats(array))


def _narrow_floats(array: pa.Array) -> Iterator[pa.Array]:
    if types.is_float32(array.type) or types.is_float16(array.type):
        yield array
    elif types.is_struct(array.type):
        for index in range(array.type.num_fields):
            yield from _narrow_floats(array.field(index))
    elif types.is_map(array.type):
        yield from _narrow_floats(array.keys)
        yield from _narrow_floats(array.items)
    elif types.is_nested(array.type):
        yield from _narrow_floats(array.flatten())
    elif types.is_dictionary(array.type):
        yield from _narrow_floats(array.dictionary)


def _has_maps(type_: pa.DataType) -> bool:
    return types.is_map(type_) or any(_has_maps(type_.field(index).type) for index in range(type_.num_fields))
