"""Java's `hashCode` with Flink's mixing, so that key groups equal Flink's own assignment."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from keygroups.errors import UnsupportedKey
from keygroups.hashes import columns, scalars

NAME = "flink"
SUPPORTED = "int of 64 bits (Long), Arrow or numpy int32 (Integer), float (Double), str, bool, or a tuple of them"

_MASK = 0xFFFFFFFF
_MAX_ARITY = 25
"""The largest of Flink's tuple classes."""

_pack_double = struct.Struct("<d").pack
_unpack_long = struct.Struct("<Q").unpack


def _integer_code(value: int) -> int:
    return int(value) & _MASK


def _long_code(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise UnsupportedKey("int above 64 bits", NAME, SUPPORTED)
    return (value ^ (value >> 32)) & _MASK


def _double_code(value: float) -> int:
    bits: int = _unpack_long(_pack_double(math.nan if math.isnan(value) else value or 0.0))[0]
    return (bits ^ (bits >> 32)) & _MASK


def _string_code(value: str) -> int:
    code = 0
    for unit in memoryview(value.encode("utf-16-le", "surrogatepass")).cast("H"):
        code = (31 * code + unit) & _MASK
    return code


def _boolean_code(value: bool) -> int:
    return 1231 if value else 1237


_CODES: dict[type, Callable[[Any], int]] = {
    bool: _boolean_code,
    int: _long_code,
    float: _double_code,
    str: _string_code,
    np.int8: _integer_code,
    np.int16: _integer_code,
    np.int32: _integer_code,
}


def hash_key(key: object) -> int:
    """Return the mixed hash of a key; it is never negative."""
    code = _CODES.get(type(key))
    if code is not None:
        return _mix(code(key))
    return _mix(_tuple_code(key) if isinstance(key, (tuple, list)) else _other_code(key))


def hash_columns(key_columns: Sequence[pa.Array]) -> NDArray[np.int64]:
    """Return the mixed hash of each row of the key columns; none is negative."""
    _check_arity(len(key_columns))
    codes = _column_codes(key_columns[0])
    for column in key_columns[1:]:
        codes = codes * np.uint32(31) + _column_codes(column)
    return _mix_many(codes)


def _tuple_code(key: Sequence[object]) -> int:
    _check_arity(len(key))
    code = 0
    for part in key:
        code = (31 * code + _other_code(part)) & _MASK
    return code


def _check_arity(arity: int) -> None:
    if not 1 <= arity <= _MAX_ARITY:
        raise UnsupportedKey(f"tuple of {arity}", NAME, SUPPORTED)


def _other_code(key: object) -> int:
    if type(key) not in _CODES:
        _refuse_narrow_float(key)
        key = scalars.without_numpy(key)
    return scalars.function_for(key, _CODES, NAME, SUPPORTED)(key)


def _refuse_narrow_float(key: object) -> None:
    if isinstance(key, (np.float16, np.float32)):
        raise UnsupportedKey(type(key).__name__, NAME, SUPPORTED)


def _mix(code: int) -> int:
    code = (code * 0xCC9E2D51) & _MASK
    code = _rotate(code, 15)
    code = (code * 0x1B873593) & _MASK
    code = _rotate(code, 13)
    code = ((code * 5 + 0xE6546B64) & _MASK) ^ 4
    code = ((code ^ (code >> 16)) * 0x85EBCA6B) & _MASK
    code = ((code ^ (code >> 13)) * 0xC2B2AE35) & _MASK
    code ^= code >> 16
    # The absolute value as a signed integer; the smallest integer has none and becomes 0.
    return code if code < 1 << 31 else ((1 << 32) - code) & 0x7FFFFFFF


def _rotate(code: int, bits: int) -> int:
    return ((code << bits) | (code >> (32 - bits))) & _MASK


Codes = NDArray[np.uint32]


def _column_codes(column: pa.Array) -> Codes:
    kind = column.type
    if pa.types.is_int32(kind) or pa.types.is_int16(kind) or pa.types.is_int8(kind):
        return columns.integers(column, NAME).astype(np.uint32)
    if pa.types.is_integer(kind):
        return _long_codes(columns.integers(column, NAME).view(np.uint64))
    if pa.types.is_float64(kind):
        return _long_codes(columns.doubles(column).view(np.uint64))
    if columns.is_text(kind):
        return _string_codes(columns.byte_rows(column))
    if pa.types.is_boolean(kind):
        return np.where(column.to_numpy(zero_copy_only=False), np.uint32(1231), np.uint32(1237))
    raise UnsupportedKey(str(kind), NAME, SUPPORTED)


def _long_codes(bits: NDArray[np.uint64]) -> Codes:
    return (bits ^ (bits >> np.uint64(32))).astype(np.uint32)


def _string_codes(rows: columns.ByteRows) -> Codes:
    """Process one UTF-16 unit after the other, each in all strings that are long enough."""
    starts, lengths, units = _utf16(rows)
    longest_first = np.argsort(-lengths, kind="stable")
    starts, ascending = starts[longest_first], np.sort(lengths)
    codes = np.zeros(lengths.size, np.uint32)
    for position in range(ascending[-1] if ascending.size else 0):
        alive = ascending.size - np.searchsorted(ascending, position, side="right")
        codes[:alive] = codes[:alive] * np.uint32(31) + units[starts[:alive] + position]
    result = np.empty_like(codes)
    result[longest_first] = codes
    return result


def _utf16(rows: columns.ByteRows) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint16]]:
    units = np.frombuffer(rows.data.tobytes().decode().encode("utf-16-le"), np.uint16)
    # In UTF-8, a character of two UTF-16 units begins with a byte of at least 0xF0. A character of one unit begins
    # with any other byte that does not continue a character.
    units_by_byte = (rows.data & 0xC0 != 0x80).astype(np.int64) + (rows.data >= 0xF0)
    units_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(units_by_byte)])
    starts = units_before[rows.starts]
    return starts, units_before[rows.starts + rows.lengths] - starts, units


def _mix_many(codes: Codes) -> NDArray[np.int64]:
    codes = _rotate_many(codes * np.uint32(0xCC9E2D51), 15)
    codes = _rotate_many(codes * np.uint32(0x1B873593), 13)
    codes = (codes * np.uint32(5) + np.uint32(0xE6546B64)) ^ np.uint32(4)
    codes = (codes ^ (codes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    codes = (codes ^ (codes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    codes ^= codes >> np.uint32(16)
    # The negation of the smallest integer overflows to itself; the mask makes it 0.
    return np.abs(codes.view(np.int32)).astype(np.int64) & 0x7FFFFFFF


def _rotate_many(codes: Codes, bits: int) -> Codes:
    return (codes << np.uint32(bits)) | (codes >> np.uint32(32 - bits))
