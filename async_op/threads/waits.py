"""Lets a thread wait as the strategies of its user say, and adds up for how long."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from async_op.threads.wait_strategies import Arrival, WaitSituation, WaitStrategies

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class Waits:
    """The waits of one thread.

    Parameters
    ----------
    strategies : WaitStrategies
        How to wait in each situation.

    Attributes
    ----------
    seconds : dict of WaitSituation to float
        The time waited so far.
    streak : int
        How often the thread has waited in vain since its situation began: for input, since something came last.
    longest : dict of WaitSituation to int
        The longest streak of each situation.
    """

    def __init__(self, strategies: WaitStrategies) -> None:
        self._strategies = strategies
        self.seconds = dict.fromkeys(WaitSituation, 0.0)
        self.streak = 0
        self.longest = dict.fromkeys(WaitSituation, 0)
        self._idle_count = 0
        self._situation: WaitSituation | None = None
        self._began = 0.0

    def until(
        self,
        is_over: Callable[[], object],
        arrival: Arrival,
        situation: Callable[[], WaitSituation],
        at_most: float = math.inf,
    ) -> None:
        """Wait until something holds; `situation` may change in the meantime, and the strategy with it.

        The count that strategies get starts again when the situation ends: when what the thread waits for holds, or
        when it waits for something else. After `at_most` the next call resumes the same count.

        Parameters
        ----------
        is_over : callable
            Returns whether the wait is over.
        arrival : Arrival
            Ends a single wait early.
        situation : callable
            Returns why the thread waits.
        at_most : float
            The wait ends after so many seconds in any case.
        """
        until = time.monotonic() + at_most
        bounded = arrival if at_most == math.inf else _Bounded(arrival, at_most)
        while not is_over():
            if (started := time.monotonic()) >= until:
                return
            now = situation()
            self._enter(now, started)
            self._idle_count = self._strategies.of(now).idle(self._idle_count, bounded)
            self.streak += 1
            self.longest[now] = max(self.longest[now], self.streak)
            self.count(now, time.monotonic() - started)
        self._enter(None, time.monotonic())

    def reading(self, source: Iterable[_T]) -> Iterator[_T]:
        """Yield the elements of a source, and count the time that it takes for them.

        A read that blocks is the default strategy, and needs no other thread. With another one, a thread reads.
        """
        if self._strategies.source != WaitStrategies().source:
            yield from self._reading_beside(source)
            return
        elements = iter(source)
        while True:
            started = time.monotonic()
            try:
                element = next(elements)
            except StopIteration:
                return
            finally:
                self.count(WaitSituation.SOURCE, time.monotonic() - started)
            yield element

    def count(self, situation: WaitSituation, seconds: float) -> None:
        """Add a wait in which no strategy has a say, such as a read that blocks."""
        self.seconds[situation] += seconds

    def _reading_beside(self, source: Iterable[_T]) -> Iterator[_T]:
        reader = _SourceReader(source)
        try:
            while True:
                self.until(reader.arrived.is_set, reader.arrived, lambda: WaitSituation.SOURCE)
                elements = reader.take()
                if not elements:
                    return
                yield from elements
        finally:
            reader.close()

    def _enter(self, situation: WaitSituation | None, now: float) -> None:
        """Begin a situation, and end the one before; None if the thread waits for nothing."""
        before = self._situation
        if situation is before:
            return
        if before is WaitSituation.BACK_PRESSURE:
            _log.debug("back-pressure has ended after %.3f s and %d waits", now - self._began, self.streak)
        if situation is WaitSituation.BACK_PRESSURE:
            _log.debug("back-pressure begins: the operator takes in no more elements")
        self._situation, self._began = situation, now
        self._idle_count = self.streak = 0


class _Bounded:
    """An arrival for which no single wait is longer than so many seconds."""

    def __init__(self, arrival: Arrival, seconds: float) -> None:
        self._arrival = arrival
        self._seconds = seconds

    def wait(self, timeout: float, /) -> object:
        return self._arrival.wait(min(timeout, self._seconds))


class _SourceReader(Generic[_T]):
    """Reads one element ahead on a thread, so that the thread that waits for it can wait as its strategy says."""

    def __init__(self, source: Iterable[_T]) -> None:
        self._source = source
        self._room = threading.Semaphore(1)
        self._elements: list[_T] = []
        self._error: BaseException | None = None
        self._is_closed = False
        self.arrived = threading.Event()
        self.has_ended = False
        threading.Thread(target=self._read, name="keygroups source", daemon=True).start()

    def take(self) -> list[_T]:
        """Return what has been read, and let the thread read on; at the end nothing. Raises the source's error."""
        if self.has_ended:
            if self._error is not None:
                raise self._error
            return []
        elements, self._elements = self._elements, []
        self.arrived.clear()
        self._room.release()
        return elements

    def close(self) -> None:
        """Read no more. A read under way ends first, because nothing can stop it."""
        self._is_closed = True
        self._room.release()

    def _read(self) -> None:
        elements = iter(self._source)
        try:
            while self._room.acquire() and not self._is_closed:
                self._elements = [next(elements)]
                self.arrived.set()
        except StopIteration:
            pass
        except BaseException as error:  # noqa: BLE001 - `take` raises it
            self._error = error
        self.has_ended = True
        self.arrived.set()
