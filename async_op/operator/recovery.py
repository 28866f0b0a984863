"""Takes over the in-flight elements of a snapshot when an operator is opened with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from async_op.calls.completion import Completion
from async_op.calls.dispatch import Dispatch
from async_op.calls.value_checks import Unreadable
from async_op.clock import Clock
from async_op.in_flight.entries import Entry, is_timer, new_entry
from async_op.in_flight.in_flight import InFlight
from async_op.timers.service import TimerService
from keygroups.state import identity_of
from snapshots import InFlightElement
from snapshots.format.in_flight_elements import RestoredQueue


class Recovery:
    """Puts restored elements back into the queue. Only the thread of the event loop may call it.

    Parameters
    ----------
    in_flight : InFlight
        Takes the elements, beyond the operator's capacity if necessary.
    dispatch : Dispatch
        Makes the calls of the pending ones again.
    timers : TimerService or None
        Fires the timers of the snapshot.
    clock : Clock
        The source of time, for the remaining time budgets.
    timeout : float or None
        The operator's timeout. An element that has more time left, or was stored without a budget, gets this one.
    completion : Completion
        Takes the entry of an element whose value could not be stored.

    Attributes
    ----------
    reinvoked, reemitted : int
        Elements that are called again, and elements whose stored outputs are emitted.
    """

    __slots__ = (
        "_clock",
        "_completion",
        "_dispatch",
        "_in_flight",
        "_pending",
        "_timeout",
        "_timers",
        "reemitted",
        "reinvoked",
    )

    def __init__(
        self,
        in_flight: InFlight,
        dispatch: Dispatch,
        timers: TimerService | None,
        clock: Clock,
        timeout: float | None,
        completion: Completion,
    ) -> None:
        self._completion = completion
        self._in_flight = in_flight
        self._dispatch = dispatch
        self._timers = timers
        self._clock = clock
        self._timeout = timeout
        self._pending = deque[Entry]()
        self.reinvoked = self.reemitted = 0

    async def take_over(self, queue: RestoredQueue) -> None:
        """Emit completed elements and invoke pending ones, in their stored order."""
        timers = self._timers
        self._in_flight.begin_at(queue.watermark)
        if timers is not None:
            await timers.load()
        self._take_over(queue.elements)
        if timers is not None:
            timers.begin()

    def _take_over(self, elements: Iterable[InFlightElement]) -> None:
        pending = []
        for element in elements:
            if element.is_watermark:
                assert element.timestamp is not None, "a watermark has a timestamp"
                self._in_flight.put_watermark(element.timestamp)
            elif element.outputs is not None:
                self._emit(element)
            elif (refusal := Unreadable().error_of(element.value)) is not None:
                self._completion.refuse(self._put(element), refusal)
            else:
                pending.append((self._prepare(element), element.delay))
        self._pending.extend(entry for entry, _ in pending)
        self._dispatch.restore_deadlines(self._pending)
        # A timer may hold its key although elements of that key came earlier, so timers go first.
        for entry, delay in sorted(pending, key=lambda one: not is_timer(one[0])):
            if delay is None:
                self._dispatch.start([entry])
            else:
                self._dispatch.start_after(entry, delay)

    def is_over(self) -> bool:
        """Return whether all calls of restored elements have ended; it checks each ended element only once."""
        while self._pending and self._pending[0].outputs is not None:
            self._pending.popleft()
        return not self._pending

    def _emit(self, element: InFlightElement) -> None:
        self.reemitted += 1
        entry = self._put(element)
        entry.outputs = element.outputs
        self._in_flight.queue.complete(entry)

    def _prepare(self, element: InFlightElement) -> Entry:
        self.reinvoked += 1
        entry = self._put(element)
        if self._timeout is not None:
            budget = self._timeout if element.remaining is None else min(self._timeout, element.remaining)
            entry.deadline = self._clock.time() + budget
            entry.expired = budget == 0
        return entry

    def _put(self, element: InFlightElement) -> Entry:
        entry = new_entry(element.value, element.timestamp, element.element_id, self._in_flight.accepted)
        entry.key, entry.identity = element.key, identity_of(element.key)
        entry.key_group, entry.attempt = element.key_group, element.attempt
        self._in_flight.put((entry,))
        return entry
