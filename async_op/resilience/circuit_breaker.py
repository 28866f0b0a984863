"""A circuit breaker: stops calling a failing service, and tries it again carefully."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, get_args

from async_op.clock import Clock
from async_op.errors import CircuitOpen
from async_op.resilience.waiting_line import Alarm, Guest, Line
from keygroups.arguments import (
    Duration,
    check_choice,
    check_count,
    check_number,
    check_positive_duration,
    seconds_of,
)
from keygroups.errors import ConfigError

BreakerState = Literal["closed", "half_open", "open"]
WhenOpen = Literal["wait", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreaker:
    """Stops calls for a while once too many have failed (Nygard, "Release It!", 2007).

    Closed: calls are made. If at least `failure_rate` of the last `window` calls have failed, the breaker opens. Open:
    no calls are made for `open_seconds`. Half-open: `probes` calls are made; if all succeed, the breaker closes, and
    the first failure opens it again.

    Parameters
    ----------
    failure_rate : float
        The fraction of failed calls that opens it.
    window : int
        How many of the last calls count; the breaker does not open before this many calls have ended.
    open_seconds : float or timedelta
        How long it stays open.
    probes : int
        Calls that are made in the half-open state.
    when_open : {"wait", "fail"}
        What happens to elements while it is open. "wait": they wait, within their timeout. "fail": they fail with
        `CircuitOpen`, to which `retry` and `on_error` apply as to any failure.

    Raises
    ------
    ConfigError
        An argument is invalid.
    """

    failure_rate: float = 0.5
    window: int = 20
    open_seconds: Duration = 30.0
    probes: int = 1
    when_open: WhenOpen = "wait"

    def __post_init__(self) -> None:
        fraction = "a fraction above 0, at most 1"
        if not 0 < check_number("failure_rate", self.failure_rate, reason=fraction) <= 1:
            raise ConfigError("failure_rate", self.failure_rate, fraction)
        check_count("window", self.window, 1, _WINDOW_MAX)
        check_positive_duration("open_seconds", self.open_seconds)
        check_count("probes", self.probes, 1, reason="without a probe it would stay open for ever")
        check_choice("when_open", self.when_open, get_args(WhenOpen))


_WINDOW_MAX = 100_000

Permit = int
"""Allows one call, as long as the breaker does not change its state."""


class Breaker:
    """The state of a circuit breaker. Only the thread of the event loop may call it.

    Parameters
    ----------
    settings : CircuitBreaker
        When it opens and closes.
    clock : Clock
        The source of time.

    Attributes
    ----------
    state : {"closed", "half_open", "open"}
        Allows all calls, only probes, or none.
    line : Line
        The calls that wait.
    """

    __slots__ = (
        "_alarm",
        "_clock",
        "_failures",
        "_open_until",
        "_outcomes",
        "_permit",
        "_probes_begun",
        "_settings",
        "_successes",
        "line",
        "state",
    )

    def __init__(self, settings: CircuitBreaker, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._alarm = Alarm(clock, self._half_open)
        self._outcomes = deque[bool](maxlen=settings.window)
        self._failures = self._probes_begun = self._successes = 0
        self._open_until = 0.0
        self._permit: Permit = 0
        self.state: BreakerState = "closed"
        self.line = Line(clock)

    async def acquire(self, guest: Guest) -> Permit:
        """Return a permit for a call; while the breaker is open, wait for one or raise.

        Raises
        ------
        CircuitOpen
            The breaker is open, and `when_open` is "fail".
        """
        while not self._has_room():
            if self._settings.when_open == "fail":
                raise CircuitOpen(max(0.0, self._open_until - self._clock.time()))
            if self.state == "open":
                self._alarm.set(self._open_until)
            await self.line.wait(self._admit_probes, guest)
        self._probes_begun += 1
        return self._permit

    def holds(self, permit: Permit) -> bool:
        """Return whether a permit still allows its call."""
        return permit == self._permit

    def give_back(self, permit: Permit) -> None:
        """Return the permit of a call that was not made."""
        if permit == self._permit:
            self._probes_begun -= 1
            self._admit_probes()

    def record(self, permit: Permit, *, failed: bool) -> bool:
        """Record the result of a call, and return whether it has opened the breaker.

        Calls that began in another state are ignored.
        """
        if permit != self._permit:
            return False
        if self.state == "half_open":
            self._successes += not failed
            if failed:
                self._open()
            elif self._successes == self._settings.probes:
                self._close()
            return failed
        if len(self._outcomes) == self._settings.window:
            self._failures -= self._outcomes[0]
        self._outcomes.append(failed)
        self._failures += failed
        window = self._settings.window
        opens = len(self._outcomes) == window and self._failures >= self._settings.failure_rate * window
        if opens:
            self._open()
        return opens

    def look_again(self) -> None:
        """Admit probes if there is room: an operator has left the line."""
        self._admit_probes()

    def rest(self) -> None:
        """Set no timer while there is no operator; the next call looks at the clock."""
        self._alarm.unset()

    def _has_room(self) -> bool:
        if self.state == "open" and self._clock.time() >= self._open_until:
            self._half_open()
        return self.state == "closed" or (self.state == "half_open" and self._probes_begun < self._settings.probes)

    def _change(self, state: BreakerState) -> None:
        self.state = state
        self._permit += 1
        self._outcomes.clear()
        self._failures = self._probes_begun = self._successes = 0

    def _open(self) -> None:
        self._change("open")
        self._open_until = self._clock.time() + seconds_of(self._settings.open_seconds)
        self._alarm.set(self._open_until)

    def _half_open(self) -> None:
        self._alarm.unset()
        self._change("half_open")
        self._admit_probes()

    def _close(self) -> None:
        self._change("closed")
        while self.line.admit():
            pass

    def _admit_probes(self) -> None:
        """Admit as many waiting calls as there is room for; those that come too late wait again."""
        if self.state == "half_open":
            for _ in range(self._settings.probes - self._probes_begun):
                self.line.admit()
