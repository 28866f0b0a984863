"""Order within a key: at most one invocation per key at a time, in order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Hashable, Iterable

from async_op.in_flight.entries import Entry


class KeyGate:
    """Admits one entry per key; the others follow in order of arrival. Keys are compared in the same way as in state.

    Only the thread of the event loop may call it.
    """

    __slots__ = ("_waiting", "waiting_count")

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[Entry] | None] = {}
        self.waiting_count = 0

    def enter(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries that may be invoked now; the others wait until their key is free."""
        waiting, free = self._waiting, []
        for entry in entries:
            key = entry.identity
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

    @property
    def busy(self) -> Container[Hashable]:
        """The identities of the keys with an invocation under way, at any later time, too."""
        return self._waiting

    def leave(self, entry: Entry) -> Entry | None:
        """Free the key after the entry's invocation has ended; returns the next entry of that key, or None."""
        key = entry.identity
        queue = self._waiting.pop(key)
        if not queue:
            return None
        self._waiting[key] = queue
        self.waiting_count -= 1
        return queue.popleft()
