"""How many calls may be under way at once, learnt from how the service takes them."""

from __future__ import annotations

from dataclasses import dataclass

from async_op.clock import Clock
from async_op.resilience.line import Line
from keygroups.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveConcurrency:
    """As many calls at once as the service takes well, between two bounds.

    Additive increase, multiplicative decrease (Chiu and Jain, 1989) with a slow start (Jacobson, 1988): the limit
    begins at `minimum` and doubles in each round of calls until one fails; then it is multiplied by `decrease`, at most
    once a round, and grows by one in each round that fares well. It limits calls, not elements in flight.

    Parameters
    ----------
    minimum : int
        Calls that may always be under way.
    maximum : int, optional
        Calls that may ever be; the operator's capacity unless given.
    slow_seconds : float, optional
        A call that takes longer counts as one that failed.
    decrease : float
        What remains of the limit after a failure, as a fraction.

    Raises
    ------
    ConfigError
        A number can never work.
    """

    minimum: int = 1
    maximum: int | None = None
    slow_seconds: float | None = None
    decrease: float = 0.75

    def __post_init__(self) -> None:
        if self.minimum < 1:
            raise ConfigError("minimum", self.minimum, "at least one call must be possible")
        if self.maximum is not None and self.maximum < self.minimum:
            raise ConfigError("maximum", self.maximum, f"at least the minimum, {self.minimum}")
        if self.slow_seconds is not None and self.slow_seconds <= 0:
            raise ConfigError("slow_seconds", self.slow_seconds, "use None if no call is too slow")
        if not 0 < self.decrease < 1:
            raise ConfigError("decrease", self.decrease, "a fraction between 0 and 1")


class ConcurrencyLimiter:
    """Counts calls under way and moves their limit. Only the thread of the event loop may call it.

    Parameters
    ----------
    settings : AdaptiveConcurrency
        The bounds.
    capacity : int
        The operator's.
    clock : Clock
        The source of time.

    Attributes
    ----------
    limit : int
        Calls that may be under way now.
    line : Line
        Those that wait.
    running : int
        Places taken.
    """

    __slots__ = (
        "_clock",
        "_decrease",
        "_good",
        "_is_starting",
        "_last_cut",
        "_maximum",
        "_minimum",
        "_slow",
        "limit",
        "line",
        "running",
    )

    def __init__(self, settings: AdaptiveConcurrency, capacity: int, clock: Clock) -> None:
        self._minimum = settings.minimum
        self._maximum = max(capacity, settings.minimum) if settings.maximum is None else settings.maximum
        self._slow = settings.slow_seconds
        self._decrease = settings.decrease
        self._clock = clock
        self.limit = self._minimum
        self._good = 0
        self._is_starting = True
        self._last_cut = clock.time()
        self.running = 0
        self.line = Line(clock)

    async def acquire(self) -> None:
        """Return when there is a place."""
        if self.running < self.limit and not len(self.line):
            self.running += 1
        else:
            await self.line.wait(self.release)

    def release(self) -> None:
        """Give a place back."""
        self.running -= 1
        self._admit()

    def stop(self) -> None:
        """Let nobody begin any more."""
        self.line.stop()

    def record(self, began: float, *, failed: bool) -> None:
        """Learn from a call that has ended."""
        now = self._clock.time()
        if failed or (self._slow is not None and now - began > self._slow):
            # What began before the last cut says nothing about the limit after it.
            if began >= self._last_cut:
                self._last_cut = now
                self._is_starting = False
                self._good = 0
                self.limit = max(self._minimum, int(self.limit * self._decrease))
        elif 2 * self.running >= self.limit:  # a limit that is not used proves nothing
            self._good += 1
            if self._is_starting or self._good >= self.limit:
                self._good = 0
                self.limit = min(self._maximum, self.limit + 1)
                self._admit()

    def _admit(self) -> None:
        while self.running < self.limit and self.line.admit():
            self.running += 1
