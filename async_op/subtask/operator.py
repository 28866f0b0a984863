"""The operator of a subtask: it takes in what fits without waiting, can be held, and tells how it is at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count

from async_op.elements import Element, Watermark
from async_op.errors import OpenFailed, OperatorClosed
from async_op.functions.plain import name_of
from async_op.in_flight.capture import capture_entry, capture_watermark
from async_op.in_flight.entries import WatermarkEntry, new_entry
from async_op.in_flight.key_assignment import KeyAssignment
from async_op.operator.assembly import Parts
from async_op.operator.counters import Counted, counted_by
from async_op.operator.operator import AsyncWaitOperator
from async_op.options import OperatorOptions
from async_op.resilience.lending import Allowance, Holdings
from keygroups.errors import KeyGroupsError
from keygroups.safe_text import described, user_line
from keygroups.state.timers import Timer
from snapshots import InFlightElement, SubtaskRestore, SubtaskSnapshot
from snapshots.format.in_flight_elements import RestoredQueue
from snapshots.format.subtask import NO_KEY_GROUP, RefusedValue

Waiting = Element | Watermark
"""An element or watermark that has been handed over and has no room yet."""


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
            self._subtask_info = replace(self._subtask_info, allowance=allowance)
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
        """Restored elements that did not fit when the operator was opened, in order; the inbox takes them."""
        return self._left_over

    async def open(self, restore: SubtaskRestore | None = None, *, preload: bool = True) -> None:
        """Open the function and take over the restored elements that fit; the others are in `left_over`.

        The function also hears that the restored snapshot is complete: its host may have ended before it could know.
        """
        self._left_over: list[Waiting] = []
        await super().open(restore, preload=preload)
        if restore is not None:
            await self.snapshot_complete(restore.manifest.version)

    @property
    def failed_open(self) -> KeyGroupsError | None:
        """The error of the function's `open`, for another process; None if that has not failed."""
        raised = self._function.failure
        if raised is None or isinstance(raised, KeyGroupsError):
            return raised
        failed = OpenFailed(name_of(self._options.function), user_line(raised) or "a library", described(raised))
        failed.__cause__ = raised
        return failed

    @property
    def free(self) -> int:
        """How many elements it takes in at once."""
        return self._check().back_pressure.room

    async def refill_room(self, is_starved: Callable[[], bool]) -> None:
        """Wait for room; see `BackPressure.wait_for_refill`."""
        await self._check().back_pressure.wait_for_refill(is_starved)

    @property
    def refills(self) -> bool:
        """Whether its workers can take elements themselves: the return of a call makes room for one."""
        return self._check().dispatch.calls_at_once

    @property
    def parts(self) -> Parts:
        """The parts of the open operator."""
        return self._check()

    def look_for_room(self) -> None:
        """Let the feeders that wait for room check for it."""
        self._waiters.wake()

    def offer(self, source: Iterator[Element]) -> None:
        """Take in as many elements as there is room for, without waiting."""
        self._check().back_pressure.take_some(source)

    def offer_watermark(self, timestamp: int) -> None:
        """Take in a watermark without waiting for room."""
        parts = self._check()
        parts.intake.end_block()
        parts.in_flight.put_watermark(timestamp)

    def stop(self) -> None:
        """Begin no more calls, and let no output leave; calls under way go on until `close`."""
        self._lifecycle.check_loop()
        self._lifecycle.fail(OperatorClosed("closed"))

    def hold_timers(self, are_held: bool) -> None:
        """Fire no timers, or fire them again."""
        timers = self._readable().timers
        if timers is not None:
            (timers.pause if are_held else timers.resume)()

    @property
    def failure(self) -> BaseException | None:
        """The error to raise when the operator is used; None while it is open."""
        return self._lifecycle.obstacle

    @property
    def is_loaded(self) -> bool:
        """Whether all restored state has been loaded."""
        return self._readable().dispatch.is_loaded

    @property
    def accepted(self) -> int:
        """The sequence number that the next element gets."""
        return self._readable().in_flight.accepted

    def work(self) -> tuple[int, int]:
        """Return counters that change whenever something happens: elements accepted, and elements that have left."""
        if self._parts is None:
            return 0, 0
        # Any thread may ask, for the progress of a job.
        return self._parts.in_flight.accepted, self._parts.in_flight.departed

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

    def cut(self, waiting: Iterable[Waiting]) -> SubtaskSnapshot:
        """Return the state and the elements in flight; waiting ones come last, uncalled, with all their time."""
        return self.with_waiting(self._cut(), waiting)

    def with_waiting(self, cut: SubtaskSnapshot, waiting: Iterable[Waiting]) -> SubtaskSnapshot:
        """Return a snapshot of this operator with elements behind its own, uncalled, with all their time."""
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


def fitting_part(queue: RestoredQueue, options: OperatorOptions) -> tuple[RestoredQueue, list[Waiting]]:
    """Return the part of a queue that goes back into the operator, and the other elements in their order."""
    refused = [element for element in queue.elements if _is_refused(element, options)]
    elements = tuple(element for element in queue.elements if not _is_refused(element, options))
    size = _begun(elements, options.capacity, has_budgets=options.timeout is not None)
    left_over = [_waiting_of(element) for element in (*refused, *elements[size:])]
    return RestoredQueue(elements[:size], queue.watermark), left_over


def _is_refused(element: InFlightElement, options: OperatorOptions) -> bool:
    """Tell whether an element waited with an invalid key or value; the error policy applies when it comes in.

    A completed element has met its policy already: a second time, its dead letter would be delivered twice.
    """
    if element.completed:
        return False
    if isinstance(element.value, RefusedValue):
        return True
    return options.key_by is not None and not element.is_watermark and element.key_group == NO_KEY_GROUP


def _begun(elements: tuple[InFlightElement, ...], capacity: int, *, has_budgets: bool) -> int:
    """Return how many elements go back into the operator: as many as fit, or more if calls had begun for later ones.

    Two queues merged by a rescale may hold more such elements than fit; the number of workers still bounds the calls.
    """
    behind = elements[capacity:]
    last = max((place for place, element in enumerate(behind) if _has_begun(element, has_budgets)), default=-1)
    return min(capacity, len(elements)) + last + 1


def _has_begun(element: InFlightElement, has_budgets: bool) -> bool:
    if element.is_watermark:
        return False
    used = element.completed or element.attempt > 1 or element.delay is not None
    return used or isinstance(element.value, Timer) or (has_budgets and element.remaining is not None)


def _waiting_of(element: InFlightElement) -> Waiting:
    if element.is_watermark:
        assert element.timestamp is not None, "a watermark has a timestamp"
        return Watermark(element.timestamp)
    return element.value, element.timestamp, element.element_id
