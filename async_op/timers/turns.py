"""Decides who gets a free key: first its timers, then its elements."""

from __future__ import annotations

from collections.abc import Iterable

from async_op.in_flight.entries import Entry, is_timer
from async_op.in_flight.key_order import KeyGate
from async_op.timers.service import TimerService


class TimerGate(KeyGate):
    """Gives a key that has become free to its timers first. Only the thread of the event loop may call it."""

    __slots__ = ("_timers",)

    def __init__(self, timers: TimerService) -> None:
        super().__init__()
        self._timers = timers

    def enter(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries that may be invoked now; the others wait until their key is free."""
        entries = list(entries)
        self._timers.began(sum(map(is_timer, entries)))
        return super().enter(entries)

    def leave(self, entry: Entry) -> Entry | None:
        """Free the key after the entry's invocation has ended; returns its next timer or element, or None."""
        timers = self._timers
        if is_timer(entry):
            timers.ended(entry)
        following = timers.next_of(entry.key)
        if following is None:
            following = super().leave(entry)
        else:
            timers.began(1)
        timers.left()
        return following
