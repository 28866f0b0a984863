"""`Subtask`: an operator that lives over many cuts, with what waits to come in and what takes its outputs."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from async_op.clock import Clock
from async_op.elements import Element, Watermark
from async_op.in_flight.entries import Entry
from async_op.operator.admission import Intake
from async_op.operator.counters import Counted, since
from async_op.subtask.inbox import Inbox
from async_op.subtask.operator import ResidentOperator
from snapshots import SubtaskRestore, SubtaskSnapshot

_MARKED_EVERY = 16
"""A worker that takes an element marks only every 16th: reading the clock costs 2 % of a call of 1 ms."""


class Downstream(Protocol):
    """What takes the outputs of a subtask: an outbox, the inboxes of the next step, or the sinks of a job."""

    @property
    def has_room(self) -> bool:
        """Whether the operator may go on to make outputs."""
        ...

    async def room(self) -> None:
        """Wait until it has room."""
        ...

    def on_change(self, sender: Callable[[], None]) -> None:
        """Have something called whenever `has_room` may have changed."""
        ...


_Inbox = TypeVar("_Inbox", bound=Inbox)


class Subtask(ABC, Generic[_Inbox]):
    """Moves elements from the inbox into the operator, as it has room, and is cut while calls go on.

    A job has its subtasks in its event loop (`StepSubtask`), and Spark has each in a host (`FedSubtask`). Only the
    thread of the event loop may call it.

    Parameters
    ----------
    operator : ResidentOperator
        The operator, not opened yet.
    inbox : Inbox
        What waits for room.
    outbox : Downstream
        Takes the outputs. While it has no room, nothing is taken in and no timer fires: timers may register timers, so
        nothing else bounds the outputs.
    clock : Clock
        The source of time.

    Attributes
    ----------
    is_open : bool
        Whether the operator was opened.
    is_held : bool
        Whether it waits for room in the outbox.
    """

    def __init__(self, operator: ResidentOperator, inbox: _Inbox, outbox: Downstream, clock: Clock) -> None:
        self.operator = operator
        self.inbox = inbox
        self._downstream = outbox
        self._clock = clock
        self._ages = Ages()
        self._counted: Counted = {}
        self._is_starved = self._are_timers_held = False
        self.is_open = self.is_held = False
        outbox.on_change(self.adjust)

    async def open(self, restore: SubtaskRestore | None = None, *, preload: bool = True) -> None:
        """Open the operator with its share of a snapshot; restored elements that do not fit wait in the inbox."""
        await self.operator.open(restore, preload=preload)
        self.inbox.restore(self.operator.left_over)
        self._mark()
        self.is_open = True
        self.adjust()

    def cut(self) -> SubtaskSnapshot:
        """Return the snapshot of the subtask, in this step of the loop: calls go on at once."""
        return self.operator.cut(self.inbox.elements)

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Take the error of an element that was not accepted."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in the operator or on its way into it."""
        accepted, departed = self.operator.work()
        return not self.inbox.elements and accepted == departed

    @property
    def oldest_call_seconds(self) -> float:
        """The age of the oldest element in the operator; 0 without one."""
        return self._ages.of(self.operator.oldest, self._clock.time()) or 0.0

    def hold_timers(self, are_held: bool) -> None:
        """Fire no timers, or fire them again where there is room for what they emit."""
        self._are_timers_held = are_held
        self.adjust()

    def adjust(self) -> None:
        """Take in elements and fire timers while the outbox has room for what they make, and not otherwise."""
        if self.is_open and self.operator.failure is None:
            self.is_held = not self._downstream.has_room
            self.operator.hold_timers(self.is_held or self._are_timers_held)

    async def pump(self) -> None:
        """Move elements into the operator as it has room, for ever."""
        inbox, operator, downstream = self.inbox, self.operator, self._downstream
        with operator.parts.workers.fed_by(Refill(self) if operator.refills else None):
            while True:
                await inbox.changed.wait_until(lambda: bool(inbox.elements))
                await downstream.room()
                self._is_starved = not operator.refills  # without a worker that asks, each place has to be filled here
                await operator.refill_room(lambda: self._is_starved)
                if inbox.elements and not self.is_held:  # both may have changed during the wait
                    self._move_some()
                await asyncio.sleep(0)

    def _move_some(self) -> None:
        """Move a watermark, or the elements before the next watermark that fit, in one step of the event loop."""
        before = len(self.inbox.elements)
        watermark = self.inbox.take_watermark()
        if watermark is None:
            self._take_in(iter(self.inbox.take(self.operator.free)))
        else:
            self.operator.offer_watermark(watermark.timestamp)
            self._mark()
        self.inbox.shrunk(before)

    def _take_in(self, elements: Iterator[Element]) -> None:
        """Take elements into the operator, which has room for them."""
        self.operator.offer(elements)
        assert next(elements, None) is None, "what is in neither the inbox nor the operator is lost"
        self._mark()

    def following(self, sequence: int) -> Element | None:
        """Return the next element, for a worker whose call has returned; None if it has to wait."""
        elements = self.inbox.elements
        if self.is_held or not elements or isinstance(elements[0], Watermark):
            self._is_starved = True
            self.operator.look_for_room()
            return None
        element = elements.popleft()
        if not sequence % _MARKED_EVERY:
            self._ages.mark(sequence + 1, self._clock.time())
        self.inbox.shrunk(len(elements) + 1)
        return element  # type: ignore[return-value]

    def _mark(self) -> None:
        self._ages.mark(self.operator.accepted, self._clock.time())

    def _since_last(self, counted: Counted) -> Counted:
        """Return what was counted since the last call."""
        newest, self._counted = since(self._counted, counted), counted
        return newest


