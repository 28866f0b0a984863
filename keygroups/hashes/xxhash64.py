"""XXH64 with seed 42, equal to Spark's `xxhash64` expression over widened columns.

The algorithm in short: a value starts as its seed plus its length, absorbs its bytes in lanes of 8, 4 and 1, and is
avalanched. From 32 bytes on it is absorbed in stripes, which the C library does faster than numpy. All arithmetic is
modulo 2^64; lanes are little-endian.
"""

from __future__ import annotations

import datetime
import math
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from xxhash import xxh64_intdigest

from keygroups.errors import UnsupportedKey
from keygroups.hashes import columns, scalars
from keygroups.hashes.columns import ByteRows

NAME = "xxhash64"
SUPPORTED = (
    "int of 64 bits, float, Decimal of 38 digits, str, bytes, bool, date, datetime, "
    "or a non-empty tuple or list of them"
)

_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = np.uint64(0x27D4EB2F165667C5)

_STRIPE = 32

Words: TypeAlias = NDArray[np.uint64]

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
        return _hash_8_bytes(columns.integers(column, NAME).view(np.uint64), seeds)
    if columns.is_text(kind) or columns.is_bytes(kind):
        return _hash_byte_rows(columns.byte_rows(column), seeds)
    if pa.types.is_floating(kind):
        return _hash_8_bytes(columns.doubles(column).view(np.uint64), seeds)
    if pa.types.is_timestamp(kind):
        return _hash_8_bytes(columns.microseconds(column, NAME).view(np.uint64), seeds)
    if pa.types.is_date32(kind):
        return _hash_4_bytes(columns.days(column).view(np.uint32), seeds)
    if pa.types.is_boolean(kind):
        return _hash_4_bytes(column.to_numpy(zero_copy_only=False).astype(np.uint32), seeds)
    if pa.types.is_decimal(kind):
        return _hash_decimals(columns.unscaled_words(column, NAME, SUPPORTED), seeds)
    raise UnsupportedKey(str(kind), NAME, SUPPORTED)


def _hash_decimals(words: NDArray[np.int64], seeds: NDArray[np.uint64]) -> NDArray[np.uint64]:
    low, high = words[:, 0], words[:, 1]
    is_long = high == low >> 63
    hashes = np.empty_like(seeds)
    hashes[is_long] = _hash_8_bytes(low[is_long].view(np.uint64), seeds[is_long])
    hashes[~is_long] = _hash_byte_rows(columns.signed_bytes(words[~is_long]), seeds[~is_long])
    return hashes


# XXH64 of many values at once.


def _hash_8_bytes(values: Words, seeds: Words) -> Words:
    """Hash 64-bit values, each with its own seed."""
    return _avalanche(_absorb_8(seeds + (_PRIME_5 + np.uint64(8)), values))


def _hash_4_bytes(values: NDArray[np.uint32], seeds: Words) -> Words:
    """Hash 32-bit values."""
    return _avalanche(_absorb_4(seeds + (_PRIME_5 + np.uint64(4)), values.astype(np.uint64)))


def _hash_byte_rows(rows: ByteRows, seeds: Words) -> Words:
    """Hash values of any length."""
    short = rows.lengths < _STRIPE
    if short.all():
        return _of_short(rows, seeds)
    hashes = np.empty_like(seeds)
    hashes[short] = _of_short(_select(rows, short), seeds[short])
    hashes[~short] = _of_long(_select(rows, ~short), seeds[~short])
    return hashes


def _select(rows: ByteRows, chosen: NDArray[np.bool_]) -> ByteRows:
    return ByteRows(rows.data, rows.starts[chosen], rows.lengths[chosen])


def _of_long(rows: ByteRows, seeds: Words) -> Words:
    data = rows.data.data
    bounds = zip(rows.starts.tolist(), (rows.starts + rows.lengths).tolist(), seeds.tolist(), strict=True)
    return np.array([xxh64_intdigest(data[start:end], seed) for start, end, seed in bounds], np.uint64)


def _of_short(rows: ByteRows, seeds: Words) -> Words:
    """Absorb one lane after the other, each in all rows that have this lane."""
    hashes = seeds + _PRIME_5 + rows.lengths.view(np.uint64)
    eights, fours = _lanes(rows.data, "<u8"), _lanes(rows.data, "<u4")
    for position in range(0, _STRIPE - 8, 8):
        chosen = np.flatnonzero(rows.lengths >= position + 8)
        hashes[chosen] = _absorb_8(hashes[chosen], eights[rows.starts[chosen] + position])
    chosen = np.flatnonzero(rows.lengths & 4)
    positions = rows.starts + (rows.lengths & ~7)
    hashes[chosen] = _absorb_4(hashes[chosen], fours[positions[chosen]].astype(np.uint64))
    positions += rows.lengths & 4
    for position in range(3):
        chosen = np.flatnonzero(rows.lengths & 3 > position)
        hashes[chosen] = _absorb_1(hashes[chosen], rows.data[positions[chosen] + position].astype(np.uint64))
    return _avalanche(hashes)


def _lanes(data: NDArray[np.uint8], dtype: str) -> NDArray[np.unsignedinteger]:
    """View the lane that begins at each byte, without copying."""
    width = np.dtype(dtype).itemsize
    return np.ndarray((max(0, data.size - width + 1),), dtype, data, strides=(1,))


def _absorb_8(hashes: Words, lanes: Words) -> Words:
    mixed = _rotate(lanes * _PRIME_2, 31) * _PRIME_1
    return _rotate(hashes ^ mixed, 27) * _PRIME_1 + _PRIME_4


def _absorb_4(hashes: Words, lanes: Words) -> Words:
    return _rotate(hashes ^ (lanes * _PRIME_1), 23) * _PRIME_2 + _PRIME_3


def _absorb_1(hashes: Words, lanes: Words) -> Words:
    return _rotate(hashes ^ (lanes * _PRIME_5), 11) * _PRIME_1


def _avalanche(hashes: Words) -> Words:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _PRIME_2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _PRIME_3
    return hashes ^ (hashes >> np.uint64(32))


def _rotate(words: Words, bits: int) -> Words:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
