"""Lets a thread wait as the strategies of its user say, and adds up for how long."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from async_op.threads.wait_strategies import Arrival, WaitSituation, WaitStrategies

_T = TypeVar("_T")


class Waits:
    """The waits of threads that belong together. Any of them may call it; the sums may miss what they add at once.

    Parameters
    ----------
    strategies : WaitStrategies
        How to wait in each situation.

    Attributes
    ----------
    seconds : dict of WaitSituation to float
        The time waited so far.
    """

    def __init__(self, strategies: WaitStrategies) -> None:
        self._strategies = strategies
        self.seconds = dict.fromkeys(WaitSituation, 0.0)

    def until(
        self,
        is_over: Callable[[], object],
        arrival: Arrival,
        situation: Callable[[], WaitSituation],
        at_most: float = math.inf,
    ) -> None:
        """Wait until something holds; `situation` may change in the meantime, and the strategy with it.

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
        idle_count, until = 0, time.monotonic() + at_most
        bounded = arrival if at_most == math.inf else _Bounded(arrival, at_most)
        while not is_over() and (started := time.monotonic()) < until:
            now = situation()
            idle_count = self._strategies.of(now).idle(idle_count, bounded)
            self.count(now, time.monotonic() - started)

    def reading(self, source: Iterable[_T]) -> Iterator[_T]:
        """Yield the elements of a source, and count the time that it takes for them."""
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


class _Bounded:
    """An arrival for which no single wait is longer than so many seconds."""

    def __init__(self, arrival: Arrival, seconds: float) -> None:
        self._arrival = arrival
        self._seconds = seconds

    def wait(self, timeout: float, /) -> object:
        return self._arrival.wait(min(timeout, self._seconds))
