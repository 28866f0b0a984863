"""Holds entries until their next attempt."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from async_op.clock import Clock, TimerHandle
from async_op.in_flight.entries import Entry


class Backoff:
    """Holds entries until their next attempt, with one timer for all. Only the thread of the event loop may call it."""

    __slots__ = ("_clock", "_heap", "_ready", "_timer")

    def __init__(self, clock: Clock, ready: Callable[[Entry], None]) -> None:
        self._clock = clock
        self._ready = ready
        self._heap: list[tuple[float, int, Entry]] = []
        self._timer: TimerHandle | None = None

    def add(self, entry: Entry, delay: float) -> None:
        """Make an entry ready after `delay` seconds."""
        entry.due = self._clock.time() + delay
        heapq.heappush(self._heap, (entry.due, entry.sequence, entry))
        if self._heap[0][2] is entry:
            self._arm()

    def release(self, entry: Entry) -> None:
        """Make an entry ready now."""
        entry.due = None
        self._ready(entry)

    def release_all(self) -> None:
        """Make every entry ready now, in the order in which their attempts were due."""
        waiting = [entry for due, _, entry in sorted(self._heap) if entry.due == due]
        self.close()
        for entry in waiting:
            self.release(entry)

    def close(self) -> None:
        """Drop all entries and cancel the timer."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_at(self._heap[0][0], self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._clock.time()
        while self._heap and self._heap[0][0] <= now:
            due, _, entry = heapq.heappop(self._heap)
            if entry.due == due:  # otherwise it has already been released
                self.release(entry)
        if self._heap and self._timer is None:
            self._arm()
