"""XXH64 with seed 42, equal to Spark's `xxhash64` expression over widened columns."""

from __future__ import annotations

import datetime
import math
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from xxhash import xxh64_intdigest

from keygroups.errors import UnsupportedKey
from keygroups.hashes import columns, scalars, xxh64

NAME = "xxhash64"
SUPPORTED = (
    "int of 64 bits, float, Decimal of 38 digits, str, bytes, bool, date, datetime, "
    "or a non-empty tuple or list of them"
)

_SEED = 42
_SIGN = 1 << 63
_WRAP = 1 << 64

_pack_long = struct.Struct("<q").pack
_pack_int = struct.Struct("<i").pack
_pack_double = struct.Struct("<d").pack

_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - subtracted from naive datetimes only
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _double_bytes(value: float) -> bytes:
    if math.isnan(value):
        return _pack_double(math.nan)
    return _pack_double(value or 0.0)


def _date_bytes(value: datetime.date) -> bytes:
    return _pack_int(value.toordinal() - _EPOCH_DAY)


def _datetime_bytes(value: datetime.datetime) -> bytes:
    since = value - (_EPOCH if value.utcoffset() is None else _EPOCH_UTC)
    return _pack_long((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


def _decimal_bytes(value: Decimal) -> bytes:
    unscaled = scalars.unscaled(value, NAME, SUPPORTED)
    if -_SIGN <= unscaled < _SIGN:
        return _pack_long(unscaled)
    # The bytes of Java's BigInteger: the fewest that leave room for the sign.
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    bool: _pack_int,
    int: _pack_long,
    float: _double_bytes,
    str: str.encode,
    bytes: bytes,
    datetime.date: _date_bytes,
    datetime.datetime: _datetime_bytes,
    Decimal: _decimal_bytes,
}


def hash_key(key: object) -> int:
    """Return the signed hash of a key."""
    encode = _ENCODERS.get(type(key))
    if encode is None:
        digest = _fold(key) if isinstance(key, (tuple, list)) else _digest(key, _SEED)
    else:
        try:
            digest = xxh64_intdigest(encode(key), _SEED)
        except (struct.error, UnicodeEncodeError):
            raise _unencodable(key) from None
    return digest if digest < _SIGN else digest - _WRAP


def hash_columns(key_columns: Sequence[pa.Array]) -> NDArray[np.int64]:
    """Return the signed hash of each row of the key columns."""
    hashes = np.full(len(key_columns[0]), _SEED, np.uint64)
    for column in key_columns:
        hashes = _hash_column(column, hashes)
    return hashes.view(np.int64)


def _fold(key: Sequence[object]) -> int:
    if not key:
        raise UnsupportedKey(f"empty {type(key).__name__}", NAME, SUPPORTED)
    digest = _SEED
    for part in key:
        digest = _digest(part, digest)
    return digest


def _digest(part: object, seed: int) -> int:
    encode = _ENCODERS.get(type(part))
    if encode is None:
        part = scalars.without_numpy(part)
        encode = scalars.function_for(part, _ENCODERS, NAME, SUPPORTED)
    try:
        return xxh64_intdigest(encode(part), seed)
    except (struct.error, UnicodeEncodeError):
        raise _unencodable(part) from None


def _unencodable(key: object) -> UnsupportedKey:
    type_name = "str with a lone surrogate" if isinstance(key, str) else "int above 64 bits"
    return UnsupportedKey(type_name, NAME, SUPPORTED)


def _hash_column(column: pa.Array, seeds: NDArray[np.uint64]) -> NDArray[np.uint64]:
    kind = column.type
    if pa.types.is_integer(kind):
        return xxh64.of_8_bytes(columns.integers(column, NAME).view(np.uint64), seeds)
    if columns.is_text(kind) or columns.is_bytes(kind):
        return xxh64.of_byte_rows(columns.byte_rows(column), seeds)
    if pa.types.is_floating(kind):
        return xxh64.of_8_bytes(columns.doubles(column).view(np.uint64), seeds)
    if pa.types.is_timestamp(kind):
        return xxh64.of_8_bytes(columns.microseconds(column, NAME).view(np.uint64), seeds)
    if pa.types.is_date32(kind):
        return xxh64.of_4_bytes(columns.days(column).view(np.uint32), seeds)
    if pa.types.is_boolean(kind):
        return xxh64.of_4_bytes(column.to_numpy(zero_copy_only=False).astype(np.uint32), seeds)
    if pa.types.is_decimal(kind):
        return _hash_decimals(columns.unscaled_words(column, NAME, SUPPORTED), seeds)
    raise UnsupportedKey(str(kind), NAME, SUPPORTED)


def _hash_decimals(words: NDArray[np.int64], seeds: NDArray[np.uint64]) -> NDArray[np.uint64]:
    low, high = words[:, 0], words[:, 1]
    is_long = high == low >> 63
    hashes = np.empty_like(seeds)
    hashes[is_long] = xxh64.of_8_bytes(low[is_long].view(np.uint64), seeds[is_long])
    hashes[~is_long] = xxh64.of_byte_rows(columns.signed_bytes(words[~is_long]), seeds[~is_long])
    return hashes
