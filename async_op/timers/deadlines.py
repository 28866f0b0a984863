"""One timer for the timeouts of all in-flight entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from async_op.clock import Clock, TimerHandle
from async_op.in_flight.entries import CallEntry, Entry, is_timer
from async_op.in_flight.queues import ElementQueue


class Deadlines:
    """Expires entries at their deadlines, but watches only the oldest pending one, so an element costs next to nothing.

    All entries have the same timeout, so the oldest pending one is due first. There are two exceptions, which are
    watched individually: restored entries have less time left, and timers are in the queue before older entries. Only
    the thread of the event loop may call it.

    Parameters
    ----------
    clock : Clock
        The source of time.
    queue : ElementQueue
        Has the entries that have not completed.
    expire : callable
        Called once with each entry whose deadline has passed. It has to split a block; the entries then follow.

    Attributes
    ----------
    due : float
        When the timer fires; infinity while it is not running.
    """

    __slots__ = ("_apart", "_clock", "_expire", "_queue", "_timer", "due")

    def __init__(self, clock: Clock, queue: ElementQueue, expire: Callable[[CallEntry], None]) -> None:
        self._clock = clock
        self._queue = queue
        self._expire = expire
        self._apart: dict[Entry, None] = {}
        self._timer: TimerHandle | None = None
        self.due = float("inf")

    def arm(self, due: float) -> None:
        """Check the pending entries at `due` or earlier."""
        if due < self.due:
            if self._timer is not None:
                self._timer.cancel()
            self.due = due
            self._timer = self._clock.call_at(due, self._tick)

    def restore(self, entries: Iterable[Entry]) -> None:
        """Watch restored entries, whose deadlines may be in any order."""
        self._apart |= dict.fromkeys(entry for entry in entries if entry.deadline is not None)
        self._arm_next()

    def watch(self, entry: Entry) -> None:
        """Watch an entry whose position in the queue does not match its age."""
        assert entry.deadline is not None, "only an entry with a deadline is watched"
        self._apart[entry] = None
        self.arm(entry.deadline)

    def unwatch(self, entry: Entry) -> None:
        """Stop watching such an entry, because it has completed."""
        self._apart.pop(entry, None)

    def close(self) -> None:
        """Cancel the timer."""
        self._apart.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        self.due = float("inf")
        now = self._clock.time()
        for entry in reversed(self._overdue(now)):  # each goes to the front, so the oldest ends up first
            self._expire(entry)
        self._arm_next()

    def _overdue(self, now: float) -> list[CallEntry]:
        apart = [entry for entry in self._apart if entry.outputs is None and not entry.expired]
        overdue = [entry for entry in apart if entry.deadline is not None and entry.deadline <= now]
        found: dict[CallEntry, None] = dict.fromkeys(overdue)
        self._apart = dict.fromkeys(entry for entry in apart if entry not in found)
        for entry in self._watched():
            assert entry.deadline is not None, "watched entries have a deadline"
            if entry.deadline > now:
                break
            found[entry] = None
        return list(found)

    def _arm_next(self) -> None:
        oldest = next(self._watched(), None)
        candidates: list[CallEntry] = [*self._apart] if oldest is None else [*self._apart, oldest]
        deadlines = [entry.deadline for entry in candidates if entry.deadline is not None]
        if deadlines:
            self.arm(min(deadlines))

    def _watched(self) -> Iterator[CallEntry]:
        return (
            entry
            for entry in self._queue.pending()
            if entry.deadline is not None and not entry.expired and not is_timer(entry)
        )
