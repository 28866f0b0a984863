"""The key columns of a DataFrame: their names, their hashed types, and the key of a row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from keygroups.errors import ConfigError
from keygroups.spark import hashed_type


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A key column, or one field of a key column that is a struct.

    Attributes
    ----------
    path : tuple of str
        The name of the column, then the names of the fields that lead to it.
    type : str
        The type as which it is hashed: ``bigint`` for integers of any width.
    """

    path: tuple[str, ...]
    type: str

    @property
    def name(self) -> str:
        """The path with dots, such as ``pair.a``."""
        return ".".join(self.path)

    @property
    def column(self) -> Column:
        """The column of a DataFrame, whatever characters its name has."""
        return column_named(*self.path)

    def value_in(self, row: dict[str, Any]) -> Any:
        """Return the value in a row; None also if a struct around it is null."""
        value: Any = row
        for part in self.path:
            if value is None:
                return None
            value = value[part]
        return value


def column_named(*path: str) -> Column:
    """Return a column, or a field of a struct, whatever characters its name has."""
    return F.col(sql_name(*path))


def sql_name(*path: str) -> str:
    """Return the name of a column, or of a field of a struct, as SQL has it."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in path)


def names_of(argument: str, columns: str | Sequence[str] | None) -> list[str]:
    """Return the names of columns, none for None; raises `ConfigError` for anything that names no column."""
    names = [columns] if isinstance(columns, str) else columns
    if names is None:
        return []
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(argument, columns, "name a column, or a list of columns; None stands for none")
    return list(names)


def key_columns(schema: StructType, names: Sequence[str], hash: str = "xxhash64") -> tuple[KeyColumn, ...]:
    """Return the key columns; a struct is replaced by its fields.

    Raises
    ------
    ConfigError
        A column does not exist.
    UnsupportedKey
        The type of a column, or of a field of it, has no hash.
    """
    found: list[KeyColumn] = []
    for name in names:
        if name not in schema.names:
            raise ConfigError("key_by", name, f"the columns are {schema.names}")
        found += _leaves(schema[name], (name,), hash)
    return tuple(found)


def key_getter(keys: Sequence[KeyColumn]) -> Callable[[dict[str, Any]], Hashable] | None:
    """Return the function from a row to its key: a value, or a tuple for several columns; None without columns."""
    if not keys:
        return None
    if all(len(key.path) == 1 for key in keys):
        return itemgetter(*(key.path[0] for key in keys))
    if len(keys) == 1:
        return keys[0].value_in
    return lambda row: tuple(key.value_in(row) for key in keys)


def _leaves(field: StructField, path: tuple[str, ...], hash: str) -> Iterator[KeyColumn]:
    if isinstance(field.dataType, StructType) and field.dataType.fields:
        for inner in field.dataType:
            yield from _leaves(inner, (*path, inner.name), hash)
    else:
        yield KeyColumn(path, hashed_type(field.dataType, ".".join(path), hash))
