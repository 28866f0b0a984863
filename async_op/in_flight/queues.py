"""The queues of in-flight entries, which decide which completed entry may leave.

Only the thread of the event loop may call them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from async_op.in_flight.entries import Block, CallEntry, Entry, QueueEntry, Segment, WatermarkEntry


class Exit(Protocol):
    """The exit through which entries leave a queue; a protocol, because the class that is one makes the queue."""

    def leave(self, entry: Entry) -> None:
        """Emit a completed entry."""
        ...

    def leave_block(self, block: Block) -> None:
        """Emit a completed block."""
        ...

    def leave_watermark(self, watermark: WatermarkEntry) -> None:
        """Emit a watermark."""
        ...

    def is_held(self, watermark: WatermarkEntry) -> bool:
        """Return whether a watermark at the head has to wait; this may put entries before it."""
        ...


class ElementQueue(Protocol):
    """In-flight entries, in the order in which they will be emitted."""

    def put(self, entries: Iterable[Entry]) -> None:
        """Add entries at the end."""
        ...

    def put_block(self, block: Block) -> None:
        """Add a block at the end."""
        ...

    def put_watermark(self, watermark: WatermarkEntry) -> None:
        """Add a watermark at the end; it leaves at once if nothing is before it."""
        ...

    def put_before(self, entry: Entry, watermark: WatermarkEntry) -> None:
        """Add an entry before a watermark that is held back."""
        ...

    def release(self) -> None:
        """Let a watermark that was held back leave, unless it still has to wait."""
        ...

    def complete(self, entry: Entry) -> None:
        """Record that an entry has completed, and let all entries leave that may leave now."""
        ...

    def complete_block(self, block: Block) -> None:
        """Record that a block has completed, and let everything leave that may leave now."""
        ...

    def split(self, block: Block) -> list[Entry]:
        """Replace a block by its entries, and return them."""
        ...

    def pending(self) -> Iterator[CallEntry]:
        """Return the entries and blocks that have not completed, oldest first."""
        ...

    def entries(self) -> list[QueueEntry]:
        """Return all entries in the order in which they were added."""
        ...


class OrderedQueue:
    """Entries leave in order of arrival: only the head may leave."""

    __slots__ = ("_entries", "_exit")

    def __init__(self, way_out: Exit) -> None:
        self._exit = way_out
        self._entries = deque[QueueEntry]()

    def put(self, entries: Iterable[Entry]) -> None:
        """Add entries at the end."""
        self._entries.extend(entries)

    def put_block(self, block: Block) -> None:
        """Add a block at the end."""
        self._entries.append(block)

    def put_watermark(self, watermark: WatermarkEntry) -> None:
        """Add a watermark at the end; it leaves at once if nothing is before it."""
        self._entries.append(watermark)
        self.release()

    def put_before(self, entry: Entry, watermark: WatermarkEntry) -> None:
        """Add an entry before a watermark that is held back."""
        self._entries.insert(self._entries.index(watermark), entry)

    def release(self) -> None:
        """Let the watermark at the head leave, unless it still has to wait."""
        if self._entries and isinstance(self._entries[0], WatermarkEntry):
            self._advance()

    def complete(self, entry: Entry) -> None:
        """Let the completed entries at the head leave, with the watermarks between them."""
        entries = self._entries
        if entries[0] is entry:  # as a rule it leaves alone, so this needs no call of `_advance`
            entries.popleft()
            self._exit.leave(entry)
            if entries and entries[0].outputs is not None:
                self._advance()

    def complete_block(self, block: Block) -> None:
        """Let the completed blocks and entries at the head leave, with the watermarks between them."""
        if self._entries[0] is block:
            self._advance()

    def _advance(self) -> None:
        entries = self._entries
        while entries and entries[0].outputs is not None:
            head = entries.popleft()
            if type(head) is Entry:
                self._exit.leave(head)
            elif type(head) is Block:
                self._exit.leave_block(head)
            else:
                assert isinstance(head, WatermarkEntry), "the queue has no other items"
                entries.appendleft(head)  # `is_held` may put entries before it
                if self._exit.is_held(head):
                    return
                entries.popleft()
                self._exit.leave_watermark(head)

    def split(self, block: Block) -> list[Entry]:
        """Replace a block by its entries, and return them."""
        place = self._entries.index(block)
        behind = [self._entries.pop() for _ in range(len(self._entries) - place)]
        entries = block.split()
        self._entries.extend(entries)
        self._entries.extend(reversed(behind[:-1]))
        return entries

    def pending(self) -> Iterator[CallEntry]:
        """Return the entries and blocks that have not completed, oldest first."""
        return (entry for entry in self._entries if isinstance(entry, CallEntry) and entry.outputs is None)

    def entries(self) -> list[QueueEntry]:
        """Return all entries in the order in which they were added."""
        return list(self._entries)


class UnorderedQueue:
    """Entries leave as they complete, but never pass a watermark: the segments between watermarks leave in order."""

    __slots__ = ("_exit", "_first", "_last", "_later")

    def __init__(self, way_out: Exit) -> None:
        self._exit = way_out
        self._first = self._last = Segment()
        self._later = deque[Segment]()

    def put(self, entries: Iterable[Entry]) -> None:
        """Add entries to the last segment."""
        last = self._last
        pending = last.pending
        for entry in entries:
            entry.segment = last
            pending[entry] = None

    def put_block(self, block: Block) -> None:
        """Add a block to the last segment."""
        block.segment = self._last
        self._last.pending[block] = None

    def put_watermark(self, watermark: WatermarkEntry) -> None:
        """End the last segment; the watermark leaves at once if nothing is before it."""
        self._last.watermark = watermark
        self._last = Segment()
        self._later.append(self._last)
        self._end_segments()

    def put_before(self, entry: Entry, watermark: WatermarkEntry) -> None:
        """Add an entry to the first segment, whose watermark is held back."""
        assert self._first.watermark is watermark, "only the first watermark can be held back"
        entry.segment = first = self._first
        first.pending[entry] = None

    def release(self) -> None:
        """Let the first watermark leave if nothing pending is before it, unless it still has to wait."""
        self._end_segments()

    def complete(self, entry: Entry) -> None:
        """Let the entry leave if it is in the first segment; once that segment is done, let the next ones leave."""
        segment = entry.segment
        del segment.pending[entry]
        if segment is not self._first:
            segment.completed.append(entry)
            return
        self._exit.leave(entry)
        if segment.watermark is not None:
            self._end_segments()

    def complete_block(self, block: Block) -> None:
        """Let the block leave if it is in the first segment; once that segment is done, let the next ones leave."""
        segment = block.segment
        assert segment is not None, "the block is in the queue"
        del segment.pending[block]
        segment.completed.append(block)
        if segment is self._first:
            self._leave(segment)
            self._end_segments()

    def split(self, block: Block) -> list[Entry]:
        """Replace a block by its entries, and return them."""
        segment = block.segment
        assert segment is not None, "the block is in the queue"
        entries = block.split()
        for entry in entries:
            entry.segment = segment
        pending = list(segment.pending)
        place = pending.index(block)
        pending[place : place + 1] = entries
        segment.pending = dict.fromkeys(pending)
        return entries

    def pending(self) -> Iterator[CallEntry]:
        """Return the entries and blocks that have not completed, oldest first."""
        return (entry for segment in self._segments() for entry in segment.pending)

    def entries(self) -> list[QueueEntry]:
        """Return all entries in the order in which they were added."""
        found: list[QueueEntry] = []
        for segment in self._segments():
            found += sorted([*segment.pending, *segment.completed], key=lambda entry: entry.sequence)
            if segment.watermark is not None:
                found.append(segment.watermark)
        return found

    def _end_segments(self) -> None:
        """Let watermarks leave that have nothing pending before them, and the completed entries behind them."""
        while (watermark := self._first.watermark) is not None and not self._first.pending:
            if self._exit.is_held(watermark):
                return
            self._first = self._later.popleft()
            self._exit.leave_watermark(watermark)
            self._leave(self._first)

    def _leave(self, segment: Segment) -> None:
        completed, segment.completed = segment.completed, []
        for entry in completed:
            if isinstance(entry, Entry):
                self._exit.leave(entry)
            else:
                self._exit.leave_block(entry)

    def _segments(self) -> Iterator[Segment]:
        yield self._first
        yield from self._later


def queue_of(mode: str, way_out: Exit) -> ElementQueue:
    """Return the queue for a mode. In mode "key_ordered" the key gate keeps the order of each key, not the queue."""
    return (OrderedQueue if mode == "ordered" else UnorderedQueue)(way_out)
