"""What the limits of a simulated subtask promise, as a model of each that only sees calls begin and end."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from async_op import AdaptiveConcurrency, CircuitBreaker, RateLimit, Resilience, RetryAfter

EPSILON = 1e-6

Check = Callable[[object, str], None]


def resilience_of(seed: int) -> Resilience | None:
    """Return the limits of a seed; random numbers of their own, so that they move no others."""
    draw = random.Random(f"{seed}/resilience")
    if draw.random() < 0.5:
        return None
    rate = RateLimit(draw.choice((2.0, 5.0, 20.0)), draw.choice((None, 1, 2, 5)))
    breaker = CircuitBreaker(
        failure_rate=draw.choice((0.3, 0.5, 1.0)),
        window=draw.choice((1, 2, 5)),
        open_seconds=draw.choice((0.5, 1.0, 4.0)),
        probes=draw.choice((1, 2, 3)),
    )
    concurrency = AdaptiveConcurrency(
        minimum=draw.choice((1, 2)), maximum=draw.choice((None, 3)), slow_seconds=draw.choice((None, 0.9))
    )
    return Resilience(
        rate_limit=draw.choice((None, rate)),
        circuit_breaker=draw.choice((None, breaker)),
        concurrency=draw.choice((None, concurrency)),
    )


class SubtaskLimits:
    """The models of one subtask's limits.

    A call on another thread, or of a callback function, goes on when the operator has given it up; then its end is not
    seen, so `sees_ends` is false.
    """

    def __init__(
        self,
        settings: Resilience,
        rate: RateLimit | None,
        capacity: int,
        check: Check,
        now: Callable[[], float],
        *,
        sees_ends: bool,
    ) -> None:
        self._check = check
        self._now = now
        self._rate = rate
        self._begun: list[float] = []
        self._heeds = rate is not None and sees_ends
        self._held_until = -math.inf
        self._running = 0
        self._running_max = math.inf
        if settings.concurrency is not None and sees_ends:
            self._running_max = settings.concurrency.maximum or max(capacity, settings.concurrency.minimum)
        self._breaker = None
        if settings.circuit_breaker is not None and sees_ends:
            self._breaker = BreakerModel(settings.circuit_breaker, check, now)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Look at one call from its beginning to its end."""
        self._begins()
        self._running += 1
        state = None if self._breaker is None else self._breaker.begins()
        failed = True
        try:
            yield
            failed = False
        except RetryAfter as error:
            self.hold(error.seconds)
            raise
        finally:
            self._running -= 1
            if self._breaker is not None:
                self._breaker.ends(state, failed=failed)

    def hold(self, seconds: float) -> None:
        """Learn that the service wants no call for so long."""
        if self._heeds:
            self._held_until = max(self._held_until, self._now() + seconds)

    def _begins(self) -> None:
        now = self._now()
        self._check(now >= self._held_until - EPSILON, "a call begins though the service has asked to wait")
        self._begun.append(now)
        self._check(self._running < self._running_max, f"{self._running + 1} calls are under way")
        if self._rate is None:
            return
        assert self._rate.burst is not None
        for count, began in enumerate(reversed(self._begun), 1):
            allowed = self._rate.burst + self._rate.per_second * (now - began + EPSILON)
            self._check(count <= allowed, f"{count} calls began within {now - began} s")


class BreakerModel:
    """A circuit breaker that only watches."""

    def __init__(self, settings: CircuitBreaker, check: Check, now: Callable[[], float]) -> None:
        self._settings = settings
        self._check = check
        self._now = now
        self._state = 0
        self._outcomes: list[bool] = []
        self._half_open_at: float | None = None
        self._opened_at = -math.inf
        self._probes = 0

    def begins(self) -> int:
        """Object if no call may begin now; returns the state in which it does."""
        now = self._now()
        if self._half_open_at is not None:
            if now <= self._opened_at + EPSILON:  # the worker whose call has failed may not know of it yet
                return self._state - 1
            self._check(now >= self._half_open_at - EPSILON, "a call is made though the circuit is open")
            self._probes += 1
            self._check(self._probes <= self._settings.probes, f"{self._probes} probes are made")
        return self._state

    def ends(self, state: int | None, *, failed: bool) -> None:
        """Learn from a call that began in this state."""
        if state != self._state:
            return
        self._outcomes.append(failed)
        settings = self._settings
        if self._half_open_at is None:
            window = self._outcomes[-settings.window :]
            if len(window) == settings.window and sum(window) / settings.window >= settings.failure_rate:
                self._enter(self._now() + settings.open_seconds)
        elif failed:
            self._enter(self._now() + settings.open_seconds)
        elif len(self._outcomes) == settings.probes:
            self._enter(None)

    def _enter(self, half_open_at: float | None) -> None:
        self._half_open_at = half_open_at
        self._opened_at = self._now()
        self._state += 1
        self._outcomes = []
        self._probes = 0
