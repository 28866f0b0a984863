"""Arrow's compute functions, loaded on first use: importing them takes as long as importing the whole package."""

from __future__ import annotations

import importlib
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

ARRAY_BYTES_MAX = 2**31 - 1
"""How much an array of text or bytes can hold: its offsets are 32-bit integers."""


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("pyarrow.compute"), name)


def take(table: pa.Table, places: NDArray[np.int64]) -> pa.Table:
    """Return the rows at some places, in their order, also of columns with more than 2 GiB.

    Arrow's own `take` joins all chunks of a column first, which fails if they are too large for one array. A larger
    table is cut into slices, one for all rows that stay next to each other.
    """
    if not len(places):
        return table.slice(0, 0)
    if table.nbytes <= ARRAY_BYTES_MAX:
        return table.combine_chunks().take(pa.array(places))
    ends = (np.flatnonzero(np.diff(places) != 1) + 1).tolist()
    runs = pairwise([0, *ends, len(places)])
    return pa.concat_tables([table.slice(int(places[start]), end - start) for start, end in runs])
