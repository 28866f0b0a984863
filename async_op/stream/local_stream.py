"""Runs an operator over a stream in this process, at the pace of the consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Collection, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from async_op.calls.value_checks import Vet
from async_op.cancellation import closed_after, to_the_end
from async_op.clock import Clock, check_clock
from async_op.connectors.arrow_input import has_arrow_stream, rows_of_stream
from async_op.elements import Element
from async_op.functions.base import Function
from async_op.in_flight.in_flight import OutputValues
from async_op.job.waiting import heard
from async_op.operator.open_function import end_after_failure
from async_op.operator.operator import AsyncWaitOperator
from async_op.operator.subtask_info import SubtaskInfo
from async_op.options import OperatorOptions
from async_op.shared_objects import Use
from async_op.stream.timestamps import LAST_WATERMARK, Timestamps
from async_op.threads.read_ahead import read_ahead
from keygroups.arguments import check_elements, hint_to_call
from keygroups.errors import ConfigError

_In = TypeVar("_In")

Stream: TypeAlias = Iterable[_In] | AsyncIterable[_In]


class LocalStream:
    """Feeds an operator from a stream and yields its outputs, at the pace at which the consumer iterates.

    An element is pulled from the stream only while there is room for it and for its outputs. Elements go in and outputs
    come out many at a time: a wake-up of the feeding task and of the consumer for each of them would cost more than
    the operator.
    """

    def __init__(
        self,
        options: OperatorOptions,
        clock: Clock | None,
        timestamps: Timestamps | None = None,
        vet: Vet | None = None,
    ) -> None:
        check_clock(clock)
        self._options = options
        self._clock = clock
        self._vet = vet
        self._kept = OutputValues()
        self._kept_max = options.capacity
        self._taken = asyncio.Event()
        self._timestamps = timestamps
        # In order, watermarks change nothing unless timers wait for them, and each takes up the room of an element.
        self._watermarks = timestamps if options.mode != "ordered" or options.function.has_timers else None
        self._has_more = True

    def outputs(self, stream: Any) -> AsyncGenerator[Any, None]:
        """Return the outputs for the elements of a stream; raises `ConfigError` at once if it is not a stream."""
        return self._run(_elements_of(stream))

    async def _run(self, stream: Stream[Any]) -> AsyncGenerator[Any, None]:
        """Yield the outputs; closes the operator however the iteration ends."""
        feeder, kept, take = None, self._kept, self._kept.popleft
        # Streams of one program, as in a server for each request, may be given one object, and open it at once.
        function = Use(self._options.function)
        self._operator = self._operator_of(function.own)
        try:
            with heard("opening the function"):
                await self._operator.open()
            feeder = asyncio.create_task(self._feed(stream), name="keygroups feeder")
            feeder.add_done_callback(lambda _: self._operator.wake())
            while True:
                while kept:
                    yield take()
                self._taken.set()
                if feeder.done():
                    with heard("reading the stream"):
                        await feeder
                    if not kept:
                        return
                else:
                    await self._operator.next_change()
        except Exception:
            await end_after_failure(self._end(feeder), function.own)
            raise
        finally:
            try:
                with heard("closing the function"):
                    await self._end(feeder)
            finally:
                function.end()

    def _operator_of(self, function: Function) -> _StreamOperator:
        options, info = replace(self._options, function=function), SubtaskInfo(vet=self._vet)
        return _StreamOperator.of(options, self._kept, subtask_info=info, clock=self._clock)

    async def _end(self, feeder: asyncio.Task[None] | None) -> None:
        """Clean up completely, even if cancelled: after the iteration there is no other chance."""
        await to_the_end(asyncio.ensure_future(self._close(feeder)))

    async def _close(self, feeder: asyncio.Task[None] | None) -> None:
        if feeder is not None:
            feeder.cancel()
            await asyncio.gather(feeder, return_exceptions=True)
        await self._operator.close()

    async def _feed(self, stream: Stream[Any]) -> None:
        if isinstance(stream, AsyncIterable):
            async with closed_after(stream) as values:
                async for value in values:
                    await self._feed_one(value)
        elif isinstance(stream, Collection):
            await self._feed_all(iter(stream))
        else:
            ahead = (self._kept_max + 1) // 2
            self._kept_max += 1 - ahead  # elements read ahead are not counted twice
            async with aclosing(read_ahead(stream, ahead)) as runs:
                async for run in runs:
                    await self._feed_all(iter(run))
        if self._watermarks is not None:
            await self._operator.process_watermark(LAST_WATERMARK)
        await self._operator.finish()

    async def _feed_one(self, value: Any) -> None:
        timestamp = None
        if self._timestamps is not None:
            value, timestamp, _ = self._timestamps.element(value)
        if self._watermarks is not None and self._watermarks.is_ahead:
            await self._operator.process_watermark(self._watermarks.take())
        await self._operator.process(value, timestamp)
        await self._wait_for_taker()

    async def _feed_all(self, values: Iterator[Any]) -> None:
        if self._watermarks is not None:
            for value in values:  # a watermark may come between any two of them
                await self._feed_one(value)
            return
        self._has_more = True
        while self._has_more:
            await self._operator.process_all(self._wanted(values))
            await self._wait_for_taker()

    def _wanted(self, values: Iterator[Any]) -> Iterator[Element]:
        """Return elements as long as the consumer keeps up."""
        kept, kept_max, timestamps = self._kept, self._kept_max, self._timestamps
        for value in values:
            yield (value, None, None) if timestamps is None else timestamps.element(value)
            if len(kept) >= kept_max:
                return
        self._has_more = False

    async def _wait_for_taker(self) -> None:
        while len(self._kept) >= self._kept_max:
            self._taken.clear()
            await self._taken.wait()


class _StreamOperator(AsyncWaitOperator):
    """An operator whose consumer waits for its outputs."""

    __slots__ = ()

    async def next_change(self) -> None:
        """Wait until something leaves, or until `wake`; never raises the operator's own failure."""
        await self._waiters.next_wake()

    def wake(self) -> None:
        """Let the consumer look."""
        self._waiters.wake()


def _elements_of(stream: Any) -> Stream[Any]:
    if has_arrow_stream(stream):
        return rows_of_stream(stream, "stream")
    if not isinstance(stream, Iterable | AsyncIterable):
        reason = "pass an iterable, an async iterable or a Spark DataFrame; a Source needs `snapshots` and `job_id`"
        raise ConfigError("stream", stream, reason + hint_to_call(stream))
    if isinstance(stream, Iterable):
        check_elements("stream", stream)
    return stream
