"""Files as partitions, read to their end or for as long as they grow."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, aclosing
from datetime import datetime
from os import PathLike
from typing import Any, TypeVar, cast

from async_op.connectors.errors import FileVanished, MalformedRecord
from async_op.connectors.files.listing import Changes, Glob, Stamp
from async_op.connectors.files.parquet import parquet_blocks
from async_op.connectors.files.text import Incomplete, Row, TextReader
from async_op.connectors.own_threads import OwnThreads
from async_op.connectors.source import Item, PartitionId, Source
from keygroups.arguments import Duration, check_choice, check_integer, check_location, check_positive_duration
from keygroups.representation import representation
from snapshots.filesystem import redacted

_log = logging.getLogger(__name__)

FORMATS = ("json", "csv", "parquet")
_THREADS = 4
_OPEN_FILES_MAX = 64
"""How many files are read side by side; the others wait for their turn, so that handles do not run out."""
_T = TypeVar("_T")


class FileSource(Source[dict[str, Any]]):
    """The records of files as dicts; each file is a partition, named by its path below the part without wildcards.

    Positions are bytes in text (after decompression), and rows in Parquet. So a folder may move, and files may grow;
    what was read of them must not change. Links count as what they lead to, and names that begin with a dot do not
    count.

    Parameters
    ----------
    glob : str or path
        A path or an fsspec URI with the wildcards ``*``, ``**``, ``?`` and ``[…]``.
    format : {"json", "csv", "parquet"}
        JSON with one object in each line; CSV with a header, whose values are text; or Parquet. Names that end in
        ``.gz`` are decompressed, but for Parquet.
    bounded : bool
        True: every file is read to its end once. False: new files and what is added to files is read as it comes. Then
        a last line without an end waits for the rest of it.
    timestamp : str, optional
        The field that is the timestamp of a record: milliseconds as a whole number, also as a float such as 5.0 or as
        text of digits, or a `datetime` with a time zone.
    poll_interval : float or timedelta
        Seconds between two listings of an unbounded source. One listing serves all files, however many they are.
    max_record_bytes : int
        The most bytes of a line, or of a CSV record.
    storage_options : dict, optional
        Passed to the fsspec filesystem.

    Raises
    ------
    ConfigError
        An argument is invalid.

    Notes
    -----
    Reading raises `MalformedRecord`, `RecordTooLong`, `FileShrank` if a file ends before the position that was read,
    and `FileVanished` if one is removed before it was read to its end. A file that is removed later ends its
    partition, and is read on if it comes back. If no file matches at the start, a warning is logged.

    Examples
    --------
    >>> source = FileSource("/data/orders/*.jsonl", "json", timestamp="ordered_at")
    >>> source.bounded
    True
    """

    def __init__(
        self,
        glob: str | PathLike[str],
        format: str,
        *,
        bounded: bool = True,
        timestamp: str | None = None,
        poll_interval: Duration = 1.0,
        max_record_bytes: int = 16 * 1024 * 1024,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        check_choice("format", format, FORMATS)
        self.bounded = bounded
        self._pattern = check_location("glob", glob, reason="name files by one pattern, as in '/data/*.csv'")
        self._format = format
        self._timestamp = timestamp
        self._interval = check_positive_duration("poll_interval", poll_interval, reason="more than zero")
        self._limit = check_integer("max_record_bytes", max_record_bytes, 1, reason="a record has at least one byte")
        self._storage_options = dict(storage_options or {})
        self._found: Glob | None = None
        self._gone: set[str] = set()
        self._threads: OwnThreads | None = None
        self._has_listed = False

    def __repr__(self) -> str:
        return representation(self, {"glob": redacted(self._pattern), "format": self._format})

    async def open(self) -> None:
        """Get ready; a source that was not opened does so when it is used."""
        self._prepare()

    async def partitions(self) -> Iterable[PartitionId]:
        """Return the paths of all files. One that its reader found gone is left out once: then it may come back."""
        self._prepare()
        files = await self._changes.refresh()
        if not files and not self._has_listed:
            outcome = "so nothing is read" if self.bounded else "and the source waits for files"
            _log.warning("no file matches %s, %s: check the path", redacted(self._pattern), outcome)
        self._has_listed = True
        gone, self._gone = self._gone, set()
        return [name for name in files if name not in gone]

    def read(self, partition: PartitionId, position: Any) -> AsyncIterator[list[Item[dict[str, Any]]]]:
        """Return an iterator of lists of records, from a byte (or a row of Parquet) on."""
        begin = 0 if position is None else check_integer("position", position, 0, reason="bytes or rows")
        return self._read(str(partition), begin)

    def full_name(self, partition: PartitionId) -> str:
        """Return the URI of a file."""
        glob = self._glob()
        return str(glob.filesystem.unstrip_protocol(glob.path(str(partition))))

    async def close(self) -> None:
        """Stop listing, and end the threads."""
        if self._threads is not None:
            threads, self._threads = self._threads, None
            self._gone.clear()
            await self._changes.close()
            await threads.close()

    def _prepare(self) -> None:
        if self._threads is None:
            self._threads = OwnThreads("keygroups files", _THREADS)
            self._turns = asyncio.Semaphore(_OPEN_FILES_MAX)
            self._changes = Changes(self._list_files, self._interval)

    async def _read(self, name: str, position: int) -> AsyncIterator[list[Item[dict[str, Any]]]]:
        self._prepare()
        while True:
            seen = self._changes.stamp(name)
            if not self._is_at_end(seen, name, position):
                async with self._turns, aclosing(self._pulled(self._blocks(name, position))) as blocks:
                    async for block in blocks:
                        if block:
                            yield self._items(block, name, position)
                            position = block[-1][1]
            if self.bounded:
                return
            await self._changes.differs(name, seen)
            if self._changes.stamp(name) is None:
                self._check_read_to_the_end(seen, name, position)
                self._gone.add(name)
                return

    async def _pulled(self, blocks: Generator[list[Row], None, None]) -> AsyncGenerator[list[Row], None]:
        try:
            while (block := await self._on_a_thread(lambda: next(blocks, None))) is not None:
                yield block
        finally:
            if self._threads is not None:
                self._threads.submit(blocks.close)

    def _is_at_end(self, seen: Stamp | None, name: str, position: int) -> bool:
        """Return whether the listing shows that there is no more to read, so that nobody need open the file."""
        return seen is not None and self._counts_bytes(name) and position > 0 and seen.bytes == position

    def _check_read_to_the_end(self, seen: Stamp | None, name: str, position: int) -> None:
        if seen is not None and self._counts_bytes(name) and position < seen.bytes:
            raise FileVanished(self._glob().path(name), position)

    def _counts_bytes(self, name: str) -> bool:
        return self._format != "parquet" and not name.endswith(".gz")

    async def _list_files(self) -> dict[str, Stamp]:
        return await self._on_a_thread(lambda: self._glob().files())

    async def _on_a_thread(self, work: Callable[[], _T]) -> _T:
        assert self._threads is not None, "the source is closed after its readers"
        return await self._threads.run(work)

    def _items(self, block: list[Row], name: str, start: int) -> list[Item[dict[str, Any]]]:
        items: list[Item[dict[str, Any]]] = []
        for value, end in block:
            timestamp = None if self._timestamp is None else self._timestamp_of(value, self._timestamp, name, start)
            items.append((value, timestamp, end))
            start = end
        return items

    def _timestamp_of(self, value: Any, field: str, name: str, start: int) -> int:
        found = value.get(field) if isinstance(value, dict) else None
        match found:
            case datetime() if found.tzinfo is not None:
                return round(found.timestamp() * 1000)
            case int() if not isinstance(found, bool):
                return found
            case float() if found.is_integer():
                return int(found)
            case str() if found.removeprefix("-").isdecimal():
                return int(found)
        reason = f"{field}={found!r} is neither milliseconds nor a datetime with a time zone"
        raise MalformedRecord(self._glob().path(name), start, reason)

    # The methods below run on threads.

    def _glob(self) -> Glob:
        import fsspec.core  # not loaded by programs that read no files

        if self._found is None:
            self._found = Glob(*fsspec.core.url_to_fs(self._pattern, **self._storage_options))
        return self._found

    def _blocks(self, name: str, position: int) -> Generator[list[Row], None, None]:
        """Read one file on a thread, to its present end."""
        path = self._glob().path(name)
        try:
            with ExitStack() as stack:
                file = stack.enter_context(self._glob().filesystem.open(path, "rb"))
                yield from self._decoded(stack, file, path, position)
        except FileNotFoundError as error:
            if isinstance(error, FileVanished):
                raise
            raise FileVanished(path, position) from error
        except Incomplete as error:
            if self.bounded:
                raise MalformedRecord(path, position, "the file is cut off") from error

    def _decoded(self, stack: ExitStack, file: Any, path: str, position: int) -> Iterator[list[Row]]:
        if self._format == "parquet":
            return parquet_blocks(file, path, position, grows=not self.bounded)
        is_compressed = path.endswith(".gz")
        text = stack.enter_context(gzip.GzipFile(fileobj=file)) if is_compressed else file
        # What is compressed is whole when it can be decompressed to its end.
        grows = not self.bounded and not is_compressed
        reader = TextReader(cast("Any", text), path, max_record_bytes=self._limit, grows=grows)
        return reader.json_blocks(position) if self._format == "json" else reader.csv_blocks(position)
