"""Records of text files: lines of JSON, and CSV, whose quoted fields may hold line ends."""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from gzip import BadGzipFile, GzipFile
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from async_op.connectors.errors import FileShrank, MalformedRecord, RecordTooLong

CHUNK_BYTES = 256 * 1024
"""How much of a file is read at a time."""
_BOM = b"\xef\xbb\xbf"

Row: TypeAlias = tuple[dict[str, Any], int]
"""A record and the byte after it."""


class Incomplete(Exception):
    """The file ends in the middle of something; it may go on later."""


class _Record(NamedTuple):
    data: bytes
    start: int
    end: int


class TextReader:
    """Reads the records of one open file from a byte on, in blocks of bounded size.

    Parameters
    ----------
    file : file object
        The file, whose `seek` may be slow. Bytes are counted as they are read, so after decompression.
    path : str
        What errors call it.
    max_record_bytes : int
        The most bytes of one record.
    grows : bool
        Whether a last line without an end is left for later.
    """

    def __init__(self, file: BinaryIO, path: str, *, max_record_bytes: int, grows: bool) -> None:
        self._file = file
        self._path = path
        self._limit = max_record_bytes
        self._grows = grows

    def json_blocks(self, position: int) -> Iterator[list[Row]]:
        """Yield the values of a file with one JSON value in each line; empty lines are skipped."""
        self._skip_to(position)
        for block in self._records(position, quoted=False):
            yield [(self._json(data, start), end) for data, start, end in block if data.strip()]

    def csv_blocks(self, position: int) -> Iterator[list[Row]]:
        """Yield the rows of a file with a header as dicts of text; empty lines are skipped."""
        header = self._header()
        if header is None:
            self._skip_to(position)
            return
        names, first = header
        start = max(position, first)
        self._skip_to(start)
        for block in self._records(start, quoted=True):
            yield [(self._named(names, data, begin), end) for data, begin, end in block if data.strip()]

    def _header(self) -> tuple[list[str], int] | None:
        for block in self._records(0, quoted=True):
            for data, start, end in block:
                if data.strip():
                    names = self._fields(data.removeprefix(_BOM), start)
                    if len(set(names)) < len(names):
                        raise MalformedRecord(self._path, start, f"the header names a column twice: {names}")
                    return names, end
        return None

    def _skip_to(self, position: int) -> None:
        with self._ends():
            is_compressed = isinstance(self._file, GzipFile)
            reached = self._file.seek(position) if is_compressed else min(self._file.seek(0, 2), position)
        if reached < position:
            raise FileShrank(self._path, position)
        if not is_compressed:
            self._file.seek(position)

    def _records(self, position: int, *, quoted: bool) -> Iterator[list[_Record]]:
        rest, ended = b"", False
        while not ended:
            with self._ends():
                chunk = self._file.read(CHUNK_BYTES)
            ended = not chunk
            records, rest = self._split(rest + chunk, position, quoted=quoted)
            position = records[-1].end if records else position
            if len(rest) > self._limit:
                raise RecordTooLong(self._path, position, self._limit)
            if ended and rest.strip() and not self._grows:
                records.append(_Record(rest, position, position + len(rest)))
            if records:
                yield records

    def _split(self, data: bytes, position: int, *, quoted: bool) -> tuple[list[_Record], bytes]:
        """Cut at line ends, those between quotes excepted; what comes after the last one is the rest."""
        records: list[_Record] = []
        begin = searched = quotes = 0
        while (line_end := data.find(b"\n", searched)) >= 0:
            quotes += data.count(b'"', searched, line_end) if quoted else 0
            searched = line_end + 1
            if quotes % 2 == 0:
                if searched - begin > self._limit:
                    raise RecordTooLong(self._path, position + begin, self._limit)
                records.append(_Record(data[begin:searched], position + begin, position + searched))
                begin, quotes = searched, 0
        return records, data[begin:]

    @contextmanager
    def _ends(self) -> Iterator[None]:
        """Tell a file that is compressed only in part from one that is not compressed."""
        try:
            yield
        except EOFError as error:
            raise Incomplete from error
        except (zlib.error, BadGzipFile) as error:
            raise MalformedRecord(self._path, 0, f"it is no gzip file: {error}") from error

    def _json(self, data: bytes, start: int) -> Any:
        try:
            return json.loads(data.removeprefix(_BOM))
        except ValueError as error:
            raise MalformedRecord(self._path, start, f"no JSON: {error}") from error

    def _fields(self, data: bytes, start: int) -> list[str]:
        try:
            rows = list(csv.reader([data.decode().rstrip("\r\n")], strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise MalformedRecord(self._path, start, f"no CSV: {error}") from error
        return rows[0]

    def _named(self, names: list[str], data: bytes, start: int) -> dict[str, str]:
        fields = self._fields(data, start)
        if len(fields) != len(names):
            raise MalformedRecord(self._path, start, f"{len(fields)} fields under {len(names)} columns")
        return dict(zip(names, fields, strict=True))
