"""What users pass as sources and sinks, as objects of one shape."""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
    Sized,
)
from functools import partial
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

from async_op.cancellation import closed_after
from async_op.connectors.arrow_input import ArrowStream, has_arrow_stream, rows_of_stream
from async_op.connectors.conformance import check_connector
from async_op.connectors.errors import InputReplaced
from async_op.connectors.sink import Sink
from async_op.connectors.source import PartitionId, Reached, Source
from async_op.elements import Element
from async_op.job.errors import StreamAlreadyRead
from async_op.job.source_items import Items
from async_op.threads.own_thread import on_own_thread
from async_op.threads.read_ahead import generator_closed_after, read_ahead
from keygroups.arguments import check_callable, check_elements, hint_to_call, is_asynchronous
from keygroups.codec import pack
from keygroups.errors import ConfigError, KeyGroupsError
from keygroups.representation import counted, short

_ONLY = 0
"""The only partition of an iterable."""


class ArrowRows(Iterable[dict[str, Any]]):
    """The rows of a frame or table as dicts, as often as they are iterated."""

    def __init__(self, table: ArrowStream) -> None:
        self.table = table

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return rows_of_stream(self.table, "source")


_RUN = 1024
"""How many elements are handed on together, and at most read before they are wanted."""

_ALL_SAMPLED = 1024
_SAMPLED_EVERY = 64


class Samples:
    """A digest of elements of an iterable, by which a job notices that it gets other ones after a restart.

    The first 1,024 elements are in it, then every 64th and the last one. Of all, it would cost more than much of what a
    job does for an element.

    Attributes
    ----------
    count : int
        How many elements were looked at.
    """

    def __init__(self) -> None:
        self.count = 0
        self._digest = _hash()

    @property
    def next_stored(self) -> int:
        """How many elements there are when the digest is to be stored next: at first soon, as there may be few."""
        if self.count < _ALL_SAMPLED:
            return 1 << self.count.bit_length()
        return self.count - self.count % _RUN + _RUN

    def add(self, elements: Sequence[Any]) -> None:
        """Look at the elements that come next."""
        before, self.count = self.count, self.count + len(elements)
        dense = max(_ALL_SAMPLED - before, 0)
        sparse = dense - (before + dense) % _SAMPLED_EVERY + _SAMPLED_EVERY - 1
        for element in chain(elements[:dense], elements[sparse::_SAMPLED_EVERY]):
            self._digest.update(_bytes_of(element))

    def content(self, length: int | None, last: Any = None, *, is_end: bool = False) -> list[Any]:
        """Return what is stored: the length, the digest with its count, and a digest of the last element."""
        end = [self.count, _hash(_bytes_of(last)).digest()] if is_end else [0, b""]
        return [length, self.count, self._digest.digest(), *end]

    def skip(self, elements: Sequence[Any], stored: list[Any] | None) -> bool:
        """Look at elements that were read before; returns whether they match what was stored."""
        _, count, digest, last, last_digest = stored or (None, 0, b"", 0, b"")
        before = self.count
        is_same = True
        if before < last <= before + len(elements):
            is_same = last_digest == _hash(_bytes_of(elements[last - before - 1])).digest()
        if not before < count <= before + len(elements):
            self.add(elements)
            return is_same
        self.add(elements[: count - before])
        is_same &= self._digest.digest() == digest
        self.add(elements[count - before :])
        return is_same


_hash = partial(blake2b, digest_size=16)


def _bytes_of(element: Any) -> bytes:
    try:
        return pack(element, "an element of the source")
    except (KeyGroupsError, ValueError, RecursionError):
        return type(element).__qualname__.encode()  # a value that cannot be stored has no bytes to compare


