"""A limit of calls, or of what they cost, per second."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from async_op.clock import Clock
from async_op.resilience.waiting_line import Alarm, Guest, Line
from keygroups.arguments import check_callable, check_count, check_number
from keygroups.errors import ConfigError
from keygroups.names import STATE_NAME
from keygroups.representation import counts_repr

_BURST_SECONDS = 0.1
_ROUNDING = 1e-9
_COST_BURST_SECONDS = 60
"""Services state limits of tokens by the minute, and let a call cost as much as a minute has."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Limits the calls per second of all subtasks together, at any parallelism.

    The subtasks of a job share one limit, so a single busy one gets all of it. The processes of a job, and the hosts of
    a pipeline on Spark, begin with equal shares and lend each other what they do not use. Operators that you create
    yourself have an equal share each.

    In any period of t seconds, at most `burst + per_second · t` calls begin: the generic cell rate algorithm (ITU-T
    I.371, 1996). An operator starts with a credit of one call; calling less often saves up credit for a burst.

    With `cost`, calls have different costs in some unit, such as tokens, and it is these that are limited. The cost is
    estimated before the call. When the call ends it is corrected to what the function has reported with `ctx.spent`, as
    if that had been known from the beginning. A call that costs more than the whole burst fails with `CostAboveLimit`,
    which is never retried. One that costs more than its process's share of the burst waits until that is complete. An
    operator starts with a credit of one unit.

    A rate limit says that all calls share a limit of one service. So what the service itself says counts for all of
    them, too: when a call ends with `RetryAfter`, or has passed headers to `ctx.heed` which say that nothing remains,
    no call of the same process begins before that time is over. Calls under way continue, and elements wait as they
    wait for the rate.

    Parameters
    ----------
    per_second : float
        Calls per second, or units per second.
    burst : int, optional
        How many calls may begin at once after a pause. By default the calls of a tenth of a second, and at least one.
        Each subtask has a burst of at least one. With `cost`, how many units; by default a minute's.
    cost : callable, optional
        Returns what the call for an element costs, in units. A batch costs the sum of its elements.
    unit : str, optional
        What a cost is counted in: the name under which `ctx.spent` reports it.

    Raises
    ------
    ConfigError
        A number is invalid.

    Examples
    --------
    >>> RateLimit(100).share(0, 4)
    RateLimit(per_second=25.0, burst=3)
    >>> RateLimit.per_minute(90_000, cost=len, unit="tokens")
    RateLimit(per_second=1500.0, cost=len, unit='tokens')
    """

    per_second: float
    burst: int | None = None
    cost: Callable[[Any], float] | None = field(default=None, kw_only=True)
    unit: str | None = field(default=None, kw_only=True)

    __repr__ = counts_repr

    def __post_init__(self) -> None:
        reason = "calls per second, more than zero"
        if check_number("per_second", self.per_second, reason=reason) <= 0:
            raise ConfigError("per_second", self.per_second, reason)
        if self.burst is not None:
            check_count("burst", self.burst, 1, reason="at least one call must be possible")
        if (self.cost is None) != (self.unit is None):
            raise ConfigError("unit", self.unit, "name what `cost` counts, such as 'tokens'; calls need neither")
        if self.cost is not None:
            check_callable("cost", self.cost, 1, reason="it returns what the call for an element costs")
            STATE_NAME.check("unit", self.unit)

    @classmethod
    def per_minute(
        cls,
        number: float,
        burst: int | None = None,
        *,
        cost: Callable[[Any], float] | None = None,
        unit: str | None = None,
    ) -> RateLimit:
        """Return a limit of so many calls or units in a minute; the other parameters are the class's."""
        return cls(check_number("number", number, reason="calls or units per minute") / 60, burst, cost=cost, unit=unit)

    @property
    def whole_burst(self) -> int:
        """The burst of all subtasks together."""
        if self.burst is not None:
            return self.burst
        if self.cost is not None:
            return max(1, round(self.per_second * _COST_BURST_SECONDS))
        return max(1, int(self.per_second * _BURST_SECONDS))

    def fraction(self, amount: float) -> RateLimit:
        """Return a fraction of the limit; its burst is rounded down, but is at least one."""
        burst = max(1, int(self.whole_burst * amount + _ROUNDING))
        return replace(self, per_second=self.per_second * amount, burst=burst)

    def share(self, subtask_index: int, parallelism: int) -> RateLimit:
        """Return the share of one subtask."""
        own = self.whole_burst // parallelism + (subtask_index < self.whole_burst % parallelism)
        return replace(self, per_second=self.per_second / parallelism, burst=max(1, own))


