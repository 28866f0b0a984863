"""Elements that were handed to a subtask and for which its operator has no room yet, and how many of them there may be.

No call has begun for an element in the inbox, and its timeout is not running. A cut includes the inbox: at any moment,
an element is either in the inbox or in the operator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from async_op.clock import Clock
from async_op.elements import Element, Watermark
from async_op.in_flight.waiters import Waiters
from async_op.subtask.operator import Waiting

INBOX_MAX = 1024
"""A feeder waits while more elements than this have no room in the operator."""

RESERVE_MAX = 10_000
"""At most this many elements may wait for a call when a host asks for more rows; a cut takes 2 µs for each of them."""

RESERVE_BYTES_MAX = 16 * 2**20
"""At most these many bytes of rows, as they were fed, may wait for a call when a host asks for more rows."""


class Reserve:
    """Learns how many elements the operator takes in from a cut until the next rows come, and keeps half as many more.

    Between two micro-batches Spark commits, plans and starts tasks. An operator with an empty inbox would make fewer
    and fewer calls meanwhile. One thread may call it.

    Parameters
    ----------
    least : int
        The size at first, and the least that is learnt: the operator's capacity.
    elements_max, bytes_max : int
        Limits of the size, in elements and in bytes of the rows as they were fed.

    Examples
    --------
    >>> reserve = Reserve(100, 10_000, 2**24)
    >>> reserve.cut(waiting=500)
    >>> reserve.fed(waiting=300, rows=1000, rows_bytes=20_000)
    >>> reserve.size
    300
    """

    def __init__(self, least: int, elements_max: int = RESERVE_MAX, bytes_max: int = RESERVE_BYTES_MAX) -> None:
        self._least = least
        self._elements_max = elements_max
        self._bytes_max = bytes_max
        self._learnt = 0
        self._waiting_at_cut: int | None = None
        self._row_bytes = 0.0

    @property
    def size(self) -> int:
        """The number of elements that may wait."""
        size = min(max(self._learnt, self._least), self._elements_max)
        return min(size, int(self._bytes_max / self._row_bytes)) if self._row_bytes else size

    def cut(self, waiting: int) -> None:
        """Note that a cut was taken while so many elements waited."""
        self._waiting_at_cut = waiting

    def fed(self, waiting: int, rows: int, rows_bytes: int) -> None:
        """Note that rows came while so many elements still waited."""
        if not rows:
            return
        self._row_bytes = rows_bytes / rows
        if self._waiting_at_cut is not None:
            taken = max(0, self._waiting_at_cut - waiting)
            # If none was left, more might have been taken in.
            needed = 2 * taken if waiting == 0 else taken + taken // 2
            self._learnt = max(needed, self._learnt * 3 // 4)
            self._waiting_at_cut = None


class Inbox:
    """The elements that wait, in their order. Only the thread of the event loop may call it.

    Attributes
    ----------
    elements : deque
        The elements and watermarks.
    awaited : int
        The greatest number of elements that a waiting coroutine waits for. Waking it for each element that is taken
        would cost a fifth of the processor's time of a short call.
    changed : Waiters
        Wakes those who wait for a change.
    """

    __slots__ = ("awaited", "changed", "elements")

    def __init__(self) -> None:
        self.elements = deque[Waiting]()
        self.awaited = 0
        self.changed = Waiters()

    def __len__(self) -> int:
        return len(self.elements)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self.elements)

    def restore(self, elements: Iterable[Waiting]) -> None:
        """Begin with the elements of a snapshot."""
        self.elements.extend(elements)

    def append_watermark(self, watermark: Watermark) -> None:
        """Add a watermark at the end; it replaces one that is right before it, so watermarks alone use up no room."""
        if self.elements and isinstance(self.elements[-1], Watermark):
            self.elements.pop()
        self.elements.append(watermark)

    def take(self, most: int) -> Sequence[Element]:
        """Remove and return the first elements before the next watermark, `most` at most."""
        taken: Any = self.elements
        if len(taken) <= most and Watermark not in set(map(type, taken)):  # usually, and without a loop
            self.elements = deque()
            return taken  # type: ignore[no-any-return]
        taken = []
        while self.elements and len(taken) < most and not isinstance(self.elements[0], Watermark):
            taken.append(self.elements.popleft())
        return taken  # type: ignore[no-any-return]

    def take_watermark(self) -> Watermark | None:
        """Remove and return the first element, if it is a watermark."""
        return self.elements.popleft() if isinstance(self.elements[0], Watermark) else None  # type: ignore[return-value]

    def is_at_most(self, length: int) -> bool:
        """Return whether no more elements wait; if more do, `changed` is woken once they are so few."""
        if len(self.elements) <= length:
            return True
        self.awaited = max(self.awaited, length)
        return False

    def shrunk(self, before: int) -> None:
        """Tell all who wait that elements have been taken; there were so many before."""
        if len(self.elements) <= self.awaited:
            self.awaited = 0  # who waits on says so again
            self.changed.wake()


class ReservedInbox(Inbox):
    """An inbox that is fed from epoch to epoch, and holds a reserve for the time between them.

    Parameters
    ----------
    clock : Clock
        The source of time.
    reserve : Reserve
        How many elements may wait while the rows of another epoch are fetched.

    Attributes
    ----------
    changed : Waiters
        Those who wait get the reason for which the inbox has ended as an error.
    """

    __slots__ = ("_clock", "_queued_seconds", "_queued_since", "reserve")

    def __init__(self, clock: Clock, reserve: Reserve) -> None:
        super().__init__()
        self._clock = clock
        self.reserve = reserve
        self._queued_seconds = 0.0
        self._queued_since: float | None = None

    @property
    def has_room(self) -> bool:
        """Whether the rows of another epoch may come: no more elements wait than the reserve."""
        return len(self) <= self.reserve.size

    def restore(self, elements: Iterable[Waiting]) -> None:
        """Begin with the elements of a snapshot."""
        super().restore(elements)
        self._grown()

    def put(self, elements: Iterable[Element], rows_bytes: int) -> None:
        """Add the elements of rows at the end; `rows_bytes` is the size of the rows as they were fed."""
        before = len(self)
        self.elements.extend(elements)
        self.reserve.fed(before, len(self) - before, rows_bytes)
        self._grown()

    def put_watermark(self, watermark: Watermark) -> None:
        """Add a watermark at the end."""
        self.append_watermark(watermark)
        self._grown()

    def note_cut(self) -> None:
        """Note that a cut was taken: the reserve must last from here until the next rows come."""
        self.reserve.cut(len(self))

    async def wait_until_at_most(self, length: int, seconds: float) -> None:
        """Wait until no more elements wait, but no longer than some seconds."""
        await self.changed.wait_at_most(seconds, self._clock, lambda: self.is_at_most(length))

    def shrunk(self, before: int) -> None:
        """Tell all who wait that elements have been taken; there were so many before."""
        if self._queued_since is not None and not self.elements:
            self._queued_seconds += self._clock.time() - self._queued_since
            self._queued_since = None
        super().shrunk(before)

    def queued_seconds(self) -> float:
        """Return the total time during which elements waited."""
        since = self._queued_since
        return self._queued_seconds + (0.0 if since is None else self._clock.time() - since)

    def end(self, reason: BaseException) -> None:
        """Let nothing more be taken; all who wait for the inbox get the reason as an error."""
        self.changed.end(reason)

    def _grown(self) -> None:
        if self._queued_since is None and self.elements:
            self._queued_since = self._clock.time()
        self.changed.wake()
