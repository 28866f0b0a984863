"""Reads an iterable that may block on a separate thread, so that calls continue in the meantime."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from typing import Any

from async_op.errors import as_exception
from async_op.threads.blocking_work import beside
from async_op.threads.decimal_context import own_context
from keygroups.context_managers import contextmanager

_log = logging.getLogger(__name__)


async def read_ahead(iterable: Iterable[Any], limit: int) -> AsyncGenerator[list[Any], None]:
    """Yield the elements of an iterable in runs, and raise its errors, without blocking the event loop.

    The thread runs in a copy of the caller's context. In any case it closes a generator at the end. A thread that is in
    the middle of a read finishes that read first, because it cannot be stopped. Where nothing works beside the loop,
    an element is read when it is wanted.

    Parameters
    ----------
    iterable : iterable
        The iterable to read.
    limit : int
        The most elements that have been read but not yet processed.
    """
    if beside(asyncio.get_running_loop()).is_at_once:
        with generator_closed_after(iterable) as iterator:
            for value in iterator:
                yield [value]
        return
    reader = _Reader(iterable, limit)
    try:
        while values := await reader.take():
            yield values
            reader.done_with(len(values))
    finally:
        await reader.close()


@contextmanager
def generator_closed_after(iterable: Iterable[Any]) -> Iterator[Iterator[Any]]:
    """Give the iterator of an iterable, and close it if it is a generator, however the iteration ends."""
    iterator = iter(iterable)
    try:
        yield iterator
    finally:
        if isinstance(iterator, Generator):
            iterator.close()


class _Reader:
    """The reading thread and its buffer. The event loop calls the public methods."""

    def __init__(self, iterable: Iterable[Any], limit: int) -> None:
        self._iterable = iterable
        self._at_once = (limit + 1) // 2  # so that the thread reads while the other half is processed
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._changed = threading.Condition()
        self._room = limit
        self._values = deque[Any]()
        self._error: BaseException | None = None
        self._is_reading = self._has_ended = self._is_closed = False
        run = own_context().run
        threading.Thread(target=run, args=(self._read_all,), name="keygroups reader", daemon=True).start()

    async def take(self) -> list[Any]:
        """Return the elements read so far, at least one; an empty list means the end. Raises the iterable's error."""
        while True:
            with self._changed:
                if self._values:
                    return [self._values.popleft() for _ in range(min(len(self._values), self._at_once))]
                if self._has_ended:
                    break
                self._arrived.clear()
            await self._arrived.wait()
        if self._error is not None:
            raise as_exception(self._error)
        return []

    def done_with(self, count: int) -> None:
        """Allow the thread to read `count` more elements."""
        with self._changed:
            self._room += count
            self._changed.notify()

    async def close(self) -> None:
        """Stop reading, and wait for the thread unless it is in the middle of a read."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            is_reading = self._is_reading
        if not is_reading:
            await self._wait_for_end()

    async def _wait_for_end(self) -> None:
        while not self._has_ended:
            self._arrived.clear()
            await self._arrived.wait()

    # The methods below run on the thread.

    def _read_all(self) -> None:
        error = None
        try:
            with generator_closed_after(self._iterable) as iterator:
                self._read_from(iterator)
        except BaseException as raised:  # noqa: BLE001 - `take` raises it
            error = raised
        with self._changed:
            self._error, self._has_ended = error, True
            if self._is_closed and error is not None:
                _log.warning("a stream raised an error after its consumer had gone", exc_info=error)
            self._tell()

    def _read_from(self, iterator: Any) -> None:
        while self._wait_for_room():
            try:
                value = next(iterator)
            except StopIteration:
                return
            finally:
                self._is_reading = False
            with self._changed:
                self._values.append(value)
                if len(self._values) == 1:
                    self._tell()

    def _wait_for_room(self) -> bool:
        with self._changed:
            while not self._room and not self._is_closed:
                self._changed.wait()
            self._room -= 1
            self._is_reading = not self._is_closed
            return self._is_reading

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._arrived.set)
        except RuntimeError:  # the loop has been closed, and its tasks with it
            self._is_closed = True
