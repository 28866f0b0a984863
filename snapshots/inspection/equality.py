"""Compares two columns row by row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from keygroups.codec import pack
from keygroups.values import values_of
from snapshots.format.schemas import widens


def equal_rows(old: pa.ChunkedArray, new: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return for each row whether two columns hold the same value; null equals null, and NaN equals NaN.

    Columns of different types are compared as the wider type; if neither type is wider, nothing is equal.

    Examples
    --------
    >>> equal_rows(pa.chunked_array([[1, None, 3]]), pa.chunked_array([[1.0, None, 4.0]])).tolist()
    [True, True, False]
    """
    assert len(old) == len(new), "rows are compared in pairs"
    if old.type != new.type:
        if widens(old.type, new.type) or (types.is_integer(old.type) and types.is_floating(new.type)):
            old = old.cast(new.type)
        elif widens(new.type, old.type):
            new = new.cast(old.type)
        else:
            return np.zeros(len(old), np.bool_)
    if types.is_nested(old.type):
        return _equal_packed(old, new)
    equal = pc.fill_null(pc.equal(old, new), False)
    equal = pc.or_(equal, pc.and_(pc.is_null(old), pc.is_null(new)))
    if types.is_floating(old.type):
        equal = pc.or_(equal, pc.fill_null(pc.and_(pc.is_nan(old), pc.is_nan(new)), False))
    result: NDArray[np.bool_] = equal.to_numpy().astype(np.bool_)
    return result


def _equal_packed(old: pa.ChunkedArray, new: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Compare nested values by their msgpack bytes, because Arrow cannot compare them."""
    packed = [[pack(value, "a nested value") for value in values_of(column)] for column in (old, new)]
    return np.array([one == other for one, other in zip(*packed, strict=True)], np.bool_)
