"""Records of text files: lines, lines of JSON, and CSV, whose quoted fields may hold line ends."""

from __future__ import annotations

import csv
import json
import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, Self

from async_op.connectors.errors import BrokenFile, FileShrank, MalformedRecord, RecordTooLong
from async_op.connectors.files.compression import Content, Damaged, Incomplete
from async_op.connectors.source import Read, Undecodable
from keygroups.context_managers import contextmanager
from keygroups.errors import ConfigError
from keygroups.representation import counted

CHUNK_BYTES = 256 * 1024
"""How much of a file is read at a time, and about how much makes a block of records."""
RAW_BYTES_MAX = 64 * 1024
"""How much of a record that is too long gets into its dead letter."""
_BOM = b"\xef\xbb\xbf"

Block = list[Read[Any]]


class Mark(NamedTuple):
    """The bytes before a place in the content, by which it is recognised."""

    end: int
    last: bytes


MARK_BYTES = 1024


def last_mark(file: Any) -> Mark:
    """Return the end of an open file."""
    end = file.seek(0, 2)
    file.seek(max(end - MARK_BYTES, 0))
    return Mark(end, file.read(MARK_BYTES))


class _TooLong(Exception):
    """The lines of one record are longer than the limit."""


class _LongLine(NamedTuple):
    """A line that is too long to be kept: its beginning and its length."""

    begin: bytes
    size: int


