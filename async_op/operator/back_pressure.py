"""Back-pressure: computes how much room there is, and makes the input wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from async_op.calls.batch_filling import Batching
from async_op.calls.dispatch import Dispatch
from async_op.elements import Element
from async_op.in_flight.in_flight import InFlight
from async_op.in_flight.key_order import KeyGate
from async_op.in_flight.waiters import Waiters
from async_op.lifecycle import Lifecycle
from async_op.operator.admission import TURN, Intake, IteratorFeed
from async_op.options import OperatorOptions
from async_op.statistics import Stopwatch

_log = logging.getLogger(__name__)


class _Pressure:
    """The time without room. It is in the statistics; its begin and end are in the log, with how full the queue is."""

    __slots__ = ("_began", "_capacity", "_in_flight", "_watch")

    def __init__(self, watch: Stopwatch, in_flight: InFlight, capacity: int) -> None:
        self._watch = watch
        self._in_flight = in_flight
        self._capacity = capacity
        self._began = 0.0

    def __enter__(self) -> None:
        self._watch.start()
        if _log.isEnabledFor(logging.DEBUG):
            self._began = self._watch.seconds
            _log.debug("back-pressure begins: %d in flight, the capacity is %d", len(self._in_flight), self._capacity)

    def __exit__(self, *_: object) -> None:
        self._watch.stop()
        if _log.isEnabledFor(logging.DEBUG):
            left = f"{len(self._in_flight)} in flight, the capacity is {self._capacity}"
            _log.debug("back-pressure has ended after %.3f s: %s", self._watch.seconds - self._began, left)


class BackPressure:
    """Admits elements while there is room for them. Only the thread of the event loop may call it.

    Parameters
    ----------
    options : OperatorOptions
        Has the capacity.
    lifecycle : Lifecycle
        Knows whether elements may be admitted.
    in_flight : InFlight
        Knows how many elements are in flight.
    intake : Intake or Batching
        Admits elements.
    dispatch : Dispatch
        Has the workers, which take elements themselves where the return of a call makes room.
    gate : KeyGate or None
        In mode "key_ordered", knows how many elements wait for their key and do not count.
    waiters : Waiters
        Wakes waiting coroutines as elements leave.
    back_pressured : Stopwatch
        Runs while an element waits for room.
    """

    __slots__ = (
        "_back_pressured",
        "_capacity",
        "_dispatch",
        "_gate",
        "_in_flight",
        "_intake",
        "_lifecycle",
        "_waiters",
        "_waiting_max",
    )

    def __init__(
        self,
        options: OperatorOptions,
        lifecycle: Lifecycle,
        in_flight: InFlight,
        intake: Intake | Batching,
        dispatch: Dispatch,
        gate: KeyGate | None,
        waiters: Waiters,
        back_pressured: Stopwatch,
    ) -> None:
        self._capacity = options.capacity
        self._waiting_max = options.waiting_max
        self._lifecycle = lifecycle
        self._in_flight = in_flight
        self._intake = intake
        self._dispatch = dispatch
        self._gate = gate
        self._waiters = waiters
        self._back_pressured = _Pressure(back_pressured, in_flight, options.capacity)

    async def wait_for_room(self) -> None:
        """Wait until there is room for an element."""
        self._lifecycle.check()
        if not self._has_room():
            with self._back_pressured:
                await self._waiters.wait_until(self._has_room)

    async def wait_for_refill(self, is_starved: Callable[[], bool]) -> None:
        """Wait until there is room for many elements, or for one that no worker takes itself.

        Parameters
        ----------
        is_starved : callable
            Returns whether a worker has found no element since the last wait. When that changes, call `wake`. As long
            as each finds one, it is enough to come when half of what was in flight has left: a turn of the event
            loop for each would cost as much.
        """
        self._lifecycle.check()
        if self._has_room():
            return
        half = (self._capacity + 1) // 2
        enough = lambda: self._room() >= (1 if is_starved() else half)  # noqa: E731
        with self._back_pressured:
            if self._gate is not None:
                await self._waiters.wait_until(enough)
                return
            # To look at the condition whenever an element leaves would cost a tenth of a short call.
            self._in_flight.low = self._capacity - (1 if is_starved() else half)
            try:
                await self._waiters.wait_patiently(enough)
            finally:
                self._in_flight.low = 0

    async def take_all(self, elements: Iterable[Element]) -> None:
        """Admit all elements, and wait for room whenever there is none."""
        source = iter(elements)
        feed = self._feed_from(source)
        with self._dispatch.workers.fed_by(feed):
            while True:
                room = min(self._room(), TURN)
                if room <= 0:
                    if (following := next(source, None)) is None:
                        return
                    await self._wait_with(following, feed)
                elif self._intake.take(source, room):
                    await (asyncio.sleep(0) if feed is None else feed.give_way())
                else:
                    return

    @property
    def room(self) -> int:
        """How many elements may be admitted in one turn of the event loop."""
        return max(0, min(self._room(), TURN))

    def take_some(self, source: Iterator[Element]) -> None:
        """Admit as many elements as there is room for, without waiting."""
        self._lifecycle.check()
        # A batch function takes no more than the rest of a batch each time. Its caller has no other place for the rest.
        while (room := min(self._room(), TURN)) > 0 and self._intake.take(source, room):
            pass

    def _feed_from(self, source: Iterator[Element]) -> IteratorFeed | None:
        """Return a feed for workers, or None if the return of a call does not make room."""
        if self._gate is not None or self._dispatch.makes_batches:
            return None
        assert isinstance(self._intake, Intake), "only Batching is the other kind"
        return IteratorFeed(source, self._in_flight, self._capacity, self._intake, self._dispatch)

    async def _wait_with(self, element: Element, feed: IteratorFeed | None) -> None:
        """Wait for room and admit the element, even if cancelled: its iterator cannot return it again."""
        self._lifecycle.check()
        following: Element | None = element
        try:
            with self._back_pressured:
                if feed is None:
                    await self._waiters.wait_until(self._has_room)
                else:
                    await feed.wait(element)
        finally:
            if feed is not None:
                following = feed.take_back()
            if following is not None and self._lifecycle.is_open:
                self._intake.accept(*following)
        self._lifecycle.check()

    def _has_room(self) -> bool:
        return self._room() > 0

    def _room(self) -> int:
        """Return how many elements may be admitted now."""
        if not self._lifecycle.is_open:
            return 0
        room = self._capacity - len(self._in_flight)
        if self._gate is not None:
            room = min(room + self._gate.waiting_count, self._waiting_max - self._gate.waiting_count)
        return room
