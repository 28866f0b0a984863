"""XXH64 of many values at once, each with its own seed.

The algorithm in short: a value starts as its seed plus its length, absorbs its bytes in lanes of
8, 4 and 1, and is avalanched. From 32 bytes on it is absorbed in stripes, which the C library
does faster than numpy. All arithmetic is modulo 2^64; lanes are little-endian.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh64_intdigest

from keygroups.hashes.columns import ByteRows

_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = np.uint64(0x27D4EB2F165667C5)

_STRIPE = 32

Words = NDArray[np.uint64]


def of_8_bytes(values: Words, seeds: Words) -> Words:
    """Hash 64-bit values."""
    return _avalanche(_absorb_8(seeds + (_PRIME_5 + np.uint64(8)), values))


def of_4_bytes(values: NDArray[np.uint32], seeds: Words) -> Words:
    """Hash 32-bit values."""
    return _avalanche(_absorb_4(seeds + (_PRIME_5 + np.uint64(4)), values.astype(np.uint64)))


def of_byte_rows(rows: ByteRows, seeds: Words) -> Words:
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