class TextReader:
    """Reads the records of one open file from a byte on, in blocks of bounded size.

    Parameters
    ----------
    content : Content
        The content of the file.
    path : str
        What errors call it.
    max_record_bytes : int
        The most bytes of one record.
    grows : bool
        Whether a last record without an end is left for later.
    is_strict : bool
        Whether a record that is too long is an error even before its end is known.
    delimiter : str
        What is between the fields of CSV.
    columns : sequence of str or None
        The names of the columns of CSV; None if the first row has them.

    Attributes
    ----------
    mark : Mark or None
        The newest place that is not beyond the end of the last block.
    """

    def __init__(
        self,
        content: Content,
        path: str,
        *,
        max_record_bytes: int,
        grows: bool = False,
        is_strict: bool = False,
        delimiter: str = ",",
        columns: Sequence[str] | None = None,
    ) -> None:
        self._content = content
        self._path = path
        self._limit = max_record_bytes
        self._grows = grows
        self._is_strict = is_strict
        self._delimiter = delimiter
        self._columns = columns
        self._marks = deque[Mark]()
        self.mark: Mark | None = None

    def blocks(self, format: str, position: int) -> Iterator[Block]:
        """Yield the records of a format ("json", "csv" or "lines") from a position on, with the positions after them.

        Raises
        ------
        Incomplete, Damaged
            The content cannot be read any further.
        BrokenFile
            The header of CSV is none.
        FileShrank
            The file ends before the position.
        """
        if format == "csv":
            blocks = self._csv_blocks(position)
        else:
            blocks = self._line_blocks(_json if format == "json" else _text, position)
        for block in blocks:
            newest = block[-1]
            end = newest.position if isinstance(newest, Undecodable) else newest[2]
            while self._marks and self._marks[0].end <= end:
                self.mark = self._marks.popleft()
            yield block

    # Lines and JSON: a record is a line, and ends with \n.

    def _line_blocks(self, decode: Callable[[str], Any], position: int) -> Iterator[Block]:
        position = yield from self._continuation(position, (b"\n",))
        for piece in self._pieces(position, (b"\n",)):
            block: Block = []
            if isinstance(piece, _LongLine):
                block.append(self._too_long(piece.begin, position, position + piece.size))
                position += piece.size
            else:
                position = self._decode_lines(piece, decode, position, block)
            if block:
                yield block

    def _decode_lines(self, piece: bytes, decode: Callable[[str], Any], position: int, block: Block) -> int:
        if not position and piece.startswith(_BOM):
            piece, position = piece.removeprefix(_BOM), len(_BOM)
        lines = piece.split(b"\n")
        last = lines.pop()
        for line in lines:
            start = position
            position += len(line) + 1
            try:
                if len(line) > self._limit:
                    block.append(self._too_long(line, start, position))
                    continue
                block.append((decode(line.decode()), None, position))
            except (ValueError, RecursionError) as error:
                if line.strip():
                    block.append(self._malformed(line, start, position, error))
        if last:  # the last line of a file, without an end
            start, position = position, position + len(last)
            try:
                block.append((decode(last.decode()), None, position))
            except (ValueError, RecursionError) as error:
                if last.strip():
                    block.append(self._malformed(last, start, position, error))
        return position

    # CSV: Python's csv module says what a record is.

    def _csv_blocks(self, position: int) -> Iterator[Block]:
        names, first = self._header() if self._columns is None else (self._columns, 0)
        start = yield from self._continuation(max(position, first), (b"\n", b"\r"))
        if not names:
            return
        lines = _CsvLines(self._pieces(start, (b"\n", b"\r")), start, self._limit)
        block: Block = []
        try:
            for fields in self._rows(lines):
                if isinstance(fields, Undecodable):
                    block.append(fields)
                elif len(fields) == len(names) and not lines.is_bad:
                    block.append((dict(zip(names, fields)), None, lines.end))  # noqa: B905 - the lengths are checked
                elif fields:
                    block.append(self._misfit(fields, len(names), lines))
                if lines.end - start >= CHUNK_BYTES and block:
                    yield block
                    block, start = [], lines.end
        except (Incomplete, Damaged):
            if block:
                yield block
            raise
        if block:
            yield block

    def _header(self) -> tuple[list[str], int]:
        """Return the names of the columns, and the byte after them; no names if the file has no header yet."""
        self._content.seek(0)
        lines = _CsvLines(self._pieces(0, (b"\n", b"\r")), 0, self._limit)
        for fields in self._rows(lines):
            if isinstance(fields, Undecodable):
                raise BrokenFile(self._path, 0, f"its header is too long: {fields.error}")
            if lines.is_bad:
                raise BrokenFile(self._path, 0, f"its header is no UTF-8: {_reason_of(lines.taken)}")
            if len(set(fields)) < len(fields):
                raise BrokenFile(self._path, 0, f"its header names a column twice: {fields}")
            if fields:
                self._marks.clear()
                return fields, lines.end
        return [], 0

    def _rows(self, lines: _CsvLines) -> Iterator[list[str] | Undecodable]:
        """Yield rows, of which `lines` says what they are made of until the next one is asked for."""
        while True:
            reader = csv.reader(lines, delimiter=self._delimiter)
            try:
                for fields in reader:
                    if lines.ran_out and self._grows:
                        return  # in the middle of a quoted field, which may go on later
                    yield fields
                    lines.next_row()
                break
            except csv.Error:  # only a field that is longer than csv's own limit: nothing else is strict
                lines.read_again()
                with _long_fields(self._limit):
                    try:
                        fields = next(csv.reader(lines, delimiter=self._delimiter))
                    except _TooLong:
                        yield self._too_long_row(lines)
                        continue
                if lines.ran_out and self._grows:
                    return
                yield fields
                lines.next_row()
            except _TooLong:
                yield self._too_long_row(lines)

    def _too_long_row(self, lines: _CsvLines) -> Undecodable:
        """Give up the first line of a row, and read on with the next one: a quote in it may have swallowed them."""
        raw, start = lines.drop_line()
        return self._too_long(raw, start, lines.end)

    def _misfit(self, fields: list[str], width: int, lines: _CsvLines) -> Undecodable:
        raw = b"".join(line for line in lines.taken if isinstance(line, bytes))
        reason = f"{counted(len(fields), 'field')} under {counted(width, 'column')}"
        if lines.is_bad:
            reason = f"no UTF-8: {_reason_of(lines.taken)}"
        return self._malformed(raw, lines.end - len(raw), lines.end, reason)

    # Both.

    def _continuation(self, position: int, ends: tuple[bytes, ...]) -> Generator[Block, None, int]:
        """Go to a position. A line without an end was read as a whole there, so what continues it is no record."""
        before = max(position - 1, 0)
        if self._content.seek(before) < before or (position and not (last := self._content.read(1))):
            raise FileShrank(self._path, position)
        if position and last not in ends:
            added, size = self._first_line(position, ends)
            start, position = position, position + size
            if added not in (b"", b"\n", b"\r", b"\r\n"):
                yield [self._malformed(added, start, position, "it continues a line that had no end when it was read")]
            self._content.seek(position)
        return position

    def _first_line(self, position: int, ends: tuple[bytes, ...]) -> _LongLine:
        piece = next(self._pieces(position, ends), b"")
        self._marks.clear()
        if isinstance(piece, _LongLine):
            return piece
        line = piece[: _first_end(piece, ends) or len(piece)]
        return _LongLine(line, len(line))

    def _pieces(self, position: int, ends: tuple[bytes, ...]) -> Iterator[bytes | _LongLine]:
        """Yield the content in pieces that end where lines end, and the last one also without an end."""
        rest = b""
        while chunk := self._content.read(CHUNK_BYTES):
            rest += chunk
            while True:
                if cut := _last_end(rest, ends):
                    position += cut
                    self._marks.append(Mark(position, rest[max(cut - MARK_BYTES, 0) : cut]))
                    yield rest[:cut]
                    rest = rest[cut:]
                if len(rest) <= self._limit:
                    break
                line, rest = self._long_line(rest, position, ends)
                if line is None:
                    return
                position += line.size
                yield line
        if rest and not self._grows:
            self._marks.append(Mark(position + len(rest), rest[-MARK_BYTES:]))
            yield rest

    def _long_line(self, rest: bytes, start: int, ends: tuple[bytes, ...]) -> tuple[_LongLine | None, bytes]:
        """Skip a line that is too long; returns it, or None if it has no end yet, and what was read beyond it."""
        begin, size = rest[: min(self._limit, RAW_BYTES_MAX)], 0
        while not (stop := _first_end(rest, ends)):
            held = rest[-1:] if rest[-1:] in ends else b""  # a \r that may be half of \r\n
            size += len(rest) - len(held)
            chunk = self._content.read(CHUNK_BYTES)
            if not chunk and self._grows:
                if self._is_strict:
                    raise RecordTooLong(self._path, start, self._limit)
                return None, b""
            if not chunk:
                return _LongLine(begin, size + len(held)), b""
            rest = held + chunk
        return _LongLine(begin, size + stop), rest[stop:]

    def _malformed(self, raw: bytes, start: int, end: int, reason: str | Exception) -> Undecodable:
        if isinstance(reason, Exception):
            reason = f"no {'UTF-8' if isinstance(reason, UnicodeDecodeError) else 'JSON'}: {reason}"
        return Undecodable(raw, end, MalformedRecord(self._path, start, reason))

    def _too_long(self, raw: bytes, start: int, end: int) -> Undecodable:
        return Undecodable(raw[: min(self._limit, RAW_BYTES_MAX)], end, RecordTooLong(self._path, start, self._limit))


