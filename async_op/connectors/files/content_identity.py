"""What identifies the content of a file that was read in part: its first bytes, and those before the position.

A file under the same name may be another one: it was rewritten, or a log was rotated. The same content may be under
another name: the log that was rotated away, also if it was compressed since.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Self

from async_op.connectors.files.compression import Content, Damaged, Incomplete
from async_op.connectors.files.listing import Stamp
from async_op.connectors.files.text import Mark

HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What is stored of a file beside its position, as a short list.

    Attributes
    ----------
    path : str
        Where the content was found last.
    head : tuple of (int, bytes)
        How many of the first bytes were looked at, and their digest.
    tail : tuple of (int, int, bytes)
        A byte up to which the content was read, how many bytes before it were looked at, and their digest.
    stamp : Stamp or None
        What the listing said of the file.
    is_done : bool
        Whether all of a file with this stamp was read, or the rest of it was given up.
    """

    path: str
    head: tuple[int, bytes] = (0, b"")
    tail: tuple[int, int, bytes] = (0, 0, b"")
    stamp: Stamp | None = None
    is_done: bool = False

    @classmethod
    def of(cls, content: Content, path: str, stamp: Stamp | None) -> Self:
        """Return the identity of a content of which nothing was read yet."""
        data = _read(content, 0, HEAD_BYTES)
        return cls(path, (len(data), _digest(data)), stamp=stamp)

    @classmethod
    def loaded(cls, stored: Any) -> Self | None:
        """Return what `stored` has returned before."""
        if stored is None:
            return None
        path, head, tail, stamp, is_done = stored
        return cls(path, tuple(head), tuple(tail), None if stamp is None else Stamp(*stamp), is_done)

    def stored(self) -> list[Any]:
        """Return the identity as msgpack can store it."""
        stamp = None if self.stamp is None else list(self.stamp)
        return [self.path, list(self.head), list(self.tail), stamp, self.is_done]

    def read_to(self, mark: Mark | None) -> Self:
        """Return the identity after a block was read."""
        if mark is None or mark.end == self.tail[0]:
            return self
        return replace(self, tail=(mark.end, len(mark.last), _digest(mark.last)))

    def fits(self, content: Content) -> bool:
        """Return whether an open file has this content, or more of it."""
        size, digest = self.head
        if _digest(_read(content, 0, size)) != digest:
            return False
        end, size, digest = self.tail
        return not size or _digest(_read(content, end - size, size)) == digest


def _read(content: Content, start: int, size: int) -> bytes:
    data = b""
    if content.seek(start) == start:
        while len(data) < size:
            try:
                piece = content.read(size - len(data))
            except (Incomplete, Damaged):  # reading tells of it, once all that comes before has been read
                break
            if not piece:
                break
            data += piece
    return data


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
