"""From keys to key groups: ``key_group = hash(key) mod max_parallelism``.

There are two hashes. ``"xxhash64"`` equals Spark's ``xxhash64`` expression, so the JVM and Python
compute the same group; ``"flink"`` equals Flink's own assignment. Python's ``hash`` is not used,
because it differs between processes.

How a key is hashed with ``"xxhash64"``:

- an int as 64 bits, whatever its width; a float as 64 bits, with -0.0 as 0.0 and all NaN values equal;
- a str as UTF-8; bytes as they are;
- a Decimal as its unscaled integer, 150 for 1.50: as 64 bits if it fits, else as the bytes of Java's
  BigInteger. So 1.5 and 1.50 are different keys; in a column all values have the same scale;
- a bool as the 32-bit integer 0 or 1; a date as its days since 1970, in 32 bits;
- a datetime as its microseconds since 1970 in UTC, in 64 bits. A naive datetime is read as UTC, like
  Spark's TIMESTAMP_NTZ; an aware one is like Spark's TIMESTAMP;
- a tuple or list as several key columns: the hash of each column is the seed of the next.

With ``"flink"`` an Arrow or numpy int32 is a Java Integer, an int64 or a Python int a Long, a
float64 or a Python float a Double, a bool a Boolean and a tuple one of Flink's tuples. -0.0 is
hashed as 0.0, because they are one key here; Flink has two.

Note that 1, 1.0 and True are different keys, although they are equal in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from keygroups.errors import ConfigError, UnsupportedKey
from keygroups.hashes import columns, flink, xxhash64
from keygroups.ranges import check_max_parallelism

_BATCH_ROWS = 32_768
"""How many rows are hashed at once: few enough for the intermediate arrays to fit into the processor's cache."""


class _Hash(NamedTuple):
    name: str
    supported: str
    hash_key: Callable[[object], int]
    hash_columns: Callable[[Sequence[pa.Array]], NDArray[np.int64]]


_HASHES = {
    xxhash64.NAME: _Hash(xxhash64.NAME, xxhash64.SUPPORTED, xxhash64.hash_key, xxhash64.hash_columns),
    flink.NAME: _Hash(flink.NAME, flink.SUPPORTED, flink.hash_key, flink.hash_columns),
}


def key_hasher(hash: str = "xxhash64") -> Callable[[object], int]:
    """Return a function that hashes one key.

    Use it to hash many keys one by one: it skips the checks that `key_group_of` repeats for every call. The key
    group is the result modulo the max parallelism, with Python's ``%``.

    Parameters
    ----------
    hash : {"xxhash64", "flink"}
        The hash.

    Returns
    -------
    callable
        Takes a key and returns its signed hash; raises NullKey and UnsupportedKey.

    Raises
    ------
    ConfigError
        There is no such hash.

    Examples
    --------
    >>> hash_key = key_hasher()
    >>> hash_key("user-42")
    -7161311977867824759
    """
    return _hash_named(hash).hash_key


def key_group_of(key: object, max_parallelism: int, hash: str = "xxhash64") -> int:
    """Return the key group of one key.

    Parameters
    ----------
    key : int, float, Decimal, str, bytes, bool, date, datetime, or a tuple or list of them
        The key. numpy scalars count as their Python values.
    max_parallelism : int
        The number of key groups.
    hash : {"xxhash64", "flink"}
        The hash.

    Raises
    ------
    NullKey
        The key is None or contains None.
    UnsupportedKey
        The hash does not support the key's type.
    ConfigError
        There is no such hash, or ``0 < max_parallelism <= 32768`` does not hold.

    Examples
    --------
    >>> key_group_of("user-42", 128), key_group_of(("user", 42), 128)
    (9, 83)
    >>> key_group_of("user-42", 128, hash="flink")
    20
    """
    check_max_parallelism(max_parallelism)
    return _hash_named(hash).hash_key(key) % max_parallelism


def key_groups_of(keys: Any, max_parallelism: int, hash: str = "xxhash64") -> NDArray[np.int32]:
    """Return the key groups of many keys: the same results as `key_group_of`, but much faster.

    Parameters
    ----------
    keys : Arrow array or chunked array, numpy array, pandas Series, or a sequence
        The keys. An Arrow struct array stands for several key columns. NaN is a key in Arrow and numpy; in pandas it
        is a missing value and is refused.
    max_parallelism : int
        The number of key groups.
    hash : {"xxhash64", "flink"}
        The hash.

    Returns
    -------
    numpy array of int32
        The key group of each key.

    Raises
    ------
    NullKey
        A key is null or contains a null.
    UnsupportedKey
        The hash does not support the keys' type.
    ConfigError
        The keys are a single one, there is no such hash, or ``0 < max_parallelism <= 32768`` does not hold.

    Examples
    --------
    >>> key_groups_of(["user-42", "user-43"], 128)
    array([ 9, 92], dtype=int32)
    """
    chosen = _hash_named(hash)
    check_max_parallelism(max_parallelism)
    groups = [(hashes % max_parallelism).astype(np.int32) for hashes in _hashes_of(keys, chosen)]
    return np.concatenate(groups) if groups else np.zeros(0, np.int32)


def _hash_named(name: object) -> _Hash:
    if not isinstance(name, str) or name not in _HASHES:
        raise ConfigError("hash", name, f"use one of: {', '.join(sorted(_HASHES))}")
    return _HASHES[name]


def _hashes_of(keys: Any, chosen: _Hash) -> Iterator[NDArray[np.int64]]:
    try:
        data = columns.arrow_or_list(keys)
    except pa.ArrowException:
        raise UnsupportedKey(f"{type(keys).__name__} of {keys.dtype}", chosen.name, chosen.supported) from None
    if isinstance(data, list):
        yield from _hashes_of_list(data, chosen)
        return
    for chunk in data.chunks if isinstance(data, pa.ChunkedArray) else [data]:
        yield from _hashes_of_columns(columns.columns_of_array(chunk), chosen)


def _hashes_of_list(keys: list[Any], chosen: _Hash) -> Iterator[NDArray[np.int64]]:
    key_columns = columns.columns_of_list(keys)
    if key_columns is None:
        yield np.fromiter(map(chosen.hash_key, keys), np.int64, len(keys))
    else:
        yield from _hashes_of_columns(key_columns, chosen)


def _hashes_of_columns(key_columns: list[pa.Array], chosen: _Hash) -> Iterator[NDArray[np.int64]]:
    if not key_columns:
        raise UnsupportedKey("struct without fields", chosen.name, chosen.supported)
    for start in range(0, len(key_columns[0]), _BATCH_ROWS):
        yield chosen.hash_columns([column.slice(start, _BATCH_ROWS) for column in key_columns])
