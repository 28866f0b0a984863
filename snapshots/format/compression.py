"""Compresses large manifests with gzip: it shrinks names and digests of many files to a fifth, and `zcat` reads it."""

from __future__ import annotations

import gzip
import zlib

COMPRESSED_FROM_BYTES = 2**20
"""Smaller manifests are stored uncompressed, so that they can be read as text."""

_MAGIC = b"\x1f\x8b"
_LEVEL = 1  # Higher levels take three times as long to save another tenth.
_SIZE_BYTES = 4


def compressed(data: bytes, *, always: bool = False) -> bytes:
    """Return the stored form of data: compressed if they are large, or `always`."""
    return gzip.compress(data, _LEVEL, mtime=0) if always or len(data) >= COMPRESSED_FROM_BYTES else data


def decompressed(data: bytes, most: int) -> bytes:
    """Return the original data of a stored form.

    Parameters
    ----------
    data : bytes
        The stored form.
    most : int
        The most bytes of original data; no more memory than that is used.

    Raises
    ------
    ValueError
        There are more bytes, or the data are damaged.
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
    """Return the size of the original data of a stored form."""
    is_compressed = stored.startswith(_MAGIC)
    return int.from_bytes(stored[-_SIZE_BYTES:], "little") if is_compressed else len(stored)
