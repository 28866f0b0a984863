"""Runs an operator over a stream in this process, at the pace of the consumer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias, TypeVar

from async_op.arrow_stream import has_arrow_stream, rows_of_stream
from async_op.clock import Clock
from async_op.elements import Record, Watermark
from async_op.operator.operator import AsyncWaitOperator
from async_op.options import OperatorOptions
from async_op.threads.read_ahead import read_ahead
from keygroups.errors import ConfigError

_In = TypeVar("_In")

Stream: TypeAlias = Iterable[_In] | AsyncIterable[_In]


class LocalStream:
    """Feeds an operator from a stream and yields its outputs, at the pace at which the consumer iterates."""

    def __init__(self, options: OperatorOptions, clock: Clock | None) -> None:
        self._operator = AsyncWaitOperator.of(options, self._keep, clock=clock)
        self._kept_max = options.capacity
        self._kept = deque[Any]()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()

    def outputs(self, stream: Any) -> AsyncIterator[Any]:
        """Return the outputs for the elements of a stream; raises `ConfigError` at once if it is not a stream."""
        return self._run(_elements_of(stream))

    async def _run(self, stream: Stream[Any]) -> AsyncIterator[Any]:
        """Yield the outputs; closes the operator however the iteration ends."""
        feeder = None
        try:
            await self._operator.open()
            feeder = asyncio.create_task(self._feed(stream), name="keygroups feeder")
            feeder.add_done_callback(lambda _: self._changed.set())
            while True:
                while self._kept:
                    yield self._kept.popleft()
                self._taken.set()
                if feeder.done():
                    await feeder
                    if not self._kept:
                        return
                await self._changed.wait()
                self._changed.clear()
        finally:
            await self._end(feeder)

    async def _end(self, feeder: asyncio.Task[None] | None) -> None:
        """Clean up completely, even if cancelled: after the iteration nobody gets another chance to do so."""
        try:
            await self._close(feeder)
        except asyncio.CancelledError:
            await self._close(feeder)
            raise

    async def _close(self, feeder: asyncio.Task[None] | None) -> None:
        if feeder is not None:
            feeder.cancel()
            await asyncio.gather(feeder, return_exceptions=True)
        await self._operator.close()

    def _keep(self, element: Record | Watermark) -> None:
        assert isinstance(element, Record), "no watermark was put in"
        self._kept.append(element.value)
        self._changed.set()

    async def _feed(self, stream: Stream[Any]) -> None:
        process = self._operator.process
        if isinstance(stream, AsyncIterable):
            async for value in stream:
                await process(value)
                await self._wait_for_taker()
        elif isinstance(stream, Collection):
            for value in stream:
                await process(value)
                await self._wait_for_taker()
        else:
            ahead = (self._kept_max + 1) // 2
            self._kept_max += 1 - ahead  # elements read ahead are not counted twice
            async with aclosing(read_ahead(stream, ahead)) as values:
                async for value in values:
                    await process(value)
                    await self._wait_for_taker()
        await self._operator.finish()

    async def _wait_for_taker(self) -> None:
        while len(self._kept) >= self._kept_max:
            self._taken.clear()
            await self._taken.wait()


def _elements_of(stream: Any) -> Stream[Any]:
    if has_arrow_stream(stream):
        return rows_of_stream(stream)
    if isinstance(stream, str | bytes | bytearray | Mapping):
        raise ConfigError("stream", stream, "pass a list: Python would iterate over the parts of this object")
    if not isinstance(stream, Iterable | AsyncIterable):
        raise ConfigError("stream", stream, "pass an iterable, an async iterable or a Spark DataFrame")
    return stream
