"""At most one invocation per key at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from async_op.elements import Entry, is_timer

if TYPE_CHECKING:
    from async_op.settings import OperatorSettings
    from async_op.timers import TimerService


class KeyGate:
    """Lets one entry per key through, the others in the order in which they came.

    Only the thread of the event loop may call it.
    """

    __slots__ = ("_waiting", "waiting_count")

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[Entry] | None] = {}
        self.waiting_count = 0

    def enter(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries that may be invoked now; the others wait for their key."""
        waiting, free = self._waiting, []
        for entry in entries:
            key = entry.key
            if key not in waiting:
                waiting[key] = None
                free.append(entry)
                continue
            self.waiting_count += 1
            queue = waiting[key]
            if queue is None:
                waiting[key] = deque([entry])
            else:
                queue.append(entry)
        return free

    def leave(self, entry: Entry) -> Entry | None:
        """Tell that the entry's invocation has ended; returns the entry of that key that may be invoked next."""
        queue = self._waiting[entry.key]
        if not queue:
            del self._waiting[entry.key]
            return None
        self.waiting_count -= 1
        return queue.popleft()


class TimerGate(KeyGate):
    """Gives a key that has become free to its timers first. Only the thread of the event loop may call it."""

    __slots__ = ("_timers",)

    def __init__(self, timers: TimerService) -> None:
        super().__init__()
        self._timers = timers

    def is_busy(self, key: Hashable) -> bool:
        """Tell whether an invocation for a key is under way."""
        return key in self._waiting

    def enter(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries that may be invoked now; the others wait for their key."""
        entries = list(entries)
        self._timers.active += sum(map(is_timer, entries))
        return super().enter(entries)

    def leave(self, entry: Entry) -> Entry | None:
        """Tell that the entry's invocation has ended; returns the entry of that key that may be invoked next."""
        timers = self._timers
        if is_timer(entry):
            timers.ended(entry)
        following = timers.next_of(entry.key)
        if following is None:
            following = super().leave(entry)
        else:
            timers.active += 1
        timers.left()
        return following


def gate_of(settings: OperatorSettings, timers: TimerService | None) -> KeyGate | None:
    """Return what keeps the entries of one key apart, where something has to."""
    if timers is not None:
        return timers.gate
    return KeyGate() if settings.states or settings.mode == "key_ordered" else None
