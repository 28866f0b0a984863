"""Compressed files, told by their names, as streams of their content."""

from __future__ import annotations

import bz2
import gzip
import zlib
from typing import Any, Literal, Protocol, TypeAlias

import pyarrow as pa


class Incomplete(Exception):
    """A file ends in the middle of something; it may be continued later."""


class Damaged(Exception):
    """A file cannot be read any further."""


class Content(Protocol):
    """What is read of a file. Bytes are counted as they are read, so after decompression."""

    def read(self, size: int, /) -> bytes:
        """Return at least one byte, but no more than `size`; nothing at the end."""
        ...

    def seek(self, position: int, /) -> int:
        """Move to a byte, or to the end if it is before that; return where that is."""
        ...


_PIECE_BYTES = 2**18

_ENDINGS = (".gz", ".bz2", ".zst")


def is_compressed(path: str) -> bool:
    """Return whether the name of a file says that it is compressed."""
    return path.lower().endswith(_ENDINGS)


def content_of(file: Any, path: str) -> Content:
    """Return the content of an open file, decompressed if its name ends in ``.gz``, ``.bz2`` or ``.zst``, in any case.

    Its methods raise `Incomplete` where the file is cut off, and `Damaged` where it is not of its format.
    """
    match path.lower().rpartition(".")[2]:
        case "gz":
            return _Compressed(file, "gzip")
        case "bz2":
            return _Compressed(file, "bzip2")
        case "zst":
            return _Compressed(file, "Zstandard")
    return _Uncompressed(file)


Kind: TypeAlias = Literal["gzip", "bzip2", "Zstandard"]


def _stream_of(file: Any, kind: Kind) -> Any:
    """Return what decompresses a file from where it is."""
    match kind:
        case "gzip":
            return gzip.GzipFile(fileobj=file)
        case "bzip2":
            return _Bzip2(file)
        case "Zstandard":
            return _Zstandard(file)


class _Uncompressed:
    """A file that is not compressed."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.read = file.read

    def seek(self, position: int) -> int:
        reached: int = min(self._file.seek(0, 2), position)
        self._file.seek(reached)
        return reached


class _Compressed:
    """A compressed file, which may have several members. It is read from its beginning to reach a byte."""

    def __init__(self, file: Any, kind: Kind) -> None:
        self._file = file
        self._kind = kind
        self._stream = _stream_of(file, kind)
        self._position = 0
        self._fault: Exception | None = None

    def read(self, size: int) -> bytes:
        if self._fault is not None:
            raise self._fault  # a stream that has failed may go on with what was in its memory
        try:
            data = self._decompressed(size)
        except (Incomplete, Damaged):
            data = self._before_the_fault(size)
            if not data:
                raise
        self._position += len(data)
        return data

    def seek(self, position: int) -> int:
        if position < self._position:
            self._restart()
        while self._position < position and self.read(min(position - self._position, _PIECE_BYTES)):
            pass
        return self._position

    def _restart(self) -> None:
        self._file.seek(0)
        self._stream, self._position, self._fault = _stream_of(self._file, self._kind), 0, None

    def _before_the_fault(self, size: int) -> bytes:
        """Read byte by byte up to a fault, because decompressors drop what they have when an error comes after it."""
        position = self._position
        self._restart()
        self.seek(position)
        data = bytearray()
        try:
            while len(data) < size and (byte := self._decompressed(1)):
                data += byte
        except (Incomplete, Damaged) as fault:
            self._fault = fault
        return bytes(data)

    def _decompressed(self, size: int) -> bytes:
        try:
            # Not `read`, which drops what it has when an error comes after it.
            data: bytes = self._stream.read1(size)
        except EOFError as error:
            raise Incomplete from error
        except (zlib.error, OSError) as error:
            if type(error) not in (OSError, gzip.BadGzipFile, zlib.error) or getattr(error, "errno", None):
                raise  # the storage's own
            raise Damaged(f"it is no {self._kind} file: {error}") from error
        return data


class _Bzip2:
    """A stream of bzip2 members. `bz2.BZ2File` would take a damaged member for the end of the file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._member = bz2.BZ2Decompressor()
        self._is_empty = True

    def read1(self, size: int) -> bytes:
        data = b""
        while not data:
            if self._member.eof:
                compressed = self._head_of_next()
                if not compressed:
                    break
                self._member = bz2.BZ2Decompressor()
            else:
                compressed = self._file.read(_PIECE_BYTES) if self._member.needs_input else b""
                if self._member.needs_input and not compressed:
                    if self._is_empty:
                        break  # no member at all, as in an empty gzip file
                    raise EOFError
                self._is_empty = False
            data = self._member.decompress(compressed, size)
        return data

    def _head_of_next(self) -> bytes:
        """Return what stands behind a member, without zeros, which are padding as in gzip files."""
        head = self._member.unused_data.lstrip(b"\0")
        while not head and (more := self._file.read(_PIECE_BYTES)):
            head = more.lstrip(b"\0")
        return head


class _Zstandard:
    """A stream of Zstandard frames. Python's own module comes with 3.14."""

    def __init__(self, file: Any) -> None:
        self._stream = pa.CompressedInputStream(pa.PythonFile(_Borrowed(file), "r"), "zstd")

    def read1(self, size: int) -> bytes:
        try:
            data: bytes = self._stream.read(size)
        except OSError as error:
            if "Truncated" in str(error):
                raise EOFError from error
            raise
        return data


class _Borrowed:
    """A file that Arrow does not close: a stream that is dropped to begin again would take the file with it."""

    closed = False

    def __init__(self, file: Any) -> None:
        self.read = file.read

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        pass
