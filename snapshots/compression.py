"""Large manifests are stored as gzip: names and digests of thousands of files become a fifth, and `zcat` reads them."""

from __future__ import annotations

import gzip
import zlib

COMPRESSED_FROM_BYTES = 2**20
"""What is smaller is stored as it is, so that it can be read as text."""

_MAGIC = b"\x1f\x8b"
_LEVEL = 1  # Higher ones take three times as long for a tenth less.
_SIZE_BYTES = 4


def compressed(data: bytes) -> bytes:
    """Return bytes as they are stored."""
    return gzip.compress(data, _LEVEL, mtime=0) if len(data) >= COMPRESSED_FROM_BYTES else data


def decompressed(data: bytes, most: int) -> bytes:
    """Return bytes as they were before they were stored.

    Parameters
    ----------
    data : bytes
        As they are stored.
    most : int
        No more memory than for so many bytes is taken.

    Raises
    ------
    ValueError
        They are more, or damaged.
    """
    if not data.startswith(_MAGIC):
        return data
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        plain = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(plain) > most:
        raise ValueError("it is more than a manifest may have")
    if not stream.eof or stream.unused_data:
        raise ValueError("it ends too early" if not stream.eof else "something follows")
    return plain


def plain_bytes(stored: bytes) -> int:
    """Return how many bytes `decompressed` gives for what `compressed` has made."""
    is_compressed = stored.startswith(_MAGIC)
    return int.from_bytes(stored[-_SIZE_BYTES:], "little") if is_compressed else len(stored)