class _CsvLines:
    """The lines of a piece of CSV as text, for csv.reader; it counts the bytes that a row is made of.

    Attributes
    ----------
    end : int
        The byte after the newest line.
    taken : list of bytes
        The lines of the row that is being read.
    is_bad : bool
        Whether one of them is no UTF-8.
    ran_out : bool
        Whether a line was wanted and there was none.
    """

    __slots__ = ("_limit", "_lines", "_start", "end", "is_bad", "ran_out", "taken")

    def __init__(self, pieces: Iterator[bytes | _LongLine], start: int, limit: int) -> None:
        self._lines = _lines_of(pieces)
        self._limit = limit
        self._start = self.end = start
        self.taken: list[bytes | _LongLine] = []
        self.is_bad = self.ran_out = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        try:
            line = next(self._lines)
        except StopIteration:
            self.ran_out = True
            raise
        self.taken.append(line)
        if isinstance(line, _LongLine):
            self.end += line.size
            raise _TooLong
        text = line if self.end else line.removeprefix(_BOM)
        self.end += len(line)
        if self.end - self._start > self._limit:
            raise _TooLong
        try:
            return text.decode()
        except UnicodeDecodeError:  # the row still ends where it ends
            self.is_bad = True
            return text.decode(errors="surrogateescape")

    def next_row(self) -> None:
        """Forget the lines of the row."""
        self._start = self.end
        self.taken = []
        self.is_bad = False

    def read_again(self) -> None:
        """Go back to the beginning of the row."""
        self._lines = chain(self.taken, self._lines)
        self.end = self._start
        self.next_row()

    def drop_line(self) -> tuple[bytes, int]:
        """Go to the second line of the row; returns the beginning of the first one, and where it begins."""
        first, start = self.taken.pop(0), self._start
        self.read_again()
        self._start = self.end = start + (first.size if isinstance(first, _LongLine) else len(first))
        return (first.begin if isinstance(first, _LongLine) else first), start


