"""Key groups and subtasks as Spark columns: computed in the JVM, or for Flink's hash in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from keygroups.errors import ConfigError, NullKey, SparkNotInstalled, UnsupportedKey
from keygroups.hashes.flink import NAME as FLINK
from keygroups.hashes.xxhash64 import NAME
from keygroups.hashing import key_groups_of, key_hasher
from keygroups.ranges import check_max_parallelism, check_parallelism

try:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.types import DataType, DecimalType

    from keygroups.spark.session import choose_python
except ModuleNotFoundError as missing:
    raise SparkNotInstalled(missing.name or "pyspark") from missing

KeyColumns = Column | str | Sequence[Column | str]
"""One key column, or several."""

_NARROW_INTEGERS = ("tinyint", "smallint", "int")
_FLOAT = "float"
_SAME_IN_PYTHON = ("bigint", "double", "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz")
_SAME_IN_FLINK = ("bigint", "double", "string", "boolean")
_SUPPORTED_IN_FLINK = (*_NARROW_INTEGERS, _FLOAT, *_SAME_IN_FLINK)
_SUPPORTED = (*_NARROW_INTEGERS, _FLOAT, *_SAME_IN_PYTHON, "decimal")
_DECIMAL = r"^decimal\("
_DECIMAL_OF_64_BITS = r"^decimal\(([1-9]|1[0-8]),"
_UNSUPPORTED = str(UnsupportedKey("%s", NAME, ", ".join(_SUPPORTED)))


def key_group_column(column: KeyColumns, max_parallelism: int, hash: str = NAME) -> Column:
    """Return the key group of each row, equal to ``key_groups_of`` for the same column.

    A row with a null key fails the query. So does a key column with a type other than integer, float, double,
    decimal, string (uncollated), binary, boolean, date or timestamp. For the fields of a struct, name each field
    as a key column (``["pair.a", "pair.b"]``). With ``"flink"`` there are fewer types, int and bigint are different
    keys, as in Flink, and Python workers compute the hash.

    Parameters
    ----------
    column : Column, str, or a sequence of them
        The key column or columns.
    max_parallelism : int
        The number of key groups.
    hash : {"xxhash64", "flink"}
        The hash.

    Returns
    -------
    Column
        A column of type int.

    Raises
    ------
    ConfigError
        There is no key column or no such hash, or ``0 < max_parallelism <= 32768`` does not hold.

    Examples
    --------
    >>> routed = df.withColumn("key_group", key_group_column("user", 128))  # doctest: +SKIP
    """
    check_max_parallelism(max_parallelism)
    key_hasher(hash)
    keys = _columns(column)
    if hash == FLINK:
        return _flink_key_groups(max_parallelism)(*keys)
    hashes = F.xxhash64(*[form for key in keys for form in _forms(key)])
    return _checked(keys, F.pmod(hashes, F.lit(max_parallelism)).cast("int"))


def subtask_column(column: KeyColumns, parallelism: int, max_parallelism: int, hash: str = NAME) -> Column:
    """Return the subtask of each row, for ``DataFrame.repartitionById``.

    Parameters
    ----------
    column : Column, str, or a sequence of them
        The key column or columns, as for `key_group_column`.
    parallelism : int
        The number of subtasks.
    max_parallelism : int
        The number of key groups.
    hash : {"xxhash64", "flink"}
        The hash.

    Returns
    -------
    Column
        A column of type int.

    Raises
    ------
    ConfigError
        There is no key column or no such hash, or ``0 < parallelism <= max_parallelism <= 32768`` does not hold.

    Examples
    --------
    >>> routed = df.repartitionById(4, subtask_column("user", 4, 128))  # doctest: +SKIP
    """
    check_parallelism(parallelism, max_parallelism)
    group = key_group_column(column, max_parallelism, hash)
    return F.call_function("div", group * parallelism, F.lit(max_parallelism)).cast("int")


def subtask_expression(keys: Sequence[tuple[str, str]], parallelism: int, max_parallelism: int) -> str | None:
    """Return SQL for what `subtask_column` computes, if the hashed types of the key columns are known.

    Spark is much faster with it: a column whose type is not known has an expression for every type. A row with a null
    key gets subtask 0.

    Parameters
    ----------
    keys : sequence of (str, str)
        The key columns: SQL for the column, and what `hashed_type` returns for it.
    parallelism : int
        The number of subtasks.
    max_parallelism : int
        The number of key groups.

    Returns
    -------
    str or None
        None if a key is a decimal: how Spark hashes it depends on its digits, too.

    Examples
    --------
    >>> subtask_expression([("`user`", "string")], 4, 128)
    'IF(`user` IS NULL, 0, CAST(pmod(xxhash64(CAST(`user` AS string)), 128) * 4 div 128 AS int))'
    """
    if any(kind not in _SAME_IN_PYTHON for _, kind in keys):
        return None
    has_no_key = " OR ".join(f"{column} IS NULL" for column, _ in keys)
    hashed = ", ".join(f"CAST({column} AS {kind})" for column, kind in keys)
    group = f"pmod(xxhash64({hashed}), {max_parallelism})"
    return f"IF({has_no_key}, 0, CAST({group} * {parallelism} div {max_parallelism} AS int))"


def hashed_type(kind: DataType, column: str, hash: str = NAME) -> str:
    """Return the DDL name of the type as which a key column is hashed.

    Columns with the same hashed type have the same key groups for the same keys. Integers of any width are hashed as
    ``bigint`` and floats as ``double``; for decimals only the scale matters. A pipeline casts its keys to these types
    for Flink's hash, too, because rows reach the function as Python values.

    Raises
    ------
    UnsupportedKey
        The type has no hash.

    Examples
    --------
    >>> from pyspark.sql.types import DecimalType, ShortType
    >>> hashed_type(ShortType(), "id"), hashed_type(DecimalType(10, 2), "price")
    ('bigint', 'decimal(38,2)')
    """
    name = kind.simpleString()
    same, supported = (_SAME_IN_FLINK, _SUPPORTED_IN_FLINK) if hash == FLINK else (_SAME_IN_PYTHON, _SUPPORTED)
    if isinstance(kind, DecimalType) and hash != FLINK:
        return f"decimal(38,{kind.scale})"
    if name in _NARROW_INTEGERS:
        return "bigint"
    if name == _FLOAT:
        return "double"
    if name not in same:
        raise UnsupportedKey(f"{name} (column {column!r})", hash, ", ".join(supported))
    return name


def _columns(column: KeyColumns) -> list[Column]:
    several = [column] if isinstance(column, (Column, str)) else list(column)
    if not several:
        raise ConfigError("column", column, "name at least one key column")
    return [F.col(key) if isinstance(key, str) else key for key in several]


def _flink_key_groups(max_parallelism: int) -> Callable[..., Column]:
    def key_groups(*keys: pa.Array) -> pa.Array:
        columns = keys[0] if len(keys) == 1 else pa.StructArray.from_arrays(keys, [f"_{n}" for n in range(len(keys))])
        return pa.array(key_groups_of(columns, max_parallelism, FLINK))

    session = SparkSession.getActiveSession()
    if session is not None:
        choose_python(session)
    wrap: Any = arrow_udf  # its overloads know no functions of any number of arrays
    as_column: Callable[..., Column] = wrap(key_groups, "int")
    return as_column


def _forms(key: Column) -> list[Column]:
    """Return one expression per hashed form of a key; all except the one for its type are null.

    The type of a Column is known only after analysis. Then `typeof` is a constant and the optimizer removes the other
    forms; the hash skips their nulls. Before that, every form must be valid for every type, and a cast from string or
    variant is. The string is exact for integers and several times faster; the variant is also exact for floats. Spark
    hashes decimals of more than 18 digits differently from shorter ones; here the value decides, not the type.
    """
    kind = F.typeof(key)
    is_wide = kind.rlike(_DECIMAL) & ~kind.rlike(_DECIMAL_OF_64_BITS)
    unscaled = _unscaled(key, kind)
    return [
        F.when(kind.isin(*_NARROW_INTEGERS), key.cast("string").cast("bigint")),
        F.when(kind == _FLOAT, key.cast("variant").cast("double")),
        F.when(kind.isin(*_SAME_IN_PYTHON) | kind.rlike(_DECIMAL_OF_64_BITS), key),
        F.when(is_wide, unscaled),
        F.when(is_wide & unscaled.isNull(), key),
    ]


def _unscaled(decimal: Column, kind: Column) -> Column:
    """Return the unscaled integer of a decimal; null if it does not fit into 64 bits."""
    text = decimal.cast("variant").cast("string")  # without an exponent or trailing zeros
    scale = F.regexp_extract(kind, r",(\d+)\)", 1).try_cast("int")
    whole, fraction = (F.split_part(text, F.lit("."), F.lit(part)) for part in (1, 2))
    return F.concat(whole, F.rpad(fraction, scale, "0")).try_cast("bigint")


def _checked(keys: Sequence[Column], group: Column) -> Column:
    checked = group
    for key in reversed(keys):
        null_key = F.raise_error(F.lit(str(NullKey(str(key)))))
        unsupported_key = F.raise_error(F.format_string(_UNSUPPORTED, F.typeof(key)))
        supported = F.typeof(key).isin(*_SUPPORTED) | F.typeof(key).rlike(_DECIMAL)
        checked = F.when(key.isNull(), null_key).when(~supported, unsupported_key).otherwise(checked)
    return checked
