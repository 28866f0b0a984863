"""Compares two columns row by row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from keygroups.values import values_of
from snapshots.format.schemas import widens

_Rows = NDArray[np.bool_]


def equal_rows(old: pa.ChunkedArray, new: pa.ChunkedArray) -> _Rows:
    """Return for each row whether two columns hold the same value; null equals null, and NaN equals NaN.

    Columns of different types are compared as the wider type, and numbers by their value; all else is different.

    Examples
    --------
    >>> equal_rows(pa.chunked_array([[1, None, 3]]), pa.chunked_array([[1.0, None, 4.0]])).tolist()
    [True, True, False]
    """
    assert len(old) == len(new), "rows are compared in pairs"
    if old.type != new.type:
        # These casts keep every value: that is what `widens` says.
        if widens(old.type, new.type):
            old = old.cast(new.type)
        elif widens(new.type, old.type):
            new = new.cast(old.type)
        elif _is_number(old.type) and _is_number(new.type):
            # Python compares whole numbers and fractions exactly. Arrow would round the former, or fail.
            return np.array([one == other for one, other in zip(values_of(old), values_of(new), strict=True)], np.bool_)
        else:
            return np.zeros(len(old), np.bool_)
    if types.is_floating(old.type):
        return _equal_floats(old, new)
    if types.is_nested(old.type) or types.is_null(old.type) or types.is_interval(old.type):
        return _equal_texts(old, new)
    equal = pc.fill_null(pc.equal(old, new), False)
    return _mask(pc.or_(equal, pc.and_(pc.is_null(old), pc.is_null(new))))


def _is_number(type_: pa.DataType) -> bool:
    return bool(types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_))


def _equal_floats(old: pa.ChunkedArray, new: pa.ChunkedArray) -> _Rows:
    """Compare floats, and the signs of zeros, which are part of the value."""
    one, other = old.to_numpy(), new.to_numpy()  # null is NaN there
    same = (one == other) & (np.signbit(one) == np.signbit(other))
    both_nan = np.isnan(one) & np.isnan(other)
    return (same | both_nan) & (_mask(pc.is_null(old)) == _mask(pc.is_null(new)))  # type: ignore[no-any-return]


def _equal_texts(old: pa.ChunkedArray, new: pa.ChunkedArray) -> _Rows:
    """Compare what Arrow cannot compare by its text, which tells apart all values of one type."""
    texts = [[*map(repr, values_of(column))] for column in (old, new)]
    return np.array([one == other for one, other in zip(*texts, strict=True)], np.bool_)


def _mask(column: pa.ChunkedArray) -> _Rows:
    mask: _Rows = column.to_numpy().astype(np.bool_)
    return mask
