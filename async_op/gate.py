"""At most one invocation per key at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable

from async_op.elements import Entry


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
