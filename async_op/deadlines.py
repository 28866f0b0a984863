"""One timer for the timeouts of all in-flight entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from async_op.clock import Clock, TimerHandle
from async_op.elements import Entry, is_timer
from async_op.queues import CallEntry


class Deadlines:
    """Watches the oldest pending entry only, so an element costs nothing but its deadline's number.

    All entries have the same timeout, so the oldest pending one is due first. Restored entries have less left, and
    timers stand in the queue before entries that are older: these are watched on their own. Only the thread of the
    event loop may call it.

    Parameters
    ----------
    clock : Clock
        The source of time.
    pending : callable
        Returns the entries that have not completed, oldest first.
    expire : callable
        Called once with each entry whose deadline has passed; a block is to be split, and its entries follow.

    Attributes
    ----------
    due : float
        When the timer fires; infinity while it does not run.
    """

    __slots__ = ("_apart", "_clock", "_expire", "_pending", "_timer", "due")

    def __init__(
        self, clock: Clock, pending: Callable[[], Iterator[CallEntry]], expire: Callable[[CallEntry], None]
    ) -> None:
        self._clock = clock
        self._pending = pending
        self._expire = expire
        self._apart: dict[Entry, None] = {}
        self._timer: TimerHandle | None = None
        self.due = float("inf")

    def arm(self, due: float) -> None:
        """Look at the pending entries at `due`, or before."""
        if due < self.due:
            if self._timer is not None:
                self._timer.cancel()
            self.due = due
            self._timer = self._clock.call_at(due, self._tick)

    def restore(self, entries: list[Entry]) -> None:
        """Watch entries whose deadlines are in no order."""
        self._apart |= dict.fromkeys(entry for entry in entries if entry.deadline is not None)
        self._arm_next()

    def watch(self, entry: Entry) -> None:
        """Watch an entry that does not stand in the queue where it would by its age."""
        assert entry.deadline is not None, "there is something to watch"
        self._apart[entry] = None
        self.arm(entry.deadline)

    def unwatch(self, entry: Entry) -> None:
        """Tell that such an entry has completed."""
        self._apart.pop(entry, None)

    def close(self) -> None:
        """Forget the timer."""
        self._apart.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        self.due = float("inf")
        now = self._clock.time()
        for entry in reversed(self._overdue(now)):  # the last one to be expired is the first to get its fallback
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
            for entry in self._pending()
            if entry.deadline is not None and not entry.expired and not is_timer(entry)
        )
