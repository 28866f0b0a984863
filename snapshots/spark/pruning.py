"""Prunes key groups by the filters of a query."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from keygroups.hashing import key_group_of
from snapshots.format.parquet import KEY_GROUP
from snapshots.format.subtask import NO_KEY_GROUP

KEYS_MAX = 10_000
"""A longer list of keys would match nearly all key groups anyway."""

_PYTHON_TYPES = {pa.int64(): int, pa.float64(): float, pa.string(): str, pa.binary(): bytes}
_COMPARISONS: dict[type[Filter], Any] = {
    GreaterThan: np.greater,
    GreaterThanOrEqual: np.greater_equal,
    LessThan: np.less,
    LessThanOrEqual: np.less_equal,
}


class WantedKeyGroups:
    """A set of key groups that filters narrow down. For use by one thread.

    Parameters
    ----------
    max_parallelism : int
        The number of key groups.
    hash : str
        The hash that maps keys to key groups.
    key_type : pyarrow.DataType or None
        The type of the column `key`; None if keys are msgpack, in which case filters on them cannot prune.
    """

    def __init__(self, max_parallelism: int, hash: str, key_type: pa.DataType | None) -> None:
        self._max_parallelism = max_parallelism
        # The other hash distinguishes 32-bit from 64-bit integers, but the column does not.
        self._python_type = _PYTHON_TYPES.get(key_type) if hash == "xxhash64" else None
        self._numbers = np.arange(NO_KEY_GROUP, max_parallelism)
        self._is_wanted = np.ones(max_parallelism + 1, np.bool_)

    def narrow(self, filters: Iterable[Filter]) -> None:
        """Remove the key groups that the filters exclude; all filters must hold."""
        for one in filters:
            column = getattr(one, "attribute", None)
            if column == (KEY_GROUP,):
                self._is_wanted &= self._with_group(one)
            elif column == ("key",) and self._python_type is not None:
                self._is_wanted &= self._with_key(one)

    def runs(self, first: int, last: int) -> tuple[tuple[int, int], ...]:
        """Return the remaining key groups from `first` to `last`, inclusive, as first and last of each run."""
        groups = self._numbers[self._is_wanted & (first <= self._numbers) & (self._numbers <= last)]
        runs = np.split(groups, np.flatnonzero(np.diff(groups) > 1) + 1)
        return tuple((int(run[0]), int(run[-1])) for run in runs if len(run))

    def _with_group(self, one: Filter) -> NDArray[np.bool_]:
        values = _values_of(one, int)
        if values is not None:
            return np.isin(self._numbers, values)
        compare = _COMPARISONS.get(type(one))
        if compare is None or type(one.value) is not int:  # type: ignore[attr-defined]
            return np.ones_like(self._is_wanted)
        found: NDArray[np.bool_] = compare(self._numbers, one.value)  # type: ignore[attr-defined]
        return found

    def _with_key(self, one: Filter) -> NDArray[np.bool_]:
        assert self._python_type is not None
        values = _values_of(one, self._python_type)
        if values is None or len(values) > KEYS_MAX:
            return np.ones_like(self._is_wanted)
        return np.isin(self._numbers, [key_group_of(key, self._max_parallelism) for key in values])


def _values_of(one: Filter, kind: type) -> list[Any] | None:
    """Return the values that a filter allows; None if it does not list values of this type."""
    match one:
        case EqualTo(value=value) | EqualNullSafe(value=value):
            values = [value]
        case In(value=listed):
            # A null in the list matches nothing.
            values = [value for value in listed if value is not None]
        case _:
            return None
    return values if all(type(value) is kind for value in values) else None
