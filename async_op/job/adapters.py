"""What users pass as sources and sinks, as objects of one shape."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Any

from async_op.arrow_stream import ArrowStream, has_arrow_stream, rows_of_stream
from async_op.connectors.sink import Sink
from async_op.connectors.source import Source
from async_op.job.errors import StreamAlreadyRead
from async_op.threads.own_thread import on_own_thread
from keygroups.arguments import is_asynchronous
from keygroups.errors import ConfigError

_ONLY = 0
"""The only partition of an iterable."""


class ArrowRows(Iterable[dict[str, Any]]):
    """The rows of a frame or table as dicts, as often as they are iterated."""

    def __init__(self, table: ArrowStream) -> None:
        self._table = table

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return rows_of_stream(self._table)


class IterableSource(Source[Any]):
    """An iterable or async iterable as a bounded source with one partition; the position counts its elements.

    Parameters
    ----------
    iterable : iterable or async iterable
        The same elements in the same order whenever it is iterated. After a restart, those of the snapshot are skipped.
    """

    bounded = True

    def __init__(self, iterable: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._iterable = iterable
        self._taken = 0

    def partitions(self) -> Sequence[int]:
        """Return the only partition."""
        return (_ONLY,)

    def read(self, partition: Any, position: Any) -> Iterator[Any] | AsyncIterator[Any]:
        """Return the elements from a position on."""
        start = position or 0
        is_once = iter_is_itself(self._iterable)
        if is_once and self._taken > start:
            raise StreamAlreadyRead(start, self._taken)
        skipped = start - self._taken if is_once else start
        if isinstance(self._iterable, AsyncIterable):
            return self._read_async(self._iterable, skipped, start)
        return self._read(self._iterable, skipped, start)

    def _read(self, iterable: Iterable[Any], skipped: int, start: int) -> Iterator[Any]:
        for number, value in enumerate(islice(iterable, skipped, None), start + 1):
            self._taken = number
            yield value, None, number

    async def _read_async(self, iterable: AsyncIterable[Any], skipped: int, start: int) -> AsyncIterator[Any]:
        number = start - skipped
        async for value in iterable:
            number += 1
            self._taken = max(self._taken, number)
            if number > start:
                yield value, None, number


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
