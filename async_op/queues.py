"""The queues of in-flight entries: they decide which completed entry may leave.

Each is made with the functions that are called with the entries and the watermarks that leave, in their order. Only
the thread of the event loop may call them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from async_op.elements import Entry, WatermarkEntry

QueueEntry = Entry | WatermarkEntry


class ElementQueue(Protocol):
    """In-flight entries in an order of emission."""

    def __len__(self) -> int: ...

    def put(self, entry: Entry) -> None:
        """Add an entry at the end."""
        ...

    def put_watermark(self, watermark: WatermarkEntry) -> None:
        """Add a watermark at the end; it leaves at once if nothing stands before it."""
        ...

    def complete(self, entry: Entry) -> None:
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

    __slots__ = ("_entries", "_leave", "_leave_watermark")

    def __init__(self, leave: Callable[[Entry], None], leave_watermark: Callable[[WatermarkEntry], None]) -> None:
        self._leave = leave
        self._leave_watermark = leave_watermark
        self._entries = deque[QueueEntry]()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Entry) -> None:
        """Add an entry at the end."""
        self._entries.append(entry)

    def put_watermark(self, watermark: WatermarkEntry) -> None:
        """Add a watermark at the end; it leaves at once if nothing stands before it."""
        if self._entries:
            self._entries.append(watermark)
        else:
            self._leave_watermark(watermark)

    def complete(self, entry: Entry) -> None:
        """Let the completed entries at the head leave, and the watermarks between them."""
        entries = self._entries
        if entries[0] is not entry:
            return
        while entries and entries[0].outputs is not None:
            head = entries.popleft()
            if isinstance(head, Entry):
                self._leave(head)
            else:
                self._leave_watermark(head)

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

    __slots__ = ("_first", "_last", "_later", "_leave", "_leave_watermark")

    def __init__(self, leave: Callable[[Entry], None], leave_watermark: Callable[[WatermarkEntry], None]) -> None:
        self._leave = leave
        self._leave_watermark = leave_watermark
        self._first = self._last = Segment()
        self._later = deque[Segment]()

    def __len__(self) -> int:
        return sum(
            len(segment.pending) + len(segment.completed) + (segment.watermark is not None)
            for segment in self._segments()
        )

    def put(self, entry: Entry) -> None:
        """Add an entry to the last segment."""
        entry.segment = last = self._last
        last.pending[entry] = None

    def put_watermark(self, watermark: WatermarkEntry) -> None:
        """End the last segment; the watermark leaves at once if nothing stands before it."""
        self._last.watermark = watermark
        self._last = Segment()
        self._later.append(self._last)
        self._end_segments()

    def complete(self, entry: Entry) -> None:
        """Let the entry leave if it stands in the first segment, and what follows once that segment is done."""
        segment = entry.segment
        assert segment is not None, "the entry was put before"
        del segment.pending[entry]
        if segment is not self._first:
            segment.completed.append(entry)
            return
        self._leave(entry)
        if segment.watermark is not None:
            self._end_segments()

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

    def _end_segments(self) -> None:
        """Let the watermarks leave that nothing pending stands before, and what has completed behind them."""
        while (watermark := self._first.watermark) is not None and not self._first.pending:
            self._first = self._later.popleft()
            self._leave_watermark(watermark)
            completed, self._first.completed = self._first.completed, []
            for entry in completed:
                self._leave(entry)

    def _segments(self) -> Iterator[Segment]:
        yield self._first
        yield from self._later


def queue_of(
    mode: str, leave: Callable[[Entry], None], leave_watermark: Callable[[WatermarkEntry], None]
) -> ElementQueue:
    """Return the queue for a mode; the order of a key's entries is kept by its gate, not by the queue."""
    return (OrderedQueue if mode == "ordered" else UnorderedQueue)(leave, leave_watermark)


def count_entries(queue: ElementQueue) -> dict[str, Any]:
    """Return how many entries are pending, have completed, and are watermarks."""
    entries = queue.entries()
    watermarks = sum(entry.is_watermark for entry in entries)
    pending = sum(1 for _ in queue.pending())
    return {"pending": pending, "completed": len(entries) - pending - watermarks, "watermarks": watermarks}