class IterableSource(Source[Any]):
    """An iterable or async iterable as a bounded source with one partition; the position counts its elements.

    Parameters
    ----------
    iterable : iterable or async iterable
        The same elements in the same order whenever it is iterated. After a restart, the snapshot's are skipped.
        It may have more elements after them.

    Attributes
    ----------
    element_of : callable or None
        Returns the element of a value, with its timestamp; None if values have none.
    """

    bounded = True
    origin = "an iterable"
    retry = None  # an iterator cannot be asked for an element twice

    def __init__(self, iterable: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._iterable = iterable
        self.element_of: Callable[[Any], Element] | None = None
        self._taken = 0
        self._is_closed = False
        self._samples = Samples()
        self._stored: Any = None

    def __repr__(self) -> str:
        given = self._iterable.table if isinstance(self._iterable, ArrowRows) else self._iterable
        return type(given).__name__

    @property
    def is_once(self) -> bool:
        """Whether it can be iterated only once."""
        return iter_is_itself(self._iterable)

    async def restore(self, known: Mapping[PartitionId, Reached]) -> None:
        """Take the length and the samples of what was read, and compare the length."""
        one = known.get(_ONLY)
        self._stored = one.content if one is not None and one.position else None
        if one is not None and self._stored is not None:
            length, before = _length_of(self._iterable), self._stored[0]
            if length is not None and length < max(before or 0, one.position):
                raise _replaced(one.position, f"has {length} elements now, {max(before or 0, one.position)} before")

    def partitions(self) -> Sequence[int]:
        """Return the only partition."""
        return (_ONLY,)

    async def read(self, partition: Any, position: Any) -> AsyncIterator[Any]:
        """Yield the elements from a position on, in runs."""
        start = position or 0
        is_once = self.is_once
        if is_once and (self._taken > start or self._is_closed):
            raise StreamAlreadyRead(start, self._taken)
        number = self._taken if is_once else 0
        if not number:
            self._samples = Samples()
        newest: list[Any] = []
        async with closed_after(self._runs(number)) as runs:
            async for run in runs:
                if number < start:
                    skipped = run[: start - number]
                    self._skip(skipped)
                    number += len(skipped)
                    run = run[len(skipped) :]
                for piece in self._items(number, run):
                    yield piece
                number += len(run)
                newest = run
        if number < start:
            raise _replaced(start, f"has {counted(number, 'element')} now")
        if newest:
            yield Reached(number, self._samples.content(_length_of(self._iterable), newest[-1], is_end=True))

    def _runs(self, number: int) -> AsyncIterator[list[Any]]:
        """Return the iterable's elements in runs; what may block is read on a thread."""
        if isinstance(self._iterable, AsyncIterable):
            return self._singly(self._iterable)
        if isinstance(self._iterable, Collection):
            return _slices(self._iterable)
        elements = self._counted(self._iterable, number) if isinstance(self._iterable, Iterator) else self._iterable
        return read_ahead(elements, _RUN)

    async def _singly(self, iterable: AsyncIterable[Any]) -> AsyncIterator[list[Any]]:
        async with closed_after(iterable) as elements:
            self._is_closed = hasattr(elements, "aclose")
            async for element in elements:
                self._taken += 1
                yield [element]
            self._is_closed = False

    def _counted(self, elements: Iterator[Any], number: int) -> Iterator[Any]:
        with generator_closed_after(elements):
            self._is_closed = isinstance(elements, Generator)
            for self._taken, element in enumerate(elements, number + 1):
                yield element
            self._is_closed = False

    def _items(self, number: int, run: list[Any]) -> Iterator[Any]:
        """Yield a run as items, and the digest wherever it is to be stored."""
        samples, begin = self._samples, 0
        while begin < len(run):
            stored = samples.next_stored
            end = min(len(run), stored - number)
            samples.add(run[begin:end])
            if stored == 1:  # before the element, because a snapshot may be cut right after it
                yield Reached(0, samples.content(_length_of(self._iterable)))
            yield self._timed(run[begin:end], range(number + begin + 1, number + end + 1))
            if number + end == stored > 1:
                yield Reached(stored, samples.content(_length_of(self._iterable)))
            begin = end

    def _timed(self, values: list[Any], positions: Sequence[int]) -> Items:
        if self.element_of is None:
            return Items(values, None, positions)
        values, timestamps, _ = zip(*map(self.element_of, values), strict=True)  # type: ignore[assignment]
        return Items(values, timestamps, positions)

    def _skip(self, run: list[Any]) -> None:
        if not self._samples.skip(run, self._stored):
            raise _replaced(self._samples.count, "has other elements now")


async def _slices(collection: Collection[Any]) -> AsyncIterator[list[Any]]:
    elements = iter(collection)
    while run := list(islice(elements, _RUN)):
        yield run


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

    def __repr__(self) -> str:
        return short(self._write)

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
        It is no source, or one with a wrong attribute.
    """
    if isinstance(source, Source):
        check_connector(source)
        return source
    if has_arrow_stream(source):
        return IterableSource(rows_of_stream(source, "source") if iter_is_itself(source) else ArrowRows(source))
    if isinstance(source, str) or not isinstance(source, Iterable | AsyncIterable):
        reason = "pass a Source, an iterable, an async iterable, a data frame or a table"
        raise ConfigError("source", source, reason + hint_to_call(source))
    if isinstance(source, Set):
        reason = "its order may differ in another process, so a restart would lose elements; pass sorted(source)"
        raise ConfigError("source", type(source).__name__, reason)
    if isinstance(source, Iterable):
        check_elements("source", source)
    return IterableSource(source)


def sink_of(name: str, sink: Any) -> Sink[Any]:
    """Return what a user passed as a sink, as a `Sink`.

    Raises
    ------
    ConfigError
        It is no sink, or one with a wrong attribute.
    """
    if isinstance(sink, Sink):
        check_connector(sink)
        return sink
    reason = "pass a Sink, or a callable of (values, epoch)"
    if isinstance(sink, type):
        raise ConfigError(name, sink, reason)
    check_callable(name, sink, 2, reason=reason, awaited=True)
    return CallableSink(sink)


def check_two_sinks(sink: Any, dead_letters: Any) -> None:
    """Check that outputs and dead letters have a sink each.

    Raises
    ------
    ConfigError
        They have one. It would be called twice for an epoch, and the second call replaces what the first has written.
    """
    if sink is dead_letters or (inspect.ismethod(sink) and sink == dead_letters):
        reason = "it gets the outputs already: its second call for an epoch would replace them; pass another sink"
        raise ConfigError("dead_letters", dead_letters, reason)
