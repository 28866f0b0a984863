"""What an operator counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from async_op.clock import Clock

if TYPE_CHECKING:
    from async_op.dead_letters import ErrorPolicy
    from async_op.in_flight import InFlight
    from async_op.invoker import Invoker
    from async_op.recovery import Recovery

_BUCKETS = 40
_SMALLEST_SECONDS = 1e-6


class LatencyHistogram:
    """Counts durations in buckets, each twice as wide as the one before; the first ends at one microsecond."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS

    def add(self, seconds: float) -> None:
        """Count one duration."""
        exponent = math.frexp(seconds / _SMALLEST_SECONDS)[1] if seconds > _SMALLEST_SECONDS else 0
        self._counts[min(exponent, _BUCKETS - 1)] += 1

    def freeze(self) -> Latency:
        """Return the counts as they are now."""
        return Latency(tuple((_SMALLEST_SECONDS * 2**n, count) for n, count in enumerate(self._counts) if count))


@dataclass(frozen=True, slots=True)
class Latency:
    """A histogram of call durations.

    Attributes
    ----------
    buckets : tuple of (float, int)
        The upper bound in seconds and the number of sampled calls of every bucket that has any, ascending.
    """

    buckets: tuple[tuple[float, int], ...] = ()

    def quantile(self, fraction: float) -> float | None:
        """Return the duration in seconds that this fraction of the calls did not exceed, or None without calls.

        Examples
        --------
        >>> Latency(((0.001, 90), (0.002, 9), (1.0, 1))).quantile(0.95)
        0.002
        """
        wanted = fraction * sum(count for _, count in self.buckets)
        seen = 0
        for bound, count in self.buckets:
            seen += count
            if seen >= wanted:
                return bound
        return None


class Stopwatch:
    """Adds up the seconds between `start` and `stop`. Only the thread of the event loop may call it."""

    __slots__ = ("_clock", "_seconds", "_started")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds = 0.0
        self._started: float | None = None

    def start(self) -> None:
        """Run."""
        self._started = self._clock.time()

    def stop(self) -> None:
        """Stand still."""
        self._seconds = self.seconds
        self._started = None

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def seconds(self) -> float:
        """The sum, what runs included."""
        return self._seconds if self._started is None else self._seconds + self._clock.time() - self._started


class Times:
    """How an operator spends its time since it was made. Only the thread of the event loop may call it."""

    __slots__ = ("_clock", "_opened_at", "back_pressured", "idle")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._opened_at = clock.time()
        self.idle, self.back_pressured = Stopwatch(clock), Stopwatch(clock)
        self.idle.start()

    def seconds(self) -> dict[str, Any]:
        """Return the seconds with nothing in flight, with `process` waiting for room, and the rest."""
        idle, back_pressured = self.idle.seconds, self.back_pressured.seconds
        busy = max(0.0, self._clock.time() - self._opened_at - idle - back_pressured)
        return {"idle_seconds": idle, "back_pressured_seconds": back_pressured, "busy_seconds": busy}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStatistics:
    """What an operator has done since it was opened, at one moment.

    Attributes
    ----------
    in_flight : int
        Elements accepted and not yet emitted, watermarks included: the sum of the next three.
    pending, completed, watermarks : int
        Those whose call has not returned, those whose call has, and watermarks.
    accepted : int
        Records taken in by `process`.
    timers_fired : int
        Timers that have become elements.
    calls, retries : int
        Calls made, and those that were further attempts at the same element.
    reinvoked, reemitted : int
        Elements of the restored snapshot that were pending, and those whose stored result was taken over.
    emitted : int
        Outputs, watermarks included.
    timeouts, late_results : int
        Elements whose time budget ran out, and results that came after that and were ignored.
    skipped, dead_letters : int
        Elements that failed for good under these error policies.
    idle_seconds, back_pressured_seconds, busy_seconds : float
        Time with nothing in flight; with `process` waiting for room; and the rest.
    latency : Latency
        Of a sample of the calls.
    """

    in_flight: int
    pending: int
    completed: int
    watermarks: int
    accepted: int
    timers_fired: int
    calls: int
    retries: int
    reinvoked: int
    reemitted: int
    emitted: int
    timeouts: int
    late_results: int
    skipped: int
    dead_letters: int
    idle_seconds: float
    back_pressured_seconds: float
    busy_seconds: float
    latency: Latency = field(default_factory=Latency)

    @classmethod
    def of(
        cls, in_flight: InFlight, recovery: Recovery, invoker: Invoker, errors: ErrorPolicy, times: Times
    ) -> OperatorStatistics:
        """Gather what the parts of an operator have counted."""
        timers_fired = 0 if in_flight.timers is None else in_flight.timers.fired
        others = in_flight.watermarks + recovery.reinvoked + recovery.reemitted + timers_fired
        return cls(
            **in_flight.counters(),
            accepted=in_flight.accepted - others,
            timers_fired=timers_fired,
            **invoker.counters(),
            reinvoked=recovery.reinvoked,
            reemitted=recovery.reemitted,
            emitted=in_flight.emitted,
            skipped=errors.skipped,
            dead_letters=errors.dead_letters,
            **times.seconds(),
        )
