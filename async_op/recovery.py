"""What becomes of the in-flight elements of a snapshot when an operator is opened with it."""

from __future__ import annotations

from collections.abc import Iterable

from async_op.clock import Clock
from async_op.elements import Entry, is_timer, new_entry
from async_op.in_flight import InFlight
from async_op.invoker import Invoker
from snapshots import InFlightElement
from snapshots.in_flight import RestoredQueue


class Recovery:
    """Puts restored elements back into the queue. Only the thread of the event loop may call it.

    Parameters
    ----------
    in_flight : InFlight
        Where they go, beyond the operator's capacity if need be.
    invoker : Invoker
        Makes the calls of the pending ones again.
    clock : Clock
        For what is left of their time budgets.
    timeout : float or None
        The operator's; an element that has more left, or was stored without a budget, gets this.

    Attributes
    ----------
    reinvoked, reemitted : int
        Pending elements, and those whose stored result was taken over.
    """

    __slots__ = ("_clock", "_in_flight", "_invoker", "_timeout", "reemitted", "reinvoked")

    def __init__(self, in_flight: InFlight, invoker: Invoker, clock: Clock, timeout: float | None) -> None:
        self._in_flight = in_flight
        self._invoker = invoker
        self._clock = clock
        self._timeout = timeout
        self.reinvoked = self.reemitted = 0

    async def take_over(self, queue: RestoredQueue) -> None:
        """Emit the completed elements, invoke the pending ones, and keep all in their order."""
        timers = self._in_flight.timers
        self._in_flight.watermark = queue.watermark
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
            else:
                pending.append((self._prepare(element), element.delay))
        self._invoker.deadlines.restore([entry for entry, _ in pending])
        # Timers were given their key before elements that had come earlier.
        for entry, delay in sorted(pending, key=lambda one: not is_timer(one[0])):
            if delay is None:
                self._invoker.start([entry])
            else:
                self._invoker.start_after(entry, delay)

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
        entry.key, entry.key_group, entry.attempt = element.key, element.key_group, element.attempt
        self._in_flight.put((entry,))
        return entry
