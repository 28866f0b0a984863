"""Converts keys to Arrow columns, and Arrow columns to the numpy arrays from which the hashes are computed."""

from __future__ import annotations

import datetime
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from keygroups.arguments import check_elements
from keygroups.errors import NullKey, UnsupportedKey

# Exact types whose values Arrow stores unchanged. A datetime is not among them: aware and naive
# ones in a list may mean different instants.
_ARROW_TYPES = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.large_string(),
    bytes: pa.large_binary(),
    datetime.date: pa.date32(),
}


class ByteRows(NamedTuple):
    """Variable-length values, stored one after the other in a buffer."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


def arrow_or_list(keys: Any) -> pa.Array | pa.ChunkedArray | list[Any]:
    """Return keys of any accepted kind as Arrow data, or as a list if they are Python objects.

    Raises
    ------
    NullKey
        A key of a pandas object is missing; pandas uses NaN for missing values.
    ConfigError
        It is a single key, or cannot be iterated over.
    """
    if isinstance(keys, (pa.Array, pa.ChunkedArray)):
        return keys
    if hasattr(keys, "isna") and (missing := np.flatnonzero(keys.isna())).size:
        raise NullKey(f"row {missing[0]} of the keys")
    if not hasattr(keys, "dtype") or getattr(keys, "ndim", 1) == 0:
        check_elements("keys", keys[()] if isinstance(keys, np.ndarray) else keys)
        return list(keys)
    return keys.tolist() if keys.dtype == object else pa.array(keys)


def columns_of_list(keys: list[Any]) -> list[pa.Array] | None:
    """Return the key columns of a list of keys, or None if they are not all of one simple type."""
    if not set(map(type, keys)) <= {tuple, list}:
        values = [keys]
    elif len(widths := set(map(len, keys))) == 1:
        values = [list(map(itemgetter(index), keys)) for index in range(widths.pop())]
    else:
        return None
    columns = [_column_of_values(column) for column in values]
    return None if not columns or None in columns else columns


def _column_of_values(values: list[Any]) -> pa.Array | None:
    kinds = set(map(type, values))
    arrow_type = _ARROW_TYPES.get(kinds.pop()) if len(kinds) == 1 else None
    if arrow_type is None:
        return None
    try:
        # All values are of the one class of Python that the type stands for, so Arrow changes none.
        return pa.array(values, arrow_type)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        # The scalar hash tells the caller which key cannot be hashed, and why.
        return None


def columns_of_array(keys: pa.Array) -> list[pa.Array]:
    """Return the key columns of an Arrow array: the fields of a struct, or the array itself.

    Raises
    ------
    NullKey
        One of them contains a null.
    """
    if not pa.types.is_struct(keys.type):
        return [_without_nulls(keys, "the keys")]
    _without_nulls(keys, "the keys")
    fields = zip(keys.type, keys.flatten(), strict=True)
    return [_without_nulls(column, f"key column {field.name!r}") for field, column in fields]


def _without_nulls(column: pa.Array, name: str) -> pa.Array:
    # A dictionary may contain a null, which only decoding reveals.
    decoded = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if decoded.null_count:
        raise NullKey(f"row {decoded.is_null().index(True).as_py()} of {name}")
    return decoded


def is_text(kind: pa.DataType) -> bool:
    """Return whether an Arrow type holds strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether an Arrow type holds byte strings."""
    variable = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return bool(variable or pa.types.is_fixed_size_binary(kind))


def integers(column: pa.Array, hash_name: str) -> NDArray[np.int64]:
    """Return integers of any width as 64-bit integers.

    Raises
    ------
    UnsupportedKey
        An integer does not fit.
    """
    try:
        return _numpy(column.cast(pa.int64()))
    except pa.ArrowInvalid:
        raise UnsupportedKey("int above 64 bits", hash_name, "int of 64 bits, str") from None


def doubles(column: pa.Array) -> NDArray[np.float64]:
    """Return floats of any width as 64-bit floats, with all NaN values made equal, and -0.0 made 0.0."""
    values = _numpy(column.cast(pa.float64()))
    # Adding 0.0 turns -0.0 into 0.0 and changes nothing else.
    return np.where(np.isnan(values), np.nan, values + 0.0)


def days(column: pa.Array) -> NDArray[np.int32]:
    """Return dates as days since 1970."""
    return _numpy(column.view(pa.int32()))


def microseconds(column: pa.Array, hash_name: str) -> NDArray[np.int64]:
    """Return timestamps as microseconds since 1970, in UTC if they have a time zone.

    Raises
    ------
    UnsupportedKey
        A timestamp has nanoseconds, which no key of Python or Spark has.
    """
    if column.type.unit == "ns":
        nanoseconds = _numpy(column.view(pa.int64()))
        if (nanoseconds % 1000).any():
            raise UnsupportedKey("timestamp with nanoseconds", hash_name, "timestamps in whole microseconds")
        return nanoseconds // 1000
    return _numpy(column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64()))


def byte_rows(column: pa.Array) -> ByteRows:
    """Return byte strings, or strings encoded as UTF-8; there must be at least one."""
    binary = column.cast(pa.large_string() if is_text(column.type) else pa.large_binary())
    _, offsets, data = binary.buffers()
    bounds = np.frombuffer(offsets, np.int64)[binary.offset : binary.offset + len(binary) + 1]
    used = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]] if data is not None else np.zeros(0, np.uint8)
    return ByteRows(used, bounds[:-1] - bounds[0], np.diff(bounds))


def unscaled_words(column: pa.Array, hash_name: str, supported: str) -> NDArray[np.int64]:
    """Return unscaled decimals as 128-bit integers, each as two words: the low one and the high one.

    Raises
    ------
    UnsupportedKey
        A decimal has more than 38 digits.
    """
    try:
        wide = column.cast(pa.decimal128(38, max(column.type.scale, 0)))
    except pa.ArrowInvalid:
        raise UnsupportedKey("Decimal above 38 digits", hash_name, supported) from None
    words = np.frombuffer(wide.buffers()[1] or b"", np.int64).reshape(-1, 2)
    return words[wide.offset : wide.offset + len(wide)]


def signed_bytes(words: NDArray[np.int64]) -> ByteRows:
    """Return 128-bit integers that do not fit into one word, as the fewest big-endian bytes with room for the sign."""
    data = np.ascontiguousarray(words[:, ::-1]).byteswap().view(np.uint8).reshape(-1, 16)
    sign = words[:, 1] < 0
    filling = np.argmin(data == np.where(sign, 0xFF, 0)[:, np.newaxis], axis=1)
    first = data[np.arange(len(data)), filling]
    starts = filling - ((first >= 0x80) != sign)
    return ByteRows(data.reshape(-1), np.arange(len(data)) * 16 + starts, 16 - starts)


def _numpy(column: pa.Array) -> NDArray[Any]:
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values
