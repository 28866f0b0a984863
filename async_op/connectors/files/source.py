"""Files as partitions, read to their end or for as long as they grow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from os import PathLike
from typing import Any, TypeVar

from async_op.connectors.errors import BrokenFile, FileReplaced, FileShrank, FileVanished, MalformedRecord
from async_op.connectors.files.compression import Content, Damaged, Incomplete, content_of, is_compressed
from async_op.connectors.files.identity import FileIdentity
from async_op.connectors.files.listing import Changes, Glob, Stamp
from async_op.connectors.files.parquet import parquet_blocks
from async_op.connectors.files.text import MARK_BYTES, Block, Mark, TextReader
from async_op.connectors.own_threads import OwnThreads
from async_op.connectors.retrying import RETRY
from async_op.connectors.source import PartitionId, Reached, Read, Source, Undecodable
from async_op.dead_letters import OnError
from async_op.elements import TIMESTAMP_MAX
from async_op.retry import RetryPolicy
from keygroups.arguments import (
    Duration,
    check_choice,
    check_instance,
    check_integer,
    check_location,
    check_positive_duration,
)
from keygroups.errors import in_message
from keygroups.representation import representation
from snapshots.filesystem import redacted

_log = logging.getLogger(__name__)

FORMATS = ("json", "csv", "parquet", "lines")
_THREADS = 4
_OPEN_FILES_MAX = 64
"""How many files are read side by side; the others wait for their turn, so that handles do not run out."""
_T = TypeVar("_T")


@dataclass(slots=True)
class _Known:
    """A partition: where its content is now, and what identifies it. Its id is the name under which it was found first.

    Attributes
    ----------
    name : str or None
        The file; None if the content is nowhere, and other content has taken its name.
    identity : FileIdentity or None
        What was read; None if nothing was.
    """

    name: str | None
    identity: FileIdentity | None = None


class _Misfit(Exception):
    """A file has other content than the content that was read."""


class FileSource(Source[Any]):
    """The records of files; each file is a partition, named by its full path.

    Positions are bytes in text (after decompression), and rows in Parquet. Files may grow. Content that was read must
    not change: beside each position stands a digest of what was read, and a file that no longer has it raises
    `FileReplaced`. A log that was rotated is recognised under its new name, if the glob matches that name. Links count
    as what they lead to. Names that begin with a dot do not count.

    Parameters
    ----------
    glob : str or path
        A path or an fsspec URI with the wildcards ``*``, ``**``, ``?`` and ``[…]``.
    format : {"json", "csv", "parquet", "lines"}
        JSON with one value in each line; CSV with a header, whose records are dicts of text, read as Python's csv
        module reads them; Parquet; or lines, each of them a str without its end. Text is UTF-8. Names that end in
        ``.gz``, ``.bz2`` or ``.zst``, in any case, are decompressed, except for Parquet.
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
    Undecodable records are `MalformedRecord`, `RecordTooLong` or `BrokenFile`. Reading raises `FileReplaced`,
    `FileShrank` if a file ends before the position that was read, and `FileVanished` if one is removed before it was
    read to its end. A file that is removed later ends its partition; if it comes back, the rest is read. If no file
    matches at the start, the log has a warning.

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
        bounded: bool = True,
        timestamp: str | None = None,
        poll_interval: Duration = 1.0,
        max_record_bytes: int = 16 * 1024 * 1024,
        on_error: OnError = "fail",
        on_replaced: str = "fail",
        retry: RetryPolicy | None = RETRY,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        check_choice("format", format, FORMATS)
        self.bounded = bounded
        self._pattern = check_location("glob", glob, reason="name files by one pattern, as in '/data/*.csv'")
        self._format = format
        self._timestamp = timestamp
        self._interval = check_positive_duration("poll_interval", poll_interval, reason="more than zero")
        self._limit = check_integer("max_record_bytes", max_record_bytes, 1, reason="a record has at least one byte")
        check_choice("on_error", on_error, ("fail", "skip", "dead_letter"))
        check_choice("on_replaced", on_replaced, ("fail", "read"))
        check_instance("retry", retry, (RetryPolicy, type(None)), reason="pass a RetryPolicy, or None")
        self.on_error: OnError = on_error
        self.retry = retry
        self._reads_replaced = on_replaced == "read"
        self._storage_options = dict(storage_options or {})
        self._found: Glob | None = None
        self._known: dict[str, _Known] = {}
        self._gone: set[str] = set()
        self._threads: OwnThreads | None = None
        self._has_listed = False

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
            self._known[str(name)] = _Known(str(name) if identity is None else identity.path, identity)

    async def partitions(self) -> Iterable[PartitionId]:
        """Return the ids of all partitions. One that its reader found gone is left out once: then it may come back."""
        self._prepare()
        files = await self._changes.refresh()
        if not files and not self._has_listed:
            outcome = "so nothing is read" if self.bounded else "and the source waits for files"
            _log.warning("no file matches %s, %s: check the path", redacted(self._pattern), outcome)
        self._has_listed = True
        if self._reads_replaced or self._unclaimed():
            await self._notice_moves()
        for name in self._unclaimed():
            self._known[self._new_id(name)] = _Known(name)
        ids = {one.name: partition for partition, one in self._known.items()}
        gone, self._gone = self._gone, set()
        return [ids[name] for name in files if name in ids and ids[name] not in gone]

    def read(self, partition: PartitionId, position: Any) -> AsyncIterator[list[Read[Any]] | Reached]:
        """Return an iterator of lists of records, from a byte (or a row of Parquet) on."""
        begin = 0 if position is None else check_integer("position", position, 0, reason="bytes or rows")
        return self._read(str(partition), begin)

    def full_name(self, partition: PartitionId) -> str:
        """Return the URI of a file; content that has replaced other content has a number after it."""
        return f"file://{partition}" if str(partition).startswith("/") else str(partition)

    async def close(self) -> None:
        """Stop listing, and end the threads."""
        if self._threads is not None:
            threads, self._threads = self._threads, None
            self._gone.clear()
            self._known.clear()
            await self._changes.close()
            await threads.close()

    def _prepare(self) -> None:
        if self._threads is None:
            self._threads = OwnThreads("keygroups files", _THREADS)
            self._turns = asyncio.Semaphore(_OPEN_FILES_MAX)
            self._moving = asyncio.Lock()
            self._changes = Changes(self._list_files, self._interval)

    async def _read(self, partition: str, position: int) -> AsyncIterator[list[Read[Any]] | Reached]:
        self._prepare()
        known = self._known.setdefault(partition, _Known(partition))
        while (name := known.name) is not None:  # which changes where the content moves
            seen = self._changes.stamp(name)
            if not _is_done(known, seen):
                begun = self._blocks(name, known.identity, seen, position)
                try:
                    async with self._turns, aclosing(self._pulled(begun)) as blocks:
                        async for block, identity in blocks:
                            known.identity = replace(identity, path=known.name or name)
                            if block:
                                items = self._items(block, name, position)
                                position = _end_of(block)
                                yield items
                            yield Reached(position, known.identity.stored())
                except _Misfit:
                    await self._follow(known, name, position)
                    continue
            if self.bounded:
                break
            await self._changes.differs(name, seen)
            if self._changes.stamp(name) is None and not await self._has_moved(known, name):
                self._check_read_to_the_end(seen, name, position)
                break
        self._gone.add(partition)

    # Which partition has which file.

    def _unclaimed(self) -> list[str]:
        claimed = {one.name for one in self._known.values()}
        return [name for name in self._changes.files() if name not in claimed]

    def _new_id(self, name: str) -> str:
        """Return the id of a new partition: ids are never used twice, because ids of elements are made of them."""
        number, found = 1, name
        while found in self._known:
            number += 1
            found = f"{name}#{number}"
        return found

    async def _notice_moves(self) -> None:
        """Find the content of partitions whose files are no longer as they were."""
        for one in self._known.values():
            name, identity = one.name, one.identity
            stamp = None if name is None else self._changes.stamp(name)
            if name is None or identity is None or stamp == identity.stamp:
                continue
            if stamp is None or not await self._has(name, identity):
                is_found = await self._has_moved(one, name)
                if not is_found and stamp is not None and self._reads_replaced:
                    self._give_up(one, name)

    async def _follow(self, known: _Known, name: str, position: int) -> None:
        """Find the content of a partition whose file has other content; raises if it is nowhere."""
        await self._changes.refresh()  # a log is copied, then cut: the listing may have seen only the second
        if await self._has_moved(known, name):
            return
        if self._reads_replaced:
            self._give_up(known, name)
            return
        stamp = self._changes.stamp(name)
        if stamp is not None and self._counts_bytes(name) and stamp.bytes < position:
            raise FileShrank(name, position)
        raise FileReplaced(name, position)

    def _give_up(self, known: _Known, name: str) -> None:
        if known.name == name:
            _log.warning("%s has other content than before, and is read from its beginning", name)
            known.name = None

    async def _has_moved(self, known: _Known, old: str) -> bool:
        """Look for the content of a partition under the names that no partition has."""
        async with self._moving:
            if known.name != old:
                return known.name is not None  # the listing and the reader have both noticed it
            identity = known.identity
            if identity is None or not identity.head[0]:
                return False
            for name in self._unclaimed():
                if self._may_be(name, old, identity) and await self._has(name, identity):
                    _log.info("%s is now %s, and is read on there", old, name)
                    known.name, known.identity = name, replace(identity, path=name, is_done=False)
                    return True
        return False

    async def _has(self, name: str, identity: FileIdentity) -> bool:
        """Return whether a file has the content of a partition."""
        return await self._on_a_thread(lambda: self._fits(name, identity))

    def _may_be(self, name: str, old_name: str, identity: FileIdentity) -> bool:
        """Return whether a file may have the content of a partition.

        If the old name has other content now, the content decides. If nothing has the old name, a file with equal
        content may well be a new one, such as the next report that says the same. So it must be the same file on the
        disk, or the file in compressed form.
        """
        stamp = self._changes.stamp(name)
        if self._changes.stamp(old_name) is not None:
            return True
        if is_compressed(name) and not is_compressed(identity.path):
            return True
        old = identity.stamp
        if stamp is None or old is None or stamp.file is None or stamp.file != old.file:
            return False
        return stamp.changed == old.changed or stamp.bytes > old.bytes

    # Reading.

    async def _pulled(
        self, blocks: Generator[tuple[Block, FileIdentity], None, None]
    ) -> AsyncGenerator[tuple[Block, FileIdentity], None]:
        try:
            while (block := await self._on_a_thread(lambda: next(blocks, None))) is not None:
                yield block
        finally:
            if self._threads is not None:
                self._threads.submit(blocks.close)

    def _check_read_to_the_end(self, seen: Stamp | None, name: str, position: int) -> None:
        if seen is not None and self._counts_bytes(name) and position < seen.bytes:
            raise FileVanished(name, position)

    def _counts_bytes(self, name: str) -> bool:
        return self._format != "parquet" and not is_compressed(name)

    async def _list_files(self) -> dict[str, Stamp]:
        return await self._on_a_thread(lambda: self._glob().files())

    async def _on_a_thread(self, work: Callable[[], _T]) -> _T:
        assert self._threads is not None, "the source is closed after its readers"
        return await self._threads.run(work)

    def _items(self, block: Block, name: str, start: int) -> list[Read[Any]]:
        if self._timestamp is None:
            return block
        items: list[Read[Any]] = []
        for item in block:
            if isinstance(item, Undecodable):
                items.append(item)
                start = item.position
                continue
            value, _, end = item
            timestamp = _timestamp_of(value, self._timestamp)
            if timestamp is None or not -TIMESTAMP_MAX - 1 <= timestamp <= TIMESTAMP_MAX:
                found = value.get(self._timestamp) if isinstance(value, dict) else None
                shown = in_message(found)
                reason = f"{self._timestamp}={shown} is neither milliseconds nor a datetime with a time zone"
                items.append(Undecodable(value, end, MalformedRecord(name, start, reason)))
            else:
                items.append((value, timestamp, end))
            start = end
        return items

    # The methods below run on threads.

    def _glob(self) -> Glob:
        import fsspec.core  # not loaded by programs that read no files

        if self._found is None:
            self._found = Glob(*fsspec.core.url_to_fs(self._pattern, **self._storage_options))
        return self._found

    def _open(self, name: str) -> Any:
        return self._glob().filesystem.open(self._glob().path(name), "rb")

    def _content(self, file: Any, name: str) -> Content:
        return content_of(file, "" if self._format == "parquet" else name)

    def _fits(self, name: str, identity: FileIdentity) -> bool:
        try:
            with self._open(name) as file:
                return identity.fits(self._content(file, name))
        except (FileNotFoundError, Damaged, Incomplete):
            return False

    def _blocks(
        self, name: str, known: FileIdentity | None, seen: Stamp | None, position: int
    ) -> Generator[tuple[Block, FileIdentity], None, None]:
        """Read one file on a thread, to its present end."""
        identity = FileIdentity(name, stamp=seen)
        try:
            with self._open(name) as file:
                content = self._content(file, name)
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
            end = file.seek(0, 2)
            file.seek(max(end - MARK_BYTES, 0))
            mark = Mark(end, file.read(MARK_BYTES))
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
        )
        for block in reader.blocks(self._format, position):
            yield block, reader.mark


def _end_of(block: Block) -> Any:
    newest = block[-1]
    return newest.position if isinstance(newest, Undecodable) else newest[2]


def _is_done(known: _Known, seen: Stamp | None) -> bool:
    """Return whether the listing shows that there is no more to read, so that the file need not be opened."""
    identity = known.identity
    return identity is not None and identity.is_done and identity.stamp is not None and identity.stamp == seen


def _reason_of(error: Exception) -> str:
    return "it is cut off" if isinstance(error, Incomplete) else str(error)


def _timestamp_of(value: Any, field: str) -> int | None:
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
    return None