class Refill:
    """Elements of the inbox, from which each worker takes the next one when its call has returned.

    Unlike an `IteratorFeed` it never holds an element itself: one that is taken is admitted in the same step of the
    event loop. Below half of the capacity it gives none, because the subtask can admit many at once.

    Parameters
    ----------
    subtask : Subtask
        Has the elements.
    """

    __slots__ = ("_admit", "_capacity", "_following", "_in_flight", "_subtask", "_wake")

    def __init__(self, subtask: Subtask[Any]) -> None:
        parts = subtask.operator.parts
        assert isinstance(parts.intake, Intake), "only Batching is the other kind"
        self._subtask = subtask
        self._following = subtask.following
        self._in_flight = parts.in_flight
        self._capacity = subtask.operator.capacity
        self._admit = parts.intake.admit
        self._wake = parts.workers.wake

    def take(self) -> Entry | None:
        """Admit an element in place of one that has left, and return it for its call."""
        accepted = self._in_flight.accepted
        in_use = accepted - self._in_flight.departed
        if not self._capacity // 2 <= in_use < self._capacity:
            return None
        element = self._following(accepted)
        if element is None:
            return None
        if in_use + 1 < self._capacity:
            self._wake(self._capacity - in_use)
        try:
            return self._admit(*element)
        except Exception as error:  # noqa: BLE001 - its key is invalid
            self._subtask.fail(error)
            return None

    def stop(self) -> None:
        """Give workers no more elements."""
        self._capacity = 0


RESOLUTION_SECONDS = 0.1
"""Marks that are closer together become one; otherwise a busy operator could keep a mark for each element."""

MARKS_MAX = 1000
"""More marks are thinned out; otherwise a call that hangs would keep the marks of all later elements."""

COARSENESS = 4 / MARKS_MAX
"""Marks that are closer together than this part of the oldest one's age become one: about half of them are left."""


@dataclass(slots=True)
class _Mark:
    """All elements below `following` had come by `until`; those above the mark before this one, since `since`."""

    following: int
    since: float
    until: float


class Ages:
    """Remembers when sequence numbers were given out; an element's age counts from the first mark after it came."""

    def __init__(self) -> None:
        self._marks = deque[_Mark]()

    def mark(self, following: int, now: float) -> None:
        """Note that all elements with a sequence number below `following` have come by now."""
        if not self._marks:
            self._marks.append(_Mark(following, now, now))
        elif (last := self._marks[-1]).following < following:
            if now - last.since < RESOLUTION_SECONDS:
                last.following, last.until = following, now
            else:
                self._marks.append(_Mark(following, now, now))
                if len(self._marks) > MARKS_MAX:
                    self._thin(COARSENESS * (now - self._marks[0].since))

    def of(self, oldest: int | None, now: float) -> float | None:
        """Return the seconds since an element came; None for no element.

        They are at most `RESOLUTION_SECONDS` too many, and once there were more than `MARKS_MAX` marks, at most
        `COARSENESS` times the age of the oldest one. Marks of older elements are forgotten.

        Examples
        --------
        >>> ages = Ages()
        >>> ages.mark(10, 5.0)
        >>> ages.mark(20, 6.0)
        >>> ages.of(12, 8.0)
        2.0
        """
        if oldest is None:
            self._marks.clear()
            return None
        while self._marks and self._marks[0].following <= oldest:
            self._marks.popleft()
        if not self._marks:
            self.mark(oldest + 1, now)  # a timer's, which has no mark: its age counts from here
        return now - self._marks[0].since

    def _thin(self, resolution_seconds: float) -> None:
        marks, self._marks = self._marks, deque()
        for mark in marks:
            if self._marks and mark.until - (last := self._marks[-1]).since < resolution_seconds:
                last.following, last.until = mark.following, mark.until
            else:
                self._marks.append(mark)
