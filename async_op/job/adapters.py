"""What users pass as sources and sinks, as objects of one shape."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from hashlib import blake2b
from itertools import islice
from typing import Any

from async_op.arrow_stream import ArrowStream, has_arrow_stream, rows_of_stream
from async_op.cancellation import closed_after
from async_op.connectors.errors import InputReplaced
from async_op.connectors.sink import Sink
from async_op.connectors.source import PartitionId, Reached, Source
from async_op.job.errors import StreamAlreadyRead
from async_op.threads.own_thread import on_own_thread
from keygroups.arguments import is_asynchronous
from keygroups.codec import pack
from keygroups.errors import ConfigError, KeyGroupsError

_ONLY = 0
"""The only partition of an iterable."""


class ArrowRows(Iterable[dict[str, Any]]):
    """The rows of a frame or table as dicts, as often as they are iterated."""

    def __init__(self, table: ArrowStream) -> None:
        self.table = table

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return rows_of_stream(self.table)


_SAMPLED_MAX = 4096


class Samples:
    """A digest of some elements of an iterable, by which a job notices that it gets other ones after a restart.

    Not of all, because that would cost more than everything else that a job does for an element: of the first, second,
    fourth, eighth and so on, and from 4,096 on of every 4,096th.

    Attributes
    ----------
    count : int
        How many elements there were at the newest sample.
    digest : bytes
        The digest of all samples.
    """

    def __init__(self) -> None:
        self.count = 0
        self.digest = b""
        self.next = 1

    def take(self, count: int, value: Any) -> None:
        """Add an element to the samples; `count` is `next`."""
        self.count, self.next = count, count + min(count, _SAMPLED_MAX)
        try:
            packed = pack(value, "an element of the source")
        except (KeyGroupsError, ValueError, RecursionError):
            packed = type(value).__qualname__.encode()  # a value that cannot be stored has no bytes to compare
        self.digest = blake2b(self.digest + packed, digest_size=16).digest()


class IterableSource(Source[Any]):
    """An iterable or async iterable as a bounded source with one partition; the position counts its elements.

    Parameters
    ----------
    iterable : iterable or async iterable
        The same elements in the same order whenever it is iterated. After a restart, those of the snapshot are skipped.
        It may have more elements after them.
    """

    bounded = True
    retry = None  # an iterator cannot be asked for an element twice

    def __init__(self, iterable: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._iterable = iterable
        self._taken = 0
        self._samples = Samples()
        self._stored: Any = None

    async def restore(self, known: Mapping[PartitionId, Reached]) -> None:
        """Take the length and the samples of what was read, and compare the length."""
        one = known.get(_ONLY)
        self._stored = None if one is None else one.content
        if one is not None and self._stored is not None:
            length, before = _length_of(self._iterable), self._stored[0]
            if length is not None and length < max(before or 0, one.position or 0):
                raise _replaced(one.position, f"has {length} elements now, {max(before or 0, one.position)} before")

    def partitions(self) -> Sequence[int]:
        """Return the only partition."""
        return (_ONLY,)

    def read(self, partition: Any, position: Any) -> Iterator[Any] | AsyncIterator[Any]:
        """Return the elements from a position on."""
        start = position or 0
        is_once = iter_is_itself(self._iterable)
        if is_once and self._taken > start:
            raise StreamAlreadyRead(start, self._taken)
        number = self._taken if is_once else 0
        if not is_once or not number:
            self._samples = Samples()
        if isinstance(self._iterable, AsyncIterable):
            return self._read_async(self._iterable, number, start)
        return self._read(self._iterable, number, start)

    def _read(self, iterable: Iterable[Any], number: int, start: int) -> Iterator[Any]:
        length = _length_of(iterable)
        values = iter(iterable)
        if number < start:
            for value in islice(values, start - number):
                number += 1
                self._skip(number, value)
            self._check_skipped(number, start)
        samples = self._samples
        following = samples.next
        for number, value in enumerate(values, number + 1):  # noqa: B020 - it goes on where the loop above has ended
            self._taken = number
            if number == following:
                samples.take(number, value)
                following = samples.next
                yield value, None, number
                yield Reached(number, [length, samples.count, samples.digest])
            else:
                yield value, None, number

    async def _read_async(self, iterable: AsyncIterable[Any], number: int, start: int) -> AsyncIterator[Any]:
        samples, has_checked = self._samples, number >= start
        async with closed_after(iterable) as values:
            async for value in values:
                number += 1
                if number <= start:
                    self._skip(number, value)
                    continue
                if not has_checked:
                    self._check_skipped(start, start)
                    has_checked = True
                self._taken = number
                if number == samples.next:
                    samples.take(number, value)
                    yield value, None, number
                    yield Reached(number, [None, samples.count, samples.digest])
                else:
                    yield value, None, number
        if not has_checked:
            self._check_skipped(number, start)

    def _skip(self, number: int, value: Any) -> None:
        self._taken = number
        if number == self._samples.next:
            self._samples.take(number, value)
            stored = self._stored
            if stored is not None and stored[1] == number and stored[2] != self._samples.digest:
                raise _replaced(number, "has other elements now")

    def _check_skipped(self, number: int, start: int) -> None:
        if number < start:
            raise _replaced(start, f"has {number} elements now")


def _length_of(iterable: Any) -> int | None:
    sized = iterable.table if isinstance(iterable, ArrowRows) else iterable
    return len(sized) if isinstance(sized, Sized) else None


def _replaced(position: int, reason: str) -> InputReplaced:
    return InputReplaced(
        "the job's iterable",
        position,
        f"it {reason}",
        "append the new elements to the old ones, or give the job a new job_id",
    )


def iter_is_itself(iterable: Any) -> bool:
    """Return whether an iterable can be iterated only once."""
    return isinstance(iterable, Iterator | AsyncIterator)


class CallableSink(Sink[Any]):
    """A callable of (values, epoch) as a sink. One that is not asynchronous is called on a thread of its own.

    Parameters
    ----------
    write : callable
        Writes the outputs of an epoch; the same epoch again replaces them.
    """

    def __init__(self, write: Callable[[list[Any], int], Any]) -> None:
        self._write = write
        self._is_asynchronous = is_asynchronous(write)

    async def write(self, values: list[Any], epoch: int) -> None:
        """Write the outputs of an epoch."""
        if self._is_asynchronous:
            await self._write(values, epoch)
            return
        outcome = await on_own_thread(self._write, values, epoch)
        if inspect.isawaitable(outcome):
            await outcome


def source_of(source: Any) -> Source[Any]:
    """Return what a user passed as a source, as a `Source`.

    Raises
    ------
    ConfigError
        It is no source.
    """
    if isinstance(source, Source):
        return source
    if has_arrow_stream(source):
        return IterableSource(rows_of_stream(source) if iter_is_itself(source) else ArrowRows(source))
    if isinstance(source, Mapping):
        raise ConfigError("source", type(source).__name__, "only its keys would be read; pass list(source.items())")
    if isinstance(source, Set):
        reason = "its order may differ in another process, so a restart would lose elements; pass sorted(source)"
        raise ConfigError("source", type(source).__name__, reason)
    if isinstance(source, str | bytes | bytearray) or not isinstance(source, Iterable | AsyncIterable):
        raise ConfigError("source", source, "pass a Source, an iterable, an async iterable, a data frame or a table")
    return IterableSource(source)


def sink_of(name: str, sink: Any) -> Sink[Any]:
    """Return what a user passed as a sink, as a `Sink`.

    Raises
    ------
    ConfigError
        It is no sink.
    """
    if isinstance(sink, Sink):
        return sink
    if isinstance(sink, type) or not callable(sink):
        raise ConfigError(name, sink, "pass a Sink, or a callable of (values, epoch)")
    return CallableSink(sink)
