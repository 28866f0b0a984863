"""An adaptive limit of concurrent calls, learnt from how the service copes with them."""

from __future__ import annotations

from dataclasses import dataclass

from async_op.clock import Clock
from async_op.resilience.lending import Holding
from async_op.resilience.waiting_line import Guest, Line, Share, share_of
from keygroups.arguments import Duration, check_count, check_number, check_positive_duration, seconds_of
from keygroups.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveConcurrency:
    """Limits the concurrent calls of all subtasks together to what the service can handle, between two bounds.

    Additive increase, multiplicative decrease (Chiu and Jain, 1989) with a slow start (Jacobson, 1988). The limit
    begins at `minimum` and doubles in each round of calls until a call fails. Then it is multiplied by `decrease`, at
    most once per round, and grows by one in each round without a failure. It limits calls, not elements in flight.

    The subtasks of a job share one limit. The processes of a job, and the hosts of a pipeline on Spark, begin with
    equal parts of the bounds, but at least one call, and lend each other what they do not use of `maximum`. Operators
    that you create yourself have an equal part each.

    Parameters
    ----------
    minimum : int
        The lower bound: this many calls may always be under way. 1 by default.
    maximum : int, optional
        The upper bound; by default the capacity of all subtasks together.
    slow_seconds : float or timedelta, optional
        A call that takes longer counts as a failure.
    decrease : float
        The fraction by which a failure multiplies the limit.

    Raises
    ------
    ConfigError
        An argument is invalid.
    """

    minimum: int = 1
    maximum: int | None = None
    slow_seconds: Duration | None = None
    decrease: float = 0.75

    def __post_init__(self) -> None:
        check_count("minimum", self.minimum, 1, reason="at least one call must be possible")
        if self.maximum is not None:
            check_count("maximum", self.maximum, self.minimum, reason="so many are the minimum")
        if self.slow_seconds is not None:
            check_positive_duration("slow_seconds", self.slow_seconds, reason="use None if no call is too slow")
        fraction = "a fraction between 0 and 1"
        if not 0 < check_number("decrease", self.decrease, reason=fraction) < 1:
            raise ConfigError("decrease", self.decrease, fraction)


class ConcurrencyLimiter:
    """Counts calls under way and moves their limit. Only the thread of the event loop may call it.

    Parameters
    ----------
    settings : AdaptiveConcurrency
        The bounds of all subtasks together.
    share : (int, int)
        Which part of the bounds this limiter has, of how many equal ones.
    capacity : int
        The capacity of all operators that share this limiter.
    clock : Clock
        The source of time.

    Attributes
    ----------
    limit : int
        How many calls may be under way now.
    line : Line
        The calls that wait.
    running : int
        How many calls are under way.
    """

    __slots__ = (
        "_clock",
        "_decrease",
        "_good",
        "_is_starting",
        "_last_cut",
        "_maximum",
        "_minimum",
        "_settings",
        "_share",
        "_slow",
        "limit",
        "line",
        "running",
    )

    def __init__(self, settings: AdaptiveConcurrency, share: Share, capacity: int, clock: Clock) -> None:
        self._settings = settings
        self._share = share
        self._slow = None if settings.slow_seconds is None else seconds_of(settings.slow_seconds)
        self._decrease = settings.decrease
        self._clock = clock
        self.limit = self._good = 0
        self._is_starting = True
        self._last_cut = clock.time()
        self.running = 0
        self.line = Line(clock)
        self.fit(capacity)

    def fit(self, capacity: int) -> None:
        """Take over the capacity of the operators that share this limiter from now on."""
        maximum = self._settings.maximum
        self._minimum = max(1, int(share_of(self._settings.minimum, *self._share)))
        self._maximum = capacity if maximum is None else max(1, int(share_of(maximum, *self._share)))
        self._maximum = max(self._maximum, self._minimum)
        self.limit = min(max(self.limit, self._minimum), self._maximum)

    def change(self, maximum: int) -> None:
        """Go on with another upper bound."""
        self._maximum = maximum
        self._minimum = min(self._minimum, maximum)
        self.limit = min(self.limit, maximum)
        self._admit()

    def holding(self) -> Holding:
        """Return what it holds of the upper bound of all subtasks together."""
        return Holding(
            max(self._maximum, self.running), self.running, self.limit >= self._maximum and len(self.line) > 0
        )

    async def acquire(self, guest: Guest) -> None:
        """Wait until another call may begin."""
        if self.running < self.limit and not len(self.line):
            self.running += 1
        else:
            await self.line.wait(self.release, guest)

    def release(self) -> None:
        """Make room after a call has ended."""
        self.running -= 1
        self._admit()

    def look_again(self) -> None:
        """Admit the calls for which there is room: an operator has left the line."""
        self._admit()

    def rest(self) -> None:
        """Do nothing: no operator is left, and there is no timer."""

    def record(self, began: float, *, failed: bool) -> None:
        """Adjust the limit after a call has ended."""
        now = self._clock.time()
        if failed or (self._slow is not None and now - began > self._slow):
            # A call that began before the last decrease says nothing about the new limit.
            if began >= self._last_cut:
                self._last_cut = now
                self._is_starting = False
                self._good = 0
                self.limit = max(self._minimum, int(self.limit * self._decrease))
        elif 2 * self.running >= self.limit:  # success proves nothing while most of the limit is unused
            self._good += 1
            if self._is_starting or self._good >= self.limit:
                self._good = 0
                self.limit = min(self._maximum, self.limit + 1)
                self._admit()

    def _admit(self) -> None:
        while self.running < self.limit and self.line.admit():
            self.running += 1