class RateLimiter:
    """Admits calls at the rate of one limit without costs. Only the thread of the event loop may call it.

    No library does this job, because libraries use their own clock and cannot take back unused credit.

    Parameters
    ----------
    limit : RateLimit
        The whole limit, or the share that this process has of it.
    clock : Clock
        The source of time.

    Attributes
    ----------
    line : Line
        The calls that wait.
    taken : int
        How many calls were admitted.
    """

    __slots__ = ("_alarm", "_burst_seconds", "_clock", "_full_at", "_held_until", "_interval", "line", "taken")

    def __init__(self, limit: RateLimit, clock: Clock) -> None:
        self.taken = 0
        self._clock = clock
        self._interval = 1 / limit.per_second
        self._burst_seconds = (limit.whole_burst - 1) * self._interval
        # When the credit for a whole burst will be complete.
        self._full_at = clock.time() + self._burst_seconds
        self._held_until = -math.inf
        self._alarm = Alarm(clock, self._admit)
        self.line = Line(clock)

    async def acquire(self, guest: Guest) -> None:
        """Wait until a call may begin."""
        while True:
            now = self._clock.time()
            if not len(self.line) and now >= self._next_at():
                self._take(now)
                return
            if not len(self.line):
                self._alarm.set(self._next_at())
            await self.line.wait(self.give_back, guest)
            if self._held_until <= self._clock.time():
                return
            self.give_back()  # calls were held between this turn of the line and this step of the loop

    def hold(self, seconds: float) -> None:
        """Let no call begin for so long, or longer if an earlier hold lasts longer."""
        self._held_until = max(self._held_until, self._clock.time() + seconds)
        if len(self.line):
            self._alarm.set(self._next_at())

    def give_back(self) -> None:
        """Restore the credit of a call that was not made."""
        self._full_at -= self._interval
        if len(self.line):
            self._alarm.set(max(self._next_at(), self._clock.time()))

    def change(self, limit: RateLimit) -> None:
        """Go on with another share of the limit. The credit stays the same, as far as the new burst can hold it."""
        now = self._clock.time()
        used_credit = max(0.0, self._full_at - now) / self._interval
        old_burst = self._burst_seconds / self._interval + 1
        self._interval = 1 / limit.per_second
        self._burst_seconds = (limit.whole_burst - 1) * self._interval
        self._full_at = now + (used_credit + limit.whole_burst - old_burst) * self._interval
        if len(self.line):
            self._alarm.set(max(self._next_at(), now))

    def spend_credit(self) -> None:
        """Begin without the credit of one call."""
        self._full_at += self._interval

    def is_short(self) -> bool:
        """Return whether calls wait for the rate, and not only because the service has asked to wait."""
        return bool(len(self.line)) and self._held_until <= self._clock.time()

    def look_again(self) -> None:
        """Do nothing: the alarm rings for the first call in the line, whichever operator it belongs to."""

    def rest(self) -> None:
        """Set no timer while there is no operator."""
        self._alarm.unset()

    def _next_at(self) -> float:
        return max(self._full_at - self._burst_seconds, self._held_until)

    def _take(self, now: float) -> None:
        self._full_at = max(self._full_at, now) + self._interval
        self.taken += 1

    def _admit(self) -> None:
        # A timer may ring too early by a rounding error.
        now = max(self._clock.time(), self._next_at())
        while len(self.line) and self._next_at() <= now:
            self._held_until = -math.inf
            self._take(now)
            self.line.admit()
        if len(self.line):
            self._alarm.set(self._next_at())
