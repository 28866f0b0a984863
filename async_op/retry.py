"""When a failed call is made again, and after how long."""

from __future__ import annotations

import heapq
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from async_op.clock import Clock, TimerHandle
from async_op.elements import Entry
from async_op.errors import RetryAfter
from keygroups.errors import ConfigError

RetryOn: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]
RetryIfResult: TypeAlias = Callable[[Sequence[Any]], bool]


def is_meant(errors: RetryOn | None, error: BaseException) -> bool:
    """Tell whether an error is among those that were named; all are, if none was."""
    if errors is None:
        return True
    if isinstance(errors, type | tuple):
        return isinstance(error, errors)
    return errors(error)


class RetryPolicy(ABC):
    """What the retry policies share: which outcomes are tried again, and how often. Immutable.

    A `RetryAfter` error is always tried again, after the delay that it carries.
    """

    def __init__(self, max_attempts: int, retry_on: RetryOn | None, retry_if_result: RetryIfResult | None) -> None:
        if max_attempts < 1:
            raise ConfigError("max_attempts", max_attempts, "the first call is an attempt, too")
        self.max_attempts = max_attempts
        self._retry_on = retry_on
        self._retry_if_result = retry_if_result

    @abstractmethod
    def delay_after(self, attempt: int) -> float:
        """Return the seconds between the end of an attempt and the next one."""

    def delay_after_error(self, attempt: int, error: BaseException) -> float | None:
        """Return the seconds until the next attempt, or None if the error is final."""
        if attempt >= self.max_attempts:
            return None
        if isinstance(error, RetryAfter):
            return error.seconds
        return self.delay_after(attempt) if is_meant(self._retry_on, error) else None

    def delay_after_result(self, attempt: int, outputs: Sequence[Any]) -> float | None:
        """Return the seconds until the next attempt, or None if the result is final."""
        if self._retry_if_result is None or attempt >= self.max_attempts or not self._retry_if_result(outputs):
            return None
        return self.delay_after(attempt)


class FixedDelayRetry(RetryPolicy):
    """Try again after a fixed delay.

    Parameters
    ----------
    max_attempts : int
        Calls for one element, the first included.
    delay : float
        Seconds between two of them.
    retry_on : exception type, tuple of them, or predicate, optional
        The errors that are tried again; all, unless given.
    retry_if_result : callable, optional
        Tells from the outputs whether to try again.

    Raises
    ------
    ConfigError
        A number can never work.

    Examples
    --------
    >>> FixedDelayRetry(3, 0.5, retry_on=OSError).delay_after(1)
    0.5
    """

    def __init__(
        self,
        max_attempts: int,
        delay: float,
        retry_on: RetryOn | None = None,
        retry_if_result: RetryIfResult | None = None,
    ) -> None:
        super().__init__(max_attempts, retry_on, retry_if_result)
        _check_seconds("delay", delay)
        self._delay = delay

    def delay_after(self, attempt: int) -> float:
        """Return the seconds between the end of an attempt and the next one."""
        return self._delay


class ExponentialBackoffRetry(RetryPolicy):
    """Try again after a delay that grows from attempt to attempt.

    Parameters
    ----------
    max_attempts : int
        Calls for one element, the first included.
    initial_delay, max_delay : float
        Seconds after the first attempt, and at most.
    multiplier : float
        From one delay to the next.
    jitter : bool
        Draw each delay between zero and its full length, so that clients which failed together do not return together
        ("full jitter": M. Brooker, "Exponential Backoff and Jitter", 2015).
    retry_on : exception type, tuple of them, or predicate, optional
        The errors that are tried again; all, unless given.
    retry_if_result : callable, optional
        Tells from the outputs whether to try again.

    Raises
    ------
    ConfigError
        A number can never work.

    Examples
    --------
    >>> policy = ExponentialBackoffRetry(5, 0.1, 1.0, jitter=False)
    >>> [policy.delay_after(attempt) for attempt in (1, 2, 3, 4, 5)]
    [0.1, 0.2, 0.4, 0.8, 1.0]
    """

    def __init__(
        self,
        max_attempts: int,
        initial_delay: float,
        max_delay: float,
        multiplier: float = 2.0,
        jitter: bool = True,
        retry_on: RetryOn | None = None,
        retry_if_result: RetryIfResult | None = None,
    ) -> None:
        super().__init__(max_attempts, retry_on, retry_if_result)
        _check_seconds("initial_delay", initial_delay)
        _check_seconds("max_delay", max_delay)
        if multiplier < 1:
            raise ConfigError("multiplier", multiplier, "delays may not shrink")
        self._initial_delay = initial_delay
        self._max_delay = max_delay
        self._multiplier = multiplier
        self._jitter = jitter

    def delay_after(self, attempt: int) -> float:
        """Return the seconds between the end of an attempt and the next one."""
        try:
            delay = min(self._initial_delay * self._multiplier ** (attempt - 1), self._max_delay)
        except OverflowError:
            delay = self._max_delay
        return random.uniform(0, delay) if self._jitter else delay  # noqa: S311 - not for secrets


def _check_seconds(name: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ConfigError(name, value, "seconds, zero or more")


class Backoff:
    """Entries that wait for their next attempt, under one timer. Only the thread of the event loop may call it."""

    __slots__ = ("_clock", "_heap", "_ready", "_timer")

    def __init__(self, clock: Clock, ready: Callable[[Entry], None]) -> None:
        self._clock = clock
        self._ready = ready
        self._heap: list[tuple[float, int, Entry]] = []
        self._timer: TimerHandle | None = None

    def add(self, entry: Entry, delay: float) -> None:
        """Make an entry ready after some seconds."""
        entry.due = self._clock.time() + delay
        heapq.heappush(self._heap, (entry.due, entry.sequence, entry))
        if self._heap[0][2] is entry:
            self._arm()

    def release(self, entry: Entry) -> None:
        """Make an entry ready now."""
        entry.due = None
        self._ready(entry)

    def release_all(self) -> None:
        """Make every entry ready now, in order of their attempts."""
        waiting = [entry for due, _, entry in sorted(self._heap) if entry.due == due]
        self.close()
        for entry in waiting:
            self.release(entry)

    def close(self) -> None:
        """Forget all entries and the timer."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_at(self._heap[0][0], self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._clock.time()
        while self._heap and self._heap[0][0] <= now:
            due, _, entry = heapq.heappop(self._heap)
            if entry.due == due:  # else it was released before
                self.release(entry)
        if self._heap and self._timer is None:
            self._arm()
