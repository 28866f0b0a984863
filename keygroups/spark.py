"""Key groups and subtasks as Spark columns, computed in the JVM."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from keygroups.errors import ConfigError, NullKey, UnsupportedKey
from keygroups.hashes.xxhash64 import NAME
from keygroups.ranges import check_max_parallelism, check_parallelism

KeyColumns = Column | str | Sequence[Column | str]
"""One key column, or several."""

_NARROW_INTEGERS = ("tinyint", "smallint", "int")
_FLOAT = "float"
_SAME_IN_PYTHON = ("bigint", "double", "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz")
_SUPPORTED = (*_NARROW_INTEGERS, _FLOAT, *_SAME_IN_PYTHON)
_UNSUPPORTED = str(UnsupportedKey("%s", NAME, ", ".join(_SUPPORTED)))


def key_group_column(column: KeyColumns, max_parallelism: int) -> Column:
    """Return the key group of each row, equal to ``key_group_of`` with ``"xxhash64"``.

    A row with a null key fails the query, and so does a key column of another type than
    integer, float, double, string (uncollated), binary, boolean, date or timestamp.

    Parameters
    ----------
    column : Column, str, or a sequence of them
        The key column or columns.
    max_parallelism : int
        The number of key groups.

    Returns
    -------
    Column
        Of type int.

    Raises
    ------
    ConfigError
        If there is no key column, or unless ``0 < max_parallelism <= 32768``.

    Examples
    --------
    >>> routed = df.withColumn("key_group", key_group_column("user", 128))  # doctest: +SKIP
    """
    check_max_parallelism(max_parallelism)
    keys = _columns(column)
    hashes = F.xxhash64(*[form for key in keys for form in _forms(key)])
    return _checked(keys, F.pmod(hashes, F.lit(max_parallelism)).cast("int"))


def subtask_column(column: KeyColumns, parallelism: int, max_parallelism: int) -> Column:
    """Return the subtask of each row, for ``DataFrame.repartitionById``.

    Parameters
    ----------
    column : Column, str, or a sequence of them
        The key column or columns, as for `key_group_column`.
    parallelism : int
        The number of subtasks.
    max_parallelism : int
        The number of key groups.

    Returns
    -------
    Column
        Of type int.

    Raises
    ------
    ConfigError
        If there is no key column, or unless ``0 < parallelism <= max_parallelism <= 32768``.

    Examples
    --------
    >>> routed = df.repartitionById(4, subtask_column("user", 4, 128))  # doctest: +SKIP
    """
    check_parallelism(parallelism, max_parallelism)
    group = key_group_column(column, max_parallelism)
    return F.call_function("div", group * parallelism, F.lit(max_parallelism)).cast("int")


def _columns(column: KeyColumns) -> list[Column]:
    several = [column] if isinstance(column, (Column, str)) else list(column)
    if not several:
        raise ConfigError("column", column, "name at least one key column")
    return [F.col(key) if isinstance(key, str) else key for key in several]


def _forms(key: Column) -> list[Column]:
    """Return the forms in which a key can be hashed; all but the one for its type are null.

    A Column gets its type at analysis only. Then `typeof` is a constant, and the optimizer
    removes the other forms; the hash passes over their nulls. Until then each form must be valid
    for every type, which a cast from string or variant is. The string is exact for integers and
    several times faster, the variant is exact for a float too.
    """
    kind = F.typeof(key)
    return [
        F.when(kind.isin(*_NARROW_INTEGERS), key.cast("string").cast("bigint")),
        F.when(kind == _FLOAT, key.cast("variant").cast("double")),
        F.when(kind.isin(*_SAME_IN_PYTHON), key),
    ]


def _checked(keys: Sequence[Column], group: Column) -> Column:
    checked = group
    for key in reversed(keys):
        null_key = F.raise_error(F.lit(str(NullKey(str(key)))))
        unsupported_key = F.raise_error(F.format_string(_UNSUPPORTED, F.typeof(key)))
        supported = F.typeof(key).isin(*_SUPPORTED)
        checked = F.when(key.isNull(), null_key).when(~supported, unsupported_key).otherwise(checked)
    return checked