def _lines_of(pieces: Iterator[bytes | _LongLine]) -> Iterator[bytes | _LongLine]:
    for piece in pieces:
        if isinstance(piece, _LongLine):
            yield piece
        else:
            yield from piece.splitlines(keepends=True)  # of bytes: only \n, \r and \r\n end a line


def _last_end(data: bytes, ends: tuple[bytes, ...]) -> int:
    r"""Return the index after the last line end; a \r at the end of the data does not count, as \n may follow."""
    end = data.rfind(b"\n") + 1
    if b"\r" in ends and end < len(data):
        end = max(end, data.rfind(b"\r", end, len(data) - 1) + 1)
    return end


def _first_end(data: bytes, ends: tuple[bytes, ...]) -> int:
    """Return the index after the first line end, 0 if there is none."""
    end = data.find(b"\n") + 1
    if b"\r" in ends:
        carriage = data.find(b"\r", 0, end or len(data) - 1) + 1
        if carriage and carriage != end - 1:
            return carriage
    return end


def check_delimiter(delimiter: object, format: str) -> None:
    """Raise a `ConfigError` unless this may be between the fields of CSV, or is the default of another format."""
    is_half = isinstance(delimiter, str) and "\ud800" <= delimiter <= "\udfff"  # of a surrogate pair, as in JSON
    if not isinstance(delimiter, str) or len(delimiter) != 1 or is_half or delimiter in '"\r\n\0\ufeff':
        raise ConfigError("delimiter", delimiter, "pass one character that is neither a quote nor the end of a line")
    if format != "csv" and delimiter != ",":
        raise only_csv("delimiter", delimiter, format)


def only_csv(name: str, value: object, format: str) -> ConfigError:
    """Return the error for an argument that only CSV has."""
    return ConfigError(name, value, f"only CSV needs it, not {format}: leave it out")


def _text(line: str) -> str:
    return line.removesuffix("\r")


def _json(line: str) -> Any:
    try:
        value, end = _DECODER.raw_decode(line)
        return value if end == len(line) else _DECODER.decode(line)
    except json.JSONDecodeError as error:
        if error.pos and error.pos >= len(line.rstrip()):
            raise ValueError("the value does not end in its line, and each line must have a whole one") from None
        return _DECODER.decode(line)  # which allows for white space, or says what is wrong


def _object(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    if len(found) < len(items):
        raise ValueError("an object has two values under one name")
    return found


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is larger than any float, and would become infinity")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float)


def _reason_of(lines: Sequence[Any]) -> str:
    try:
        b"".join(lines).decode()
    except UnicodeDecodeError as error:
        return str(error)
    return ""


_LIMIT_LOCK = threading.Lock()


@contextmanager
def _long_fields(limit: int) -> Iterator[None]:
    """Let csv read fields up to a limit. Its own is one for the whole process, so it is put back at once."""
    with _LIMIT_LOCK:
        before = csv.field_size_limit(limit)
        try:
            yield
        finally:
            csv.field_size_limit(before)
