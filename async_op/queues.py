"""The queues of in-flight entries: they decide which completed entry may leave.

Only the thread of the event loop may call them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from async_op.elements import Entry, WatermarkEntry

QueueEntry = Entry | WatermarkEntry


class ElementQueue(Protocol):
    """In-flight entries in an order of emission."""

    def __len__(self) -> int: ...

    def put(self, entry: QueueEntry) -> None:
        """Add an entry at the end."""
        ...

    def pop_completed(self, entry: QueueEntry) -> Iterator[QueueEntry]:
        """Tell that an entry has completed; yields, in order, the entries that may leave because of it."""
        ...

    def entries(self) -> list[QueueEntry]:
        """Return all entries in the order in which they were put."""
        ...


class OrderedQueue:
    """Entries leave in the order in which they came: only the head may leave."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries = deque[QueueEntry]()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: QueueEntry) -> None:
        """Add an entry at the end."""
        self._entries.append(entry)

    def pop_completed(self, entry: QueueEntry) -> Iterator[QueueEntry]:
        """Yield the completed entries at the head."""
        entries = self._entries
        while entries and entries[0].outputs is not None:
            yield entries.popleft()

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

    __slots__ = ("_segments", "_size")

    def __init__(self) -> None:
        self._segments = deque([Segment()])
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, entry: QueueEntry) -> None:
        """Add an entry to the last segment; a watermark ends it."""
        self._size += 1
        if isinstance(entry, WatermarkEntry):
            self._segments[-1].watermark = entry
            self._segments.append(Segment())
        else:
            entry.segment = self._segments[-1]
            entry.segment.pending[entry] = None

    def pop_completed(self, entry: QueueEntry) -> Iterator[QueueEntry]:
        """Yield the entry if it stands in the first segment, and what follows once that segment is done."""
        first = self._segments[0]
        if isinstance(entry, Entry):
            segment = entry.segment
            assert segment is not None, "the entry was put before"
            del segment.pending[entry]
            if segment is not first:
                segment.completed.append(entry)
                return
            self._size -= 1
            yield entry
        while not first.pending and first.watermark is not None:
            self._size -= 1
            yield first.watermark
            self._segments.popleft()
            first = self._segments[0]
            self._size -= len(first.completed)
            yield from first.completed
            first.completed = []

    def entries(self) -> list[QueueEntry]:
        """Return all entries in the order in which they were put."""
        found: list[QueueEntry] = []
        for segment in self._segments:
            found += sorted([*segment.pending, *segment.completed], key=lambda entry: entry.sequence)
            if segment.watermark is not None:
                found.append(segment.watermark)
        return found
