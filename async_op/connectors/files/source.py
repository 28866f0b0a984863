"""Files as partitions, read to their end or for as long as they grow."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from os import PathLike
from typing import Any
from urllib.parse import unquote

from async_op.connectors.errors import (
    BrokenFile,
    FileMissing,
    FileReplaced,
    FileShrank,
    FileVanished,
    MalformedRecord,
)
from async_op.connectors.files.access import FileAccess
from async_op.connectors.files.change_polling import Changes
from async_op.connectors.files.compression import Content, Damaged, Incomplete, is_compressed
from async_op.connectors.files.content_identity import FileIdentity
from async_op.connectors.files.listing import Stamp
from async_op.connectors.files.parquet import parquet_blocks
from async_op.connectors.files.rotation import FilePartition, Partitions
from async_op.connectors.files.text import Block, Mark, TextReader, check_delimiter, last_mark, only_csv
from async_op.connectors.retrying import RETRY
from async_op.connectors.source import PartitionId, Reached, Read, Source, Undecodable
from async_op.dead_letters import OnError, check_on_error
from async_op.elements import timestamp_in
from async_op.retry import RetryPolicy
from keygroups.arguments import (
    Duration,
    check_choice,
    check_flag,
    check_instance,
    check_integer,
    check_location,
    check_positive_duration,
)
from keygroups.errors import ConfigError, in_message
from keygroups.representation import representation
from snapshots.filesystem import options_of, redacted

_log = logging.getLogger(__name__)

FORMATS = ("json", "csv", "parquet", "lines")
_OPEN_FILES_MAX = 64
"""How many files are read side by side; the others wait for their turn, so that handles do not run out."""

_LEFT_OUT = (
    "the folders of %s look like fields of its records (%s), which are left out: pass hive_partitioning=True for "
    "records with these fields, or False for no warning"
)
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


class _Misfit(Exception):
    """A file has other content than the content that was read."""


class FileSource(Source[Any]):
    r"""The records of files; each file is a partition, named by its full path.

    Positions are bytes in text (after decompression), and rows in Parquet. Files may grow. Content that was read must
    not change: beside each position stands a digest of what was read, and a file that no longer has it raises
    `FileReplaced`. A log that was rotated is recognised under its new name, if the glob matches that name. Links count
    as what they lead to, except for those that lead back up. Names that begin with a dot do not count. In a name that
    is no UTF-8, the wrong bytes are escaped, as in ``caf\xe9.csv``, and so is any backslash.

    Parameters
    ----------
    glob : str or path
        A path or an fsspec URI with the wildcards ``*``, ``?`` and ``[…]``, and ``**`` between slashes for folders at
        any depth. A web server must say how long a file is, and answer requests for a part of it.
    format : {"json", "csv", "parquet", "lines"}
        JSON with one value in each line; CSV with a header or `columns`, whose records are dicts of text, read as
        Python's csv module reads them; Parquet; or lines, each of them a str without its end. Text is UTF-8. Names that
        end in ``.gz``, ``.bz2`` or ``.zst``, in any case, are decompressed, except for Parquet.
    delimiter : str
        What is between the fields of CSV: one character, such as ``;`` or a tab.
    columns : sequence of str, optional
        The names of the columns of CSV without a header, as Spark writes it by default.
    bounded : bool
        True: every file is read to its end once. False: new files and what is added to files is read as it comes. Then
        a last line without an end waits for the rest of it.
    timestamp : str, optional
        The field that is the timestamp of a record: a whole number of milliseconds since the epoch, also as text, or a
        date with a time, also as text in ISO 8601. Without a time zone it is in UTC.
    poll_interval : float or timedelta
        Seconds between two listings of an unbounded source. One listing serves all files, however many they are. If
        it takes long, it comes less often.
    hive_partitioning : bool, optional
        Whether folders with names such as ``day=2024-01-31``, which Spark writes with `partitionBy`, give each record a
        field with that name and the value as text. A field of the record itself has precedence. If you do not say, the
        fields are left out, and the log has a warning.
    max_record_bytes : int
        The most bytes of a line, or of a CSV record.
    on_error : {"fail", "skip", "dead_letter"}
        What to do about a record that cannot be decoded, named by file and position. The last two continue with the
        next record. A file that is damaged or cut off counts as one bad record, and the rest of it is left out until it
        changes.
    on_replaced : {"fail", "read"}
        What to do about a file that has other content than the content that was read: raise `FileReplaced`, or read it
        from the beginning, as another partition.
    retry : RetryPolicy or None
        How often the storage is asked again after a transient error; by default for about 75 seconds.
    storage_options : dict, optional
        Passed to the fsspec filesystem.

    Raises
    ------
    ConfigError
        An argument is invalid.

    Notes
    -----
    A timestamp of Spark is an instant in UTC. The same form in a file of another writer, INT96, has no zone.

    Undecodable records are `MalformedRecord`, `RecordTooLong` or `BrokenFile`. Reading raises `FileReplaced`,
    `FileShrank` if a file ends before the position that was read, and `FileVanished` if one is removed before it was
    read to its end. A file that is removed later ends its partition; if it comes back, the rest is read. If no file
    matches at the start, the log has a warning; `FileMissing` is raised if a bounded source names one file without
    wildcards, and `FileRefused` if the storage does not let this process list or read the files.

    Examples
    --------
    >>> source = FileSource("/data/orders/*.jsonl", "json", timestamp="ordered_at", on_error="dead_letter")
    >>> source.bounded
    True
    """

    origin = "files"

    def __init__(
        self,
        glob: str | PathLike[str],
        format: str,
        *,
        delimiter: str = ",",
        columns: Sequence[str] | None = None,
        bounded: bool = True,
        timestamp: str | None = None,
        poll_interval: Duration = 1.0,
        hive_partitioning: bool | None = None,
        max_record_bytes: int = 16 * 1024 * 1024,
        on_error: OnError = "fail",
        on_replaced: str = "fail",
        retry: RetryPolicy | None = RETRY,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        check_choice("format", format, FORMATS)
        check_flag("bounded", bounded)
        self.bounded = bounded
        # A subclass may read something else, and a type that a program registers with Arrow may give any value.
        self.is_decoded: bool = type(self).read is FileSource.read and format != "parquet"
        self._pattern = check_location("glob", glob, reason="name files by one pattern, as in '/data/*.csv'")
        if any("**" in part and part != "**" for part in self._pattern.split("/")):
            reason = "** stands for folders, alone between slashes: use * in the name of a file"
            raise ConfigError("glob", redacted(self._pattern), reason)
        self._format = format
        check_delimiter(delimiter, format)
        self._delimiter, self._columns = delimiter, _checked_columns(columns, format)
        reason = "name the column, or leave it out"
        check_instance("timestamp", timestamp, (str, type(None)), reason=reason)
        self._timestamp = timestamp
        self.look_interval: float = check_positive_duration("poll_interval", poll_interval)
        if hive_partitioning is not None:
            check_flag("hive_partitioning", hive_partitioning)
        if hive_partitioning and format == "lines":
            raise ConfigError("hive_partitioning", hive_partitioning, "lines have no fields: leave it out")
        self._hive_partitioning = hive_partitioning
        self._limit = check_integer("max_record_bytes", max_record_bytes, 1, reason="a record has at least one byte")
        check_on_error(on_error)
        check_choice("on_replaced", on_replaced, ("fail", "read"))
        check_instance("retry", retry, (RetryPolicy, type(None)), reason="pass a RetryPolicy, or None")
        self.on_error: OnError = on_error
        self.retry = retry
        self._reads_replaced = on_replaced == "read"
        self._storage_options = options_of(storage_options)
        self._forget()

    def _forget(self) -> None:
        """Be as before the first run."""
        self._known: dict[str, FilePartition] = {}
        self._gone: set[str] = set()
        self._files: FileAccess | None = None
        self._has_listed = False
        self._has_told_of_folders = False

    def __repr__(self) -> str:
        return representation(self, {"glob": redacted(self._pattern), "format": self._format})

    async def open(self) -> None:
        """Get ready; a source that was not opened does so when it is used."""
        self._prepare()

    async def restore(self, known: Mapping[PartitionId, Reached]) -> None:
        """Take what identifies the content of each partition."""
        for name, one in known.items():
            identity = FileIdentity.loaded(one.content)
            if identity is not None and not one.position and not identity.is_done:
                identity = None  # nothing was read of it
            self._known[str(name)] = FilePartition(str(name) if identity is None else identity.path, identity)

    async def partitions(self) -> Iterable[PartitionId]:
        """Return the ids of all partitions. One that its reader found gone is left out once: then it may come back."""
        self._prepare()
        ids = await self._partitions.refresh()
        if not ids and not self._has_listed:
            if self.bounded and not self._known and {*"*?["}.isdisjoint(self._pattern):
                raise FileMissing(redacted(self._pattern))
            outcome = "so nothing is read" if self.bounded else "and the source waits for files"
            _log.warning("no file matches %s, %s: check the path", redacted(self._pattern), outcome)
        self._has_listed = True
        gone, self._gone = self._gone, set()
        return [one for one in ids if one not in gone]

    def read(self, partition: PartitionId, position: Any) -> AsyncIterator[list[Read[Any]] | Reached]:
        """Return an iterator of lists of records, from a byte (or a row of Parquet) on."""
        begin = 0 if position is None else check_integer("position", position, 0, reason="it counts bytes or rows")
        return self._read(str(partition), begin)

    def full_name(self, partition: PartitionId) -> str:
        """Return the URI of a file; content that has replaced other content has a number after it."""
        return f"file://{partition}" if str(partition).startswith("/") else str(partition)

    def for_another_run(self) -> FileSource:
        """Return a copy, which has the options only."""
        source = copy.copy(self)
        source._forget()
        return source

    async def close(self) -> None:
        """Stop listing, and end the threads."""
        if self._files is not None:
            files, changes = self._files, self._changes
            self._forget()
            await changes.close()
            await files.close()

    def _prepare(self) -> FileAccess:
        if self._files is None:
            is_decompressed = self._format != "parquet"
            files = FileAccess(self._pattern, self._storage_options, is_decompressed=is_decompressed)
            self._turns = asyncio.Semaphore(_OPEN_FILES_MAX)
            self._changes = Changes(files, self.look_interval)
            self._partitions = Partitions(self._known, files, self._changes, reads_replaced=self._reads_replaced)
            self._files = files
        return self._files

    async def _read(self, partition: str, position: int) -> AsyncIterator[list[Read[Any]] | Reached]:
        files = self._prepare()
        one = self._partitions.of(partition)
        while (name := one.name) is not None:  # which changes where the content moves
            seen = self._changes.stamp(name)
            if not _is_done(one, seen):
                fields = self._fields_of_folders(name)
                begun = self._blocks(files, name, one.identity, seen, position)
                try:
                    async with self._turns, aclosing(_pulled(files, begun)) as blocks:
                        async for block, identity in blocks:
                            one.identity = replace(identity, path=one.name or name)
                            if block:
                                items = self._items(block, name, position, fields)
                                position = _end_of(block)
                                yield items
                            yield Reached(position, one.identity.stored())
                except (_Misfit, FileVanished) as error:
                    if await self._partitions.is_found(one, name, seen):
                        continue
                    self._check_lost(error, one, name, seen, position)
                    break
            if self.bounded:
                break
            await self._changes.differs(name, seen)
            if self._changes.stamp(name) is None and not await self._partitions.is_found(one, name, seen):
                self._check_read_to_the_end(seen, name, position)
                break
        self._gone.add(partition)

    def _fields_of_folders(self, name: str) -> dict[str, str | None]:
        """Return what the folders of a file add to its records; warn once if that is left out."""
        fields = {} if self._format == "lines" or self._hive_partitioning is False else fields_of_folders(name)
        if self._hive_partitioning or not fields:
            return fields
        if not self._has_told_of_folders:
            self._has_told_of_folders = True
            _log.warning(_LEFT_OUT, redacted(name), ", ".join(fields))
        return {}

    def _check_lost(self, error: Exception, one: FilePartition, name: str, seen: Stamp | None, position: int) -> None:
        """Raise what it means that the content of a partition is nowhere, unless nothing of it is lost."""
        if isinstance(error, FileVanished):
            if position or not self._partitions.is_elsewhere(name, seen):
                raise error
        elif not self._partitions.give_up(one, name):
            stamp = self._changes.stamp(name)
            if stamp is not None and self._counts_bytes(name) and stamp.bytes < position:
                raise FileShrank(name, position) from None
            raise FileReplaced(name, position) from None

    def _check_read_to_the_end(self, seen: Stamp | None, name: str, position: int) -> None:
        if seen is not None and self._counts_bytes(name) and position < seen.bytes:
            raise FileVanished(name, position)

    def _counts_bytes(self, name: str) -> bool:
        return self._format != "parquet" and not is_compressed(name)

    def _items(self, block: Block, name: str, start: int, fields: Mapping[str, str | None]) -> list[Read[Any]]:
        """Return records with the fields that their folders add, and with their timestamps."""
        if self._timestamp is None and not fields:
            return block
        items: list[Read[Any]] = []
        for item in block:
            if isinstance(item, Undecodable):
                items.append(item)
                start = item.position
                continue
            value, _, end = item
            try:
                items.append((*self._completed(value, fields), end))
            except ValueError as error:
                items.append(Undecodable(value, end, MalformedRecord(name, start, str(error))))
            start = end
        return items

    def _completed(self, value: Any, fields: Mapping[str, str | None]) -> tuple[Any, int | None]:
        """Return a record with more fields, and its timestamp; raises `ValueError` with what it lacks."""
        if fields:
            if not isinstance(value, dict):
                raise ValueError(f"it is no object, which could have the fields of its folders: {', '.join(fields)}")
            value = {**fields, **value}
        if self._timestamp is None:
            return value, None
        found = value.get(self._timestamp) if isinstance(value, dict) else None
        timestamp = timestamp_in(found)
        if timestamp is None:
            raise ValueError(f"{self._timestamp}={in_message(found)} is neither milliseconds nor a date with a time")
        return value, timestamp

    # The methods below run on threads.

    def _blocks(
        self, files: FileAccess, name: str, known: FileIdentity | None, seen: Stamp | None, position: int
    ) -> Generator[tuple[Block, FileIdentity], None, None]:
        """Read one file on a thread, to its present end."""
        identity = FileIdentity(name, stamp=seen)
        try:
            with files.open(name) as file:
                content = files.content(file, name)
                if known is not None and not known.fits(content):
                    raise _Misfit
                identity = FileIdentity.of(content, name, seen)
                if known is None:
                    yield [], identity  # a snapshot may be cut in the middle of the first block
                else:
                    identity = replace(identity, tail=known.tail)
                for block, mark in self._decoded(file, content, name, position):
                    identity, position = identity.read_to(mark), _end_of(block)
                    yield block, identity
            yield [], replace(identity, is_done=True)
        except FileNotFoundError as error:
            raise FileVanished(name, position) from error
        except (Incomplete, Damaged, BrokenFile) as error:
            if isinstance(error, Incomplete) and not self.bounded:
                yield [], replace(identity, is_done=True)
                return
            fault = error if isinstance(error, BrokenFile) else BrokenFile(name, position, _reason_of(error))
            given_up = replace(identity, is_done=True)
            yield [Undecodable(b"", position, fault, given_up.stored())], given_up

    def _decoded(
        self, file: Any, content: Content, name: str, position: int
    ) -> Generator[tuple[Block, Mark | None], None, None]:
        if self._format == "parquet":
            mark = last_mark(file)
            for block in parquet_blocks(file, name, position, grows=not self.bounded):
                yield block, mark
            return
        reader = TextReader(
            content,
            name,
            max_record_bytes=self._limit,
            # What is compressed is whole when it can be decompressed to its end.
            grows=not self.bounded and not is_compressed(name),
            is_strict=self.on_error == "fail",
            delimiter=self._delimiter,
            columns=self._columns,
        )
        for block in reader.blocks(self._format, position):
            yield block, reader.mark


async def _pulled(
    files: FileAccess, blocks: Generator[tuple[Block, FileIdentity], None, None]
) -> AsyncGenerator[tuple[Block, FileIdentity], None]:
    try:
        while (block := await files.run(lambda: next(blocks, None))) is not None:
            yield block
    finally:
        files.submit(blocks.close)


def _checked_columns(columns: object, format: str) -> tuple[str, ...] | None:
    """Return the names of the columns of CSV without a header, checked."""
    if columns is None:
        return None
    if format != "csv":
        raise only_csv("columns", columns, format)
    if not isinstance(columns, list | tuple) or not columns or not all(isinstance(name, str) for name in columns):
        raise ConfigError("columns", columns, "pass a list with the names of all columns, or None for a header")
    if len(set(columns)) < len(columns):
        raise ConfigError("columns", columns, "a column is named twice")
    return tuple(columns)


def fields_of_folders(path: str) -> dict[str, str | None]:
    """Return the fields that the names of folders in a path stand for, as Hive, Spark, Arrow and DuckDB write them.

    Examples
    --------
    >>> fields_of_folders("/data/day=2024-01-31/city=S%C3%A3o Paulo/part-0.parquet")
    {'day': '2024-01-31', 'city': 'São Paulo'}
    """
    pairs = [folder.partition("=") for folder in path.split("/")[:-1]]
    return {
        unquote(name): None if value == _HIVE_NULL else unquote(value) for name, sign, value in pairs if name and sign
    }


def _end_of(block: Block) -> Any:
    newest = block[-1]
    return newest.position if isinstance(newest, Undecodable) else newest[2]


def _is_done(one: FilePartition, seen: Stamp | None) -> bool:
    """Return whether the listing shows that there is no more to read, so that the file need not be opened."""
    identity = one.identity
    return identity is not None and identity.is_done and identity.stamp is not None and identity.stamp == seen


def _reason_of(error: Exception) -> str:
    return "it is cut off" if isinstance(error, Incomplete) else str(error)
