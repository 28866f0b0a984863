"""Admits elements: makes entries of them, puts them into the queue and has their calls made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from async_op.calls.completion import Completion
from async_op.calls.dispatch import Dispatch
from async_op.calls.value_checks import Vet
from async_op.elements import Element, ElementId
from async_op.functions.context import Scope
from async_op.in_flight.entries import Entry, add_entries, new_entry
from async_op.in_flight.in_flight import InFlight
from async_op.in_flight.key_assignment import KeyAssignment
from async_op.timers.deadlines import Deadlines
from keygroups.errors import KeyGroupOutOfRange
from snapshots import IncompatibleSnapshot

TURN = 1024
"""After this many elements without a wait, the event loop runs, so that calls can begin."""

_TAKEN_MAX = 1024
"""The most elements that one worker takes in a row. It is reached only if they leave at once; then other tasks run."""


class Intake:
    """Makes entries of elements, puts them into the queue and has their calls made.

    Only the thread of the event loop may call it. For a batch function without keys, `Batching` takes its place.

    Parameters
    ----------
    in_flight : InFlight
        Takes the entries.
    dispatch : Dispatch
        Has the calls of entries made.
    completion : Completion
        Takes an entry without a usable key.
    deadlines : Deadlines
        Watches the timeouts of elements.
    keys : KeyAssignment or None
        Sets the keys of entries; None without keys.
    scope : Scope
        Has the time budget of an element and the clock.
    drops : bool
        If true, an element without a usable key fails for good, as if its call had failed. Otherwise the error is
        raised to the caller that puts it in.
    vet : Vet or None
        Refuses values, whose elements then fail for good as if their calls had failed.

    Attributes
    ----------
    start : callable
        Has the calls of entries made.
    """

    __slots__ = (
        "_completion",
        "_deadlines",
        "_in_flight",
        "_keys",
        "_now",
        "_refused",
        "_set_key",
        "_timeout",
        "_vet",
        "start",
    )

    def __init__(
        self,
        in_flight: InFlight,
        dispatch: Dispatch,
        completion: Completion,
        deadlines: Deadlines,
        keys: KeyAssignment | None,
        scope: Scope,
        *,
        drops: bool,
        vet: Vet | None,
    ) -> None:
        self._in_flight = in_flight
        self._vet = vet
        self.start = dispatch.quickest_start
        self._deadlines = deadlines
        self._keys = keys
        self._completion = completion
        self._refused: dict[Entry, Exception] = {}
        self._set_key = None if keys is None else self._try_key if drops else keys.set_key
        self._now = scope.clock.time
        self._timeout = scope.timeout

    def accept(self, value: Any, timestamp: int | None, element_id: ElementId | None) -> None:
        """Accept a new element and have its call made."""
        entry = self.admit(value, timestamp, element_id)
        if entry is not None:
            self.start((entry,))

    def admit(self, value: Any, timestamp: int | None, element_id: ElementId | None) -> Entry | None:
        """Accept a new element whose call the caller makes; returns None if the element failed for lack of a key."""
        entry = new_entry(value, timestamp, element_id, self._in_flight.accepted)
        if self._set_key is not None:
            self._set_key(entry)
        vet = self._vet
        if vet is not None and type(value) not in vet.certain and (error := vet.error_of(value)) is not None:
            self._refused[entry] = error
        if self._timeout is not None:
            entry.deadline = deadline = self._now() + self._timeout
            if deadline < self._deadlines.due:
                self._deadlines.arm(deadline)
        self._in_flight.put((entry,))
        if self._refused:
            self._drop_refused()
            return None
        return entry

    def take(self, source: Iterator[Element], room: int) -> bool:
        """Accept as many new elements as there is room for; returns whether the source may have more."""
        entries: list[Entry] = []
        try:
            add_entries(entries, islice(source, room), self._in_flight.accepted, self._set_key)
        finally:
            if entries:  # even if the source then raised an error
                self._start_all(entries)
        return len(entries) == room

    def end_block(self) -> None:
        """Do nothing: every element is its own entry."""

    def _vet_all(self, entries: Sequence[Entry]) -> None:
        assert self._vet is not None, "called only if values are checked"
        for index, error in self._vet.errors_among([entry.value for entry in entries]).items():
            self._refused[entries[index]] = error

    def _start_all(self, entries: list[Entry]) -> None:
        if self._vet is not None:
            self._vet_all(entries)
        if self._timeout is not None:
            deadline = self._now() + self._timeout
            for entry in entries:
                entry.deadline = deadline
            if deadline < self._deadlines.due:
                self._deadlines.arm(deadline)
        self._in_flight.put(entries)
        if self._refused:
            entries = [entry for entry in entries if entry not in self._refused]
            self._drop_refused()
        self.start(entries)

    def _try_key(self, entry: Entry) -> None:
        assert self._keys is not None, "called only if there is a key_by"
        try:
            self._keys.set_key(entry)
        except (KeyGroupOutOfRange, IncompatibleSnapshot):
            raise  # the element is not wrong: it was sent to the wrong subtask, or the state is of other keys
        except Exception as error:  # noqa: BLE001 - the user's `key_by` failed, or the key is unusable
            self._refused[entry] = error

    def _drop_refused(self) -> None:
        refused, self._refused = self._refused, {}
        for entry, error in refused.items():
            self._completion.refuse(entry, error)


class IteratorFeed:
    """An input from which each worker takes the next element itself, as soon as its call has returned.

    The feeding task puts many elements in at once, and waits while there is no room. Meanwhile the workers replace
    elements that leave: waking the feeding task, or a worker, for each element would cost as much as the rest of the
    operator. Workers stop replacing when half of what was in flight has left, because calls that return at once are
    cheaper to admit together.

    Only the thread of the event loop may call it.

    Parameters
    ----------
    elements : iterator of (value, timestamp, element id)
        The elements to admit.
    in_flight : InFlight
        Knows how many elements are in flight.
    capacity : int
        The most elements in flight.
    intake : Intake
        Admits the elements.
    dispatch : Dispatch
        Knows whether any worker may make the call for an admitted element.
    """

    __slots__ = (
        "_admit",
        "_capacity",
        "_elements",
        "_enough",
        "_error",
        "_in_flight",
        "_left",
        "_next",
        "_start",
        "_workers",
    )

    def __init__(
        self,
        elements: Iterator[Element],
        in_flight: InFlight,
        capacity: int,
        intake: Intake,
        dispatch: Dispatch,
    ) -> None:
        self._elements = elements
        self._in_flight = in_flight
        self._capacity = capacity
        self._admit = intake.admit
        self._start = intake.start
        self._workers = dispatch.workers if dispatch.calls_at_once else None
        # Below this number in flight workers take nothing, because the feeding task admits many at once, which costs
        # less for each. All of the capacity: workers never take one, since the task is running.
        self._enough = capacity
        self._next: Element | None = None
        self._left: asyncio.Future[None] | None = None
        self._error: BaseException | None = None

    def take(self) -> Entry | None:
        """Admit elements in place of those that have left; returns a single element if its call may begin at once."""
        in_flight = self._in_flight
        in_use = in_flight.accepted - in_flight.departed
        if in_use < self._enough:
            self._leave()
        elif in_use < self._capacity:
            if self._workers is not None:
                if self._left is not None and in_use + 1 < self._capacity:
                    self._workers.wake(self._capacity - in_use)
                return self._take_one()
            if self._left is not None:
                self._take_many()
        return None

    def stop(self) -> None:
        """Give workers no more elements."""
        self._enough = self._capacity = 0
        self._leave()

    async def give_way(self) -> None:
        """Let workers run after elements have been put in; raises the error of an element or of the iterator."""
        self._enough = len(self._in_flight) // 2
        try:
            await asyncio.sleep(0)
        finally:
            self._check()

    async def wait(self, following: Element) -> None:
        """Wait until there is plenty of room or no more elements; raises as `give_way` does. Call `take_back` after it.

        Parameters
        ----------
        following : (value, timestamp, element id)
            The element to admit first; it was taken from the iterator in advance to detect the end in time.
        """
        self._next = following
        self._left = asyncio.get_running_loop().create_future()
        self._enough = self._capacity // 2
        try:
            await self._left
        finally:
            self._left = None
            self._check()

    def take_back(self) -> Element | None:
        """Return the element that was taken from the iterator but not admitted, or None."""
        following, self._next = self._next, None
        return following

    def _check(self) -> None:
        # Raised even in place of a cancellation: otherwise the refused element would be lost silently.
        if self._error is not None:
            raise self._error

    def _leave(self) -> None:
        if self._left is not None and not self._left.done():
            self._left.set_result(None)

    def _take_one(self) -> Entry | None:
        entry = None
        try:
            element = self.take_back() or next(self._elements, None)
            if element is not None:
                entry = self._admit(*element)
                if entry is None:
                    self._leave()  # no call will return for it, so no worker would take the next element
            if self._left is not None:
                self._next = next(self._elements, None)
        except BaseException as error:  # noqa: BLE001 - raised to the feeding task
            self._error = error
            self.stop()
        if self._next is None:
            self._leave()
        return entry

    def _take_many(self) -> None:
        for _ in range(_TAKEN_MAX):
            if self._next is None or len(self._in_flight) >= self._capacity:
                return
            entry = self._take_one()
            if entry is not None:
                self._start((entry,))
        self._leave()
