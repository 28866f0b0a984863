"""The queues of in-flight entries: they decide which completed entry may leave.

Each is made with the function that is called with the entries that leave, in their order. Only the thread of the
event loop may call them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from async_op.elements import Entry, WatermarkEntry

QueueEntry = Entry | WatermarkEntry
Leave = Callable[[QueueEntry], None]


class ElementQueue(Protocol):
    """In-flight entries in an order of emission."""

    def __len__(self) -> int: ...

    def put(self, entry: QueueEntry) -> None:
        """Add an entry at the end."""
        ...

    def complete(self, entry: QueueEntry) -> None:
        """Tell that an entry has completed; those that may go because of it leave."""
        ...

    def pending(self) -> Iterator[Entry]:
        """Return the entries that have not completed, oldest first."""
        ...

    def entries(self) -> list[QueueEntry]:
        """Return all entries in the order in which they were put."""
        ...


class OrderedQueue:
    """Entries leave in the order in which they came: only the head may leave."""

    __slots__ = ("_entries", "_leave")

    def __init__(self, leave: Leave) -> None:
        self._leave = leave
        self._entries = deque[QueueEntry]()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: QueueEntry) -> None:
        """Add an entry at the end."""
        self._entries.append(entry)

    def complete(self, entry: QueueEntry) -> None:
        """Let the completed entries at the head leave."""
        entries = self._entries
        if entries[0] is not entry:
            return
        while entries and entries[0].outputs is not None:
            self._leave(entries.popleft())

    def pending(self) -> Iterator[Entry]:
        """Return the entries that have not completed, oldest first."""
        return (entry for entry in self._entries if isinstance(entry, Entry) and entry.outputs is None)

    def entries(self) -> list[QueueEntry]:
        """Return all entries in the order in which they were put."""
        return list(self._entries)


class Segment:
    """The entries between two watermarks."""

    __slots__ = ("completed", "pending", "watermark")

    def __init__(self) -> None:
        self.pending: dict[Entry, None] = {}
        self.completed: list[Entry] = []
        self.watermark: WatermarkEntry | None = None


class UnorderedQueue:
    """Entries leave as they complete, but none passes a watermark: segments between watermarks leave in order."""

    __slots__ = ("_first", "_last", "_later", "_leave")

    def __init__(self, leave: Leave) -> None:
        self._leave = leave
        self._first = self._last = Segment()
        self._later = deque[Segment]()

    def __len__(self) -> int:
        return sum(
            len(segment.pending) + len(segment.completed) + (segment.watermark is not None)
            for segment in self._segments()
        )

    def put(self, entry: QueueEntry) -> None:
        """Add an entry to the last segment; a watermark ends it."""
        last = self._last
        if isinstance(entry, WatermarkEntry):
            last.watermark = entry
            self._last = Segment()
            self._later.append(self._last)
        else:
            entry.segment = last
            last.pending[entry] = None

    def complete(self, entry: QueueEntry) -> None:
        """Let the entry leave if it stands in the first segment, and what follows once that segment is done."""
        if isinstance(entry, Entry):
            segment = entry.segment
            assert segment is not None, "the entry was put before"
            del segment.pending[entry]
            if segment is not self._first:
                segment.completed.append(entry)
                return
            self._leave(entry)
        while self._first.watermark is not None and not self._first.pending:
            self._end_first()

    def pending(self) -> Iterator[Entry]:
        """Return the entries that have not completed, oldest first."""
        return (entry for segment in self._segments() for entry in segment.pending)

    def entries(self) -> list[QueueEntry]:
        """Return all entries in the order in which they were put."""
        found: list[QueueEntry] = []
        for segment in self._segments():
            found += sorted([*segment.pending, *segment.completed], key=lambda entry: entry.sequence)
            if segment.watermark is not None:
                found.append(segment.watermark)
        return found

    def _end_first(self) -> None:
        watermark = self._first.watermark
        assert watermark is not None, "only the last segment is open"
        self._first = self._later.popleft()
        self._leave(watermark)
        completed, self._first.completed = self._first.completed, []
        for entry in completed:
            self._leave(entry)

    def _segments(self) -> Iterator[Segment]:
        yield self._first
        yield from self._later
