"""The operator as a host needs it: it takes in what fits without waiting, can be held, and can be polled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from itertools import count

from async_op.elements import Element, Watermark
from async_op.hosting.counters import Counted, counted_by
from async_op.hosting.errors import HostFailed
from async_op.hosting.restoring import Waiting, fitting_part
from async_op.in_flight.capture import capture_entry, capture_watermark
from async_op.in_flight.entries import WatermarkEntry, new_entry
from async_op.in_flight.keys import KeyAssignment
from async_op.operator.operator import AsyncWaitOperator
from async_op.resilience.lending import Allowance, Holdings
from snapshots import InFlightElement, SubtaskRestore, SubtaskSnapshot
from snapshots.format.in_flight_elements import RestoredQueue


class ResidentOperator(AsyncWaitOperator):
    """An operator whose elements wait outside until it has room. Takes the parameters of `AsyncWaitOperator`."""

    __slots__ = ("_left_over",)

    @property
    def capacity(self) -> int:
        """The most elements in flight; see `OperatorOptions`."""
        return self._options.capacity

    def allow(self, allowance: Allowance | None, *, may_wait: bool) -> None:
        """Go on with what the driver allows of the limits; before `open`, begin with it. See `SharedLimits.allow`."""
        if self._parts is None:
            self._place = replace(self._place, allowance=allowance)
        elif self._parts.limits is not None:
            self._parts.limits.lent.allow(allowance, may_wait=may_wait)

    @property
    def waits_for_loans(self) -> bool:
        """Whether all its calls wait for what other hosts give up of a budget, which only another epoch can bring."""
        limits = self._readable().limits
        return limits is not None and limits.lent.waits_for_loans

    def holdings(self, *, since_last: bool = False) -> Holdings:
        """Return what it holds of its limits, and what it has used; see `SharedLimits.holdings`."""
        limits = self._readable().limits
        return {} if limits is None else limits.lent.holdings(since_last=since_last)

    @property
    def left_over(self) -> list[Waiting]:
        """Restored elements that did not fit when the operator was opened, in order; the host's line takes them."""
        return self._left_over

    async def open(self, restore: SubtaskRestore | None = None, *, preload: bool = True) -> None:
        """Open the function and take over the restored elements that fit; the others are in `left_over`.

        The function also hears that the restored snapshot is complete: its host may have ended before it could know.
        """
        self._left_over: list[Waiting] = []
        await super().open(restore, preload=preload)
        if restore is not None:
            await self.snapshot_complete(restore.manifest.version)

    async def room(self) -> None:
        """Wait until there is room for an element."""
        await self._check().back_pressure.wait_for_room()

    def offer(self, source: Iterator[Element]) -> None:
        """Take in as many elements as there is room for, without waiting."""
        self._check().back_pressure.take_some(source)

    def refill(
        self, following: Callable[[int], Element | None], failed: Callable[[Exception], None]
    ) -> AbstractContextManager[None]:
        """Let workers, inside the context, take the next element themselves, where the mode allows it; see `Refill`."""
        return self._check().refill(following, failed)

    def stop(self) -> None:
        """Begin no more calls, and let no output leave; calls under way go on until `close`."""
        self._lifecycle.check_loop()
        self._fail(HostFailed("it makes no calls after its final cut"))

    def hold(self) -> None:
        """Fire no timers until `release`."""
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
        """The error to raise when somebody uses the operator; None while it is open."""
        return self._lifecycle.obstacle

    @property
    def is_loaded(self) -> bool:
        """Whether all restored state has been loaded."""
        return self._readable().dispatch.is_loaded

    @property
    def accepted(self) -> int:
        """The sequence number that the next element gets."""
        return self._readable().in_flight.accepted

    @property
    def oldest(self) -> int | None:
        """The sequence number of the oldest element without a result; None if there is none."""
        first = next(iter(self._readable().in_flight.queue.pending()), None)
        return None if first is None else first.sequence

    def counted(self) -> Counted:
        """Return the statistics that only grow; unlike `statistics`, it does not look at what is in flight."""
        return counted_by(self._readable())

    def next_timer(self, event_time: bool = False) -> int | None:
        """Return when the next timer of one kind fires, in milliseconds since the epoch; None without timers."""
        timers = self._readable().timers
        return None if timers is None else timers.index_of(event_time).next

    async def snapshot(self, waiting: Iterable[Waiting] = ()) -> SubtaskSnapshot:
        """Return the state and the elements in flight; the waiting ones come last, uncalled, with all their time."""
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
            with suppress(Exception):  # its key is invalid: the error policy applies when it comes in
                keys.set_key(entry)
        return capture_entry(entry, keys, 0.0)

    def _fitting(self, queue: RestoredQueue) -> RestoredQueue:
        fits, self._left_over = fitting_part(queue, self._options)
        return fits
