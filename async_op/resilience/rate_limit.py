"""How many calls may begin per second."""

from __future__ import annotations

import math
from dataclasses import dataclass

from async_op.clock import Clock
from async_op.resilience.line import Alarm, Line
from keygroups.errors import ConfigError

_BURST_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most so many calls per second, of all subtasks together; each has its share, at any parallelism.

    In any span of t seconds at most `burst + per_second · t` calls begin: the generic cell rate algorithm (ITU-T
    I.371, 1996). An operator begins with the right to one call; a burst has to be saved up by calling less.

    Parameters
    ----------
    per_second : float
        Calls per second.
    burst : int, optional
        Calls that may begin at once after a pause; unless given, those of a tenth of a second, and at least one. Each
        subtask has a burst of one at least.

    Raises
    ------
    ConfigError
        A number can never work.

    Examples
    --------
    >>> RateLimit(100).share(0, 4)
    RateLimit(per_second=25.0, burst=3)
    """

    per_second: float
    burst: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.per_second < math.inf:
            raise ConfigError("per_second", self.per_second, "calls per second, more than zero")
        if self.burst is not None and self.burst < 1:
            raise ConfigError("burst", self.burst, "at least one call must be possible")

    def share(self, subtask_index: int, parallelism: int) -> RateLimit:
        """Return the limit of one subtask."""
        burst = max(1, int(self.per_second * _BURST_SECONDS)) if self.burst is None else self.burst
        own = burst // parallelism + (subtask_index < burst % parallelism)
        return RateLimit(self.per_second / parallelism, max(1, own))


class RateLimiter:
    """Lets calls begin at the rate of a limit. Only the thread of the event loop may call it.

    It is not a library's, because those bring their own clock, and take back no right that was not used.

    Parameters
    ----------
    limit : RateLimit
        The subtask's share.
    clock : Clock
        The source of time.

    Attributes
    ----------
    line : Line
        Those that wait.
    """

    __slots__ = ("_alarm", "_burst_seconds", "_clock", "_full_at", "_interval", "line")

    def __init__(self, limit: RateLimit, clock: Clock) -> None:
        assert limit.burst is not None, "a share has a burst"
        self._clock = clock
        self._interval = 1 / limit.per_second
        self._burst_seconds = (limit.burst - 1) * self._interval
        # When the right to a whole burst will have been saved up.
        self._full_at = clock.time() + self._burst_seconds
        self._alarm = Alarm(clock, self._admit)
        self.line = Line(clock)

    async def acquire(self) -> None:
        """Return when a call may begin."""
        now = self._clock.time()
        if not len(self.line) and now >= self._next_at():
            self._take(now)
            return
        if not len(self.line):
            self._alarm.set(self._next_at())
        await self.line.wait(self.give_back)

    def give_back(self) -> None:
        """Take back the right to a call that was not made."""
        self._full_at -= self._interval
        if len(self.line):
            self._alarm.set(max(self._next_at(), self._clock.time()))

    def stop(self) -> None:
        """Let nobody begin any more."""
        self.line.stop()
        self._alarm.stop()

    def _next_at(self) -> float:
        return self._full_at - self._burst_seconds

    def _take(self, now: float) -> None:
        self._full_at = max(self._full_at, now) + self._interval

    def _admit(self) -> None:
        # Timers may ring a rounding error too early.
        now = max(self._clock.time(), self._next_at())
        while len(self.line) and self._next_at() <= now:
            self._take(now)
            self.line.admit()
        if len(self.line):
            self._alarm.set(self._next_at())
