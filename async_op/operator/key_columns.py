"""Keys from columns, for values that are dicts."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

from async_op.errors import KeyColumnMissing
from keygroups.arguments import check_callable
from keygroups.errors import ConfigError

KeyBy: TypeAlias = Callable[[Any], Hashable] | str | list[str]
"""How to get the key of a value: a callable, a column name, or a list of column names."""


def key_getter(key_by: KeyBy | None) -> Callable[[Any], Hashable] | None:
    """Return a function from a value to its key: the value of one column, or a tuple for several columns.

    Raises
    ------
    ConfigError
        `key_by` is neither a callable, nor a column name, nor a list of column names.
    """
    if key_by is None:
        return None
    if isinstance(key_by, str):
        return _Column(key_by)
    if isinstance(key_by, list | tuple):
        if not key_by or not all(isinstance(column, str) for column in key_by):
            raise ConfigError("key_by", key_by, "name at least one column, each by a str")
        return _Column(key_by[0]) if len(key_by) == 1 else _KeyOfColumns(tuple(map(_Column, key_by)))
    check_callable("key_by", key_by, 1, reason="it returns the key of a value; for dicts a column name will do")
    return key_by


def columns_of(key_by: KeyBy | None) -> list[str] | None:
    """Return the names of the key columns: none without keys, and None for a function, which has no names."""
    if key_by is None:
        return []
    if isinstance(key_by, str):
        return [key_by]
    return list(key_by) if isinstance(key_by, list | tuple) else None


@dataclass(frozen=True, slots=True)
class _Column:
    name: str

    def __call__(self, value: Any) -> Hashable:
        try:
            key: Hashable = value[self.name]
        except (KeyError, TypeError, IndexError):
            raise KeyColumnMissing(self.name, value) from None
        return key


@dataclass(frozen=True, slots=True)
class _KeyOfColumns:
    columns: tuple[_Column, ...]

    def __call__(self, value: Any) -> Hashable:
        return tuple(column(value) for column in self.columns)
