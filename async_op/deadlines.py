"""One timer for the timeouts of all in-flight entries."""

from __future__ import annotations

from collections.abc import Callable

from async_op.clock import Clock, TimerHandle
from async_op.elements import Entry


class DeadlineQueue:
    """Entries with a deadline, in the order of their deadlines. Only the thread of the event loop may call it.

    All entries have the same timeout, so they come in order; restored ones, which have less left, come first
    and sorted. The timer is not cancelled when the queue runs empty: arming costs more than one idle tick.
    """

    __slots__ = ("_clock", "_entries", "_expire", "_timer")

    def __init__(self, clock: Clock, expire: Callable[[Entry], None]) -> None:
        self._clock = clock
        self._expire = expire
        self._entries: dict[Entry, None] = {}
        self._timer: TimerHandle | None = None

    def add(self, entry: Entry) -> None:
        """Watch an entry whose `deadline` is not before that of any other."""
        self._entries[entry] = None
        if self._timer is None:
            self._arm(entry)

    def discard(self, entry: Entry) -> None:
        """Stop watching an entry."""
        self._entries.pop(entry, None)

    def close(self) -> None:
        """Forget all entries and the timer."""
        self._entries.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, entry: Entry) -> None:
        assert entry.deadline is not None, "only entries with a deadline are watched"
        self._timer = self._clock.call_at(entry.deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._clock.time()
        for entry in self._due(now):
            del self._entries[entry]
            self._expire(entry)
        if self._entries and self._timer is None:
            self._arm(next(iter(self._entries)))

    def _due(self, now: float) -> list[Entry]:
        due = []
        for entry in self._entries:
            if entry.deadline is None or entry.deadline > now:
                break
            due.append(entry)
        return due
