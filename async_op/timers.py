"""What makes timers fire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from async_op.clock import Clock, TimerHandle
from async_op.elements import Entry, WatermarkEntry, new_entry
from async_op.gate import TimerGate
from keygroups.state import KeyedStateBackend, LazyGroup, identity_of, original_of
from keygroups.state.timers import EVENT_TIME, PROCESSING_TIME, Place, Timer, TimerIndex

if TYPE_CHECKING:
    from async_op.context import InvocationContext
    from async_op.deadlines import Deadlines
    from async_op.in_flight import InFlight
    from async_op.settings import OperatorSettings

RestoredTimers = Mapping[int, LazyGroup | dict[Hashable, Any]]
"""Timers by key group."""

_NEVER = float("inf")


class TimerService:
    """Fires the timers of one subtask. Only the thread of the event loop may call it.

    A timer fires by becoming an element: in one step it is removed from the state and put into the queue. That is
    done only while its key is free, so a timer can be deleted until its own invocation begins, and all timers of a key
    fire in order, those included that an earlier one registers. It may exceed the operator's capacity, because a busy
    input could hold it up for ever otherwise; of timers alone no more are begun while as many are in flight.

    Parameters
    ----------
    backend : KeyedStateBackend
        Has the states of timers.
    restored : mapping of str to mapping
        What these states had in the snapshot.
    clock : Clock
        The source of time.
    in_flight : InFlight
        The queue.
    capacity : int
        How many timers may be in flight.
    timeout : float or None
        The operator's.

    Attributes
    ----------
    gate : TimerGate
        Of the keys.
    start : callable
        Makes the call of an entry; to be set.
    deadlines : Deadlines
        Watch the timeouts of timers; to be set.
    active, fired : int
        Timers in flight, and how many have become elements.
    """

    __slots__ = (
        "_capacity",
        "_clock",
        "_due",
        "_event",
        "_held",
        "_in_flight",
        "_is_called",
        "_is_restoring",
        "_last",
        "_loop_timer",
        "_processing",
        "_restored",
        "_stopped",
        "_timeout",
        "active",
        "deadlines",
        "fired",
        "gate",
        "start",
    )

    start: Callable[[list[Entry]], object]
    deadlines: Deadlines

    def __init__(
        self,
        backend: KeyedStateBackend,
        restored: Mapping[str, RestoredTimers],
        clock: Clock,
        in_flight: InFlight,
        capacity: int,
        timeout: float | None,
    ) -> None:
        self.gate = TimerGate(self)
        self.active = self.fired = 0
        self._restored = restored
        self._processing = TimerIndex(backend.tables[PROCESSING_TIME.name], self.gate.is_busy)
        self._event = TimerIndex(backend.tables[EVENT_TIME.name], self.gate.is_busy)
        self._clock = clock
        self._in_flight = in_flight
        self._capacity = capacity
        self._timeout = timeout
        self._held: WatermarkEntry | None = None
        self._last = _NEVER
        self._due = _NEVER
        self._loop_timer: TimerHandle | None = None
        self._is_called = self._is_restoring = self._stopped = False

    @classmethod
    def of(
        cls,
        settings: OperatorSettings,
        backend: KeyedStateBackend,
        restored: Mapping[str, RestoredTimers] | None,
        clock: Clock,
        in_flight: InFlight,
    ) -> TimerService | None:
        """Return what fires the timers of an operator's function, if that has any."""
        if not settings.function.has_timers:
            return None
        return cls(backend, restored or {}, clock, in_flight, settings.capacity, settings.timeout)

    async def load(self) -> None:
        """Bring the timers of the snapshot into memory, all of them: the next one to fire may be any."""
        self._is_restoring = True
        for index in (self._processing, self._event):
            table = index.table
            groups = await asyncio.to_thread(index.load, self._restored[table.descriptor.name])
            for key_group, group in groups.items():
                table.install(key_group, group)

    def begin(self) -> None:
        """Fire what is due now that all that was in flight is in the queue, and wait for the rest."""
        self._is_restoring = False
        self._in_flight.queue.release()
        self._fire_processing()

    def finish(self) -> None:
        """End of input: fire what is due by now, and nothing that is due later."""
        self._last = self._clock.wall_time()
        self._fire_processing()

    def stop(self) -> None:
        """Fire nothing any more."""
        self._stopped = True
        if self._loop_timer is not None:
            self._loop_timer.cancel()

    def index_of(self, event_time: bool) -> TimerIndex:
        """Return the timers of a kind."""
        return self._event if event_time else self._processing

    @property
    def processing_time(self) -> int:
        """Milliseconds since the epoch."""
        return self._clock.wall_time()

    @property
    def watermark(self) -> int | None:
        """The newest one that has left the operator."""
        return self._in_flight.watermark

    def changed(self, index: TimerIndex) -> None:
        """Tell that there are other timers of a kind."""
        if index is self._processing:
            self._arm()

    def fire_before(self, watermark: WatermarkEntry) -> bool:
        """Put what is due in front of a watermark that would leave now, and tell whether that has to wait for it."""
        self._held = watermark
        if self._is_restoring:
            return True
        is_held = self._fire_event() or bool(self._event.parked) or self._is_due(self._event, watermark.timestamp)
        if not is_held:
            self._held = None
        return is_held

    def next_of(self, key: Hashable) -> Entry | None:
        """Put into the queue what waits for a key that has become free; the key is given to it."""
        if self._event.parked and self._held is not None:
            place = self._event.take_parked(identity_of(key), self._held.timestamp)
            if place is not None:
                return self._put(place, self._held)
        if self._processing.parked:
            place = self._processing.take_parked(identity_of(key), self._now())
            if place is not None:
                return self._put(place, None)
        return None

    def ended(self, entry: Entry) -> None:
        """Tell that the invocation of a timer has ended."""
        self.active -= 1
        self.deadlines.unwatch(entry)

    def left(self) -> None:
        """Tell that a key has become free: once the entry has left as well, there may be something to do."""
        is_waiting = self._held is not None or (self._loop_timer is None and self._due < _NEVER)
        if is_waiting and not self._is_called and not self._stopped:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_called = False
        if self._stopped:
            return
        if self._loop_timer is None:
            self._fire_processing()
        if self._held is not None:
            self._fire_event()
            self._in_flight.queue.release()

    def _now(self) -> int:
        return int(min(self._clock.wall_time(), self._last))

    def _is_due(self, index: TimerIndex, until: int) -> bool:
        return index.first is not None and index.first <= until

    def _fire_event(self) -> bool:
        """Put in front of the watermark as many timers as may be in flight, and tell whether there were some."""
        fired = self.fired
        while self._held is not None and self.active < self._capacity:
            place = self._event.take(self._held.timestamp)
            if place is None:
                break
            self.start([self._put(place, self._held)])
        return self.fired > fired

    def _fire_processing(self) -> None:
        now = self._now()
        while self.active < self._capacity and (place := self._processing.take(now)) is not None:
            self.start([self._put(place, None)])
        self._arm()

    def _put(self, place: Place, watermark: WatermarkEntry | None) -> Entry:
        self.fired += 1
        timestamp, _, key_group, identity = place
        event_time = watermark is not None
        timer = Timer(timestamp, event_time)
        entry = new_entry(timer, timestamp if event_time else None, None, self._in_flight.accepted)
        entry.key, entry.key_group = original_of(identity), key_group
        if self._timeout is not None:
            entry.deadline = self._clock.time() + self._timeout
            self.deadlines.watch(entry)
        if watermark is None:
            self._in_flight.put((entry,))
        else:
            self._in_flight.put_before(entry, watermark)
        return entry

    def _arm(self) -> None:
        """Look at the timers of processing time when the next is due, or if no more may be in flight, when one ends."""
        first = self._processing.first
        due = _NEVER if first is None or first > self._last else first
        if self._loop_timer is not None:
            if self._due <= due:
                return
            self._loop_timer.cancel()
            self._loop_timer = None
        self._due = due
        if due < _NEVER and self.active < self._capacity:
            delay = max(0, due - self._clock.wall_time()) / 1000
            self._loop_timer = self._clock.call_at(self._clock.time() + delay, self._tick)

    def _tick(self) -> None:
        self._loop_timer = None
        self._due = _NEVER
        if not self._stopped:
            self._fire_processing()


Invoke = Callable[[Any, "InvocationContext"], Coroutine[Any, Any, Iterable[Any]]]


def with_timers(on_timer: Invoke, invoke: Invoke) -> Invoke:
    """Return what invokes a function for timers and for all other elements."""
    return lambda value, ctx: on_timer(value.timestamp, ctx) if type(value) is Timer else invoke(value, ctx)
