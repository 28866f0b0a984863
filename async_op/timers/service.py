"""Fires the timers of keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping

from async_op.clock import Clock, TimerHandle
from async_op.in_flight.entries import Entry, WatermarkEntry, is_timer, new_entry
from async_op.in_flight.in_flight import InFlight
from async_op.in_flight.key_order import KeyGate
from async_op.threads.own_thread import on_own_thread
from async_op.timers.deadlines import Deadlines
from keygroups.state import KeyedStateBackend, LazyGroup, identity_of, original_of
from keygroups.state.timers import EVENT_TIME, PROCESSING_TIME, Place, Timer, TimerIndex

RestoredTimers = Mapping[int, LazyGroup]
"""The timers of a snapshot by key group."""

_NEVER = float("inf")

_LOOK_SECONDS = 60.0
"""How late a timer may be if the wall clock was set forward or the machine slept."""


class TimerService:
    """Fires the timers of one subtask. Only the thread of the event loop may call it.

    A timer fires by becoming an element: in one step it is removed from the state and put into the queue. This happens
    only while its key is free. So a timer can be deleted until its own invocation begins, and all timers of a key fire
    in order, including timers that an earlier one registers. Timers may exceed the operator's capacity, because
    otherwise a busy input could delay them for ever. But no more timers fire while `capacity` of them are in flight.

    Parameters
    ----------
    backend : KeyedStateBackend
        Holds the states of timers.
    restored : mapping of str to mapping
        The content of these states in the snapshot.
    clock : Clock
        The source of time.
    in_flight : InFlight
        Takes the timers that have fired.
    capacity : int
        The most timers in flight.
    timeout : float or None
        The operator's timeout.
    deadlines : Deadlines
        Watches the timeouts of timers.
    start : callable
        Makes the call of an entry.

    Attributes
    ----------
    active, fired : int
        The number of timers in flight, and of timers that have fired.
    gate : TimerGate
        Knows the keys with an invocation under way, and gives them to their timers first.
    """

    __slots__ = (
        "_ahead",
        "_capacity",
        "_clock",
        "_deadlines",
        "_due",
        "_event",
        "_held",
        "_in_flight",
        "_is_called",
        "_is_paused",
        "_is_restoring",
        "_last",
        "_loop_timer",
        "_processing",
        "_restored",
        "_start",
        "_stopped",
        "_timeout",
        "active",
        "fired",
        "gate",
    )

    def __init__(
        self,
        backend: KeyedStateBackend,
        restored: Mapping[str, RestoredTimers],
        clock: Clock,
        in_flight: InFlight,
        capacity: int,
        timeout: float | None,
        deadlines: Deadlines,
        start: Callable[[list[Entry]], object],
    ) -> None:
        self.active = self.fired = 0
        self._restored = restored
        self.gate = TimerGate(self)
        self._processing = TimerIndex(backend.tables[PROCESSING_TIME.name], self.gate.busy)
        self._event = TimerIndex(backend.tables[EVENT_TIME.name], self.gate.busy)
        self._clock = clock
        self._in_flight = in_flight
        self._capacity = capacity
        self._timeout = timeout
        self._deadlines = deadlines
        self._start = start
        self._held: WatermarkEntry | None = None
        self._last: int | None = None
        self._due = _NEVER
        self._loop_timer: TimerHandle | None = None
        self._is_called = self._is_paused = self._is_restoring = self._stopped = False
        self._ahead = -_NEVER
        self._compare_clocks()

    async def load(self) -> None:
        """Load all timers of the snapshot into memory: any of them may be the next one to fire."""
        self._is_restoring = True
        for index in (self._processing, self._event):
            table = index.table
            groups = await on_own_thread(index.load, self._restored[table.descriptor.name])
            for key_group, group in groups.items():
                table.install(key_group, group)

    def begin(self) -> None:
        """Fire the timers that are due, and schedule the rest; called when all restored elements are in the queue."""
        self._is_restoring = False
        self._in_flight.queue.release()
        self._fire_processing()

    def finish(self) -> None:
        """Handle the end of the input: fire the timers that are due now, and none that become due later.

        If the wall clock was set back, the time counts that it would have reached: otherwise timers whose time has come
        would never fire.
        """
        self._compare_clocks()
        self._last = max(self._clock.wall_time(), round(1000 * self._clock.time() + self._ahead))
        self._fire_processing()

    def is_finished(self) -> bool:
        """Return whether, after `finish`, no timer is left to fire."""
        first = self._processing.next
        return first is None or first > self._now()

    def stop(self) -> None:
        """Fire no more timers."""
        self._stopped = True
        if self._loop_timer is not None:
            self._loop_timer.cancel()

    def pause(self) -> None:
        """Fire no timers until `resume`."""
        self._is_paused = True

    def resume(self) -> None:
        """Fire the timers that have become due since `pause`, and continue as usual."""
        if self._is_paused:
            self._is_paused = False
            self._go_on()

    def index_of(self, event_time: bool) -> TimerIndex:
        """Return the index of the event-time or processing-time timers."""
        return self._event if event_time else self._processing

    @property
    def processing_time(self) -> int:
        """Milliseconds since the epoch."""
        return self._clock.wall_time()

    @property
    def watermark(self) -> int | None:
        """The newest watermark that has left the operator."""
        return self._in_flight.watermark

    def changed(self, index: TimerIndex) -> None:
        """Reschedule after timers of an index have been registered or deleted."""
        if index is self._processing:
            self._compare_clocks()
            self._arm()

    def fire_before(self, watermark: WatermarkEntry) -> bool:
        """Put due timers before a watermark that is about to leave; returns whether it has to wait for them."""
        self._held = watermark
        if self._is_restoring:
            return True
        if self._is_paused and self._is_due(self._event, watermark.timestamp):
            return True
        is_held = self._fire_event() or bool(self._event.parked) or self._is_due(self._event, watermark.timestamp)
        if not is_held:
            self._held = None
        return is_held

    def next_of(self, key: Hashable) -> Entry | None:
        """Give a key that has become free to its next due timer and put that into the queue; None if there is none."""
        if self._event.parked and self._held is not None:
            place = self._event.take_parked(identity_of(key), self._held.timestamp)
            if place is not None:
                return self._put(place, self._held)
        if self._processing.parked:
            place = self._processing.take_parked(identity_of(key), self._now())
            if place is not None:
                return self._put(place, None)
        return None

    def began(self, count: int) -> None:
        """Count timers whose invocations begin."""
        self.active += count

    def ended(self, entry: Entry) -> None:
        """Uncount a timer whose invocation has ended."""
        self.active -= 1
        self._deadlines.unwatch(entry)

    def left(self) -> None:
        """React to a key that has become free: once its entry has left the queue, a timer may be able to fire."""
        is_waiting = self._held is not None or (self._loop_timer is None and self._due < _NEVER)
        if is_waiting and not self._is_called and not self._stopped:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_called = False
        if self._stopped or self._is_paused:
            return
        if self._loop_timer is None:
            self._fire_processing()
        if self._held is not None:
            self._fire_event()
            self._in_flight.queue.release()

    def _now(self) -> int:
        """Return the time up to which timers are due; it stands still from the end of the input on."""
        return self._clock.wall_time() if self._last is None else self._last

    def _compare_clocks(self) -> None:
        """Note how far the wall clock is ahead of the other one; that becomes less when it is set back."""
        self._ahead = max(self._ahead, self._clock.wall_time() - 1000 * self._clock.time())

    def _is_due(self, index: TimerIndex, until: int) -> bool:
        return index.first is not None and index.first <= until

    def _fire_event(self) -> bool:
        """Put as many due timers before the watermark as may be in flight; returns whether there were any."""
        fired = self.fired
        while self._held is not None and self.active < self._capacity:
            place = self._event.take(self._held.timestamp)
            if place is None:
                break
            self._start([self._put(place, self._held)])
        return self.fired > fired

    def _fire_processing(self) -> None:
        now = self._now()
        while self.active < self._capacity and (place := self._processing.take(now)) is not None:
            self._start([self._put(place, None)])
        self._arm()

    def _put(self, place: Place, watermark: WatermarkEntry | None) -> Entry:
        self.fired += 1
        timestamp, _, key_group, identity = place
        event_time = watermark is not None
        timer = Timer(timestamp, event_time)
        entry = new_entry(timer, timestamp if event_time else None, None, self._in_flight.accepted)
        entry.key, entry.identity, entry.key_group = original_of(identity), identity, key_group
        if self._timeout is not None:
            entry.deadline = self._clock.time() + self._timeout
            self._deadlines.watch(entry)
        if watermark is None:
            self._in_flight.put((entry,))
        else:
            self._in_flight.put_before(entry, watermark)
        return entry

    def _arm(self) -> None:
        """Schedule a check when the next processing-time timer is due; at full capacity an ending timer triggers it."""
        first = self._processing.first
        due = _NEVER if first is None or (self._last is not None and first > self._last) else first
        if self._loop_timer is not None:
            if self._due <= due:
                return
            self._loop_timer.cancel()
            self._loop_timer = None
        self._due = due
        if due < _NEVER and self.active < self._capacity:
            delay = min(max(0, due - self._now()) / 1000, _LOOK_SECONDS)
            self._loop_timer = self._clock.call_at(self._clock.time() + delay, self._tick)

    def _tick(self) -> None:
        self._loop_timer = None
        self._due = _NEVER
        if not self._stopped and not self._is_paused:
            self._fire_processing()


class TimerGate(KeyGate):
    """Gives a key that has become free to its timers first. Only the thread of the event loop may call it."""

    __slots__ = ("_timers",)

    def __init__(self, timers: TimerService) -> None:
        super().__init__()
        self._timers = timers

    def enter(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries that may be invoked now; the others wait until their key is free."""
        entries = list(entries)
        self._timers.began(sum(map(is_timer, entries)))
        return super().enter(entries)

    def leave(self, entry: Entry) -> Entry | None:
        """Free the key after the entry's invocation has ended; returns its next timer or element, or None."""
        timers = self._timers
        if is_timer(entry):
            timers.ended(entry)
        following = timers.next_of(entry.key)
        if following is None:
            following = super().leave(entry)
        else:
            timers.began(1)
        timers.left()
        return following
