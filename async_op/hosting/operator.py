"""The operator as a host needs it: it takes in without waiting, may be held, and tells what a poll asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count

from async_op.elements import Element, Watermark
from async_op.hosting.errors import HostFailed
from async_op.hosting.restoring import Waiting, fitting_part
from async_op.in_flight.capture import capture_entry, capture_watermark
from async_op.in_flight.entries import WatermarkEntry, new_entry
from async_op.in_flight.keys import KeyAssignment
from async_op.operator.operator import AsyncWaitOperator
from snapshots import InFlightElement, SubtaskRestore, SubtaskSnapshot
from snapshots.format.in_flight_elements import RestoredQueue


class ResidentOperator(AsyncWaitOperator):
    """An operator whose elements wait outside of it. Parameters as of `AsyncWaitOperator`."""

    __slots__ = ("_left_over",)

    @property
    def left_over(self) -> list[Waiting]:
        """What the operator was opened with and had no room for, in order; for whoever feeds it."""
        return self._left_over

    async def open(self, restore: SubtaskRestore | None = None, *, preload: bool = True) -> None:
        """Open the function and take over what fits of a snapshot; the rest is `left_over`."""
        self._left_over: list[Waiting] = []
        await super().open(restore, preload=preload)

    async def room(self) -> None:
        """Wait until an element fits."""
        await self._check().back_pressure.wait_for_room()

    def offer(self, source: Iterator[Element]) -> None:
        """Take in as many elements as there is room for, without waiting."""
        self._check().back_pressure.take_some(source)

    def stop(self) -> None:
        """Begin no more calls, and let nothing leave; those that run go on until `close`."""
        self._fail(HostFailed("it makes no calls after its final cut"))

    def hold(self) -> None:
        """Fire no timers for now."""
        timers = self._readable().timers
        if timers is not None:
            timers.pause()

    def release(self) -> None:
        """Fire timers again."""
        timers = self._readable().timers
        if timers is not None:
            timers.resume()

    @property
    def failure(self) -> BaseException | None:
        """What has ended the operator."""
        return self._lifecycle.obstacle

    @property
    def is_loaded(self) -> bool:
        """Whether all restored state is in memory."""
        return self._readable().dispatch.is_loaded

    @property
    def accepted(self) -> int:
        """The sequence number of the next element."""
        return self._readable().in_flight.accepted

    @property
    def oldest(self) -> int | None:
        """The sequence number of the oldest element whose call has not returned."""
        first = next(iter(self._readable().in_flight.queue.pending()), None)
        return None if first is None else first.sequence

    async def snapshot(self, waiting: Iterable[Waiting] = ()) -> SubtaskSnapshot:
        """Return the state and the elements in flight, and behind them those that wait: uncalled, their time whole."""
        cut = await super().snapshot()
        first = max((element.sequence for element in cut.in_flight), default=-1) + 1
        keys = self._readable().keys
        held = (self._capture(one, keys, sequence) for one, sequence in zip(waiting, count(first), strict=False))
        return replace(cut, in_flight=(*cut.in_flight, *held))

    def _capture(self, waiting: Waiting, keys: KeyAssignment, sequence: int) -> InFlightElement:
        if isinstance(waiting, Watermark):
            return capture_watermark(WatermarkEntry(sequence, waiting.timestamp), keys)
        entry = new_entry(*waiting, sequence)
        if self._options.key_by is not None:
            with suppress(Exception):  # its key is wrong: the error policy decides once it comes in
                keys.set_key(entry)
        return capture_entry(entry, keys, 0.0)

    def _fitting(self, queue: RestoredQueue) -> RestoredQueue:
        fits, self._left_over = fitting_part(queue, self._options)
        return fits
