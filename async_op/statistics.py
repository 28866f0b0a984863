"""What an operator counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from async_op.clock import Clock
from keygroups.events import Event, is_anybody_listening, publish

if TYPE_CHECKING:
    from async_op.dead_letters import ErrorPolicy
    from async_op.in_flight import InFlight
    from async_op.invoker import Invoker
    from async_op.recovery import Recovery

_BUCKETS = 40
_SMALLEST_SECONDS = 1e-6

LATENCY_BOUNDS = tuple(_SMALLEST_SECONDS * 2**n for n in range(_BUCKETS))
"""The upper bounds of the buckets in seconds."""


class LatencyHistogram:
    """Counts durations in buckets, each twice as wide as the one before; the first ends at one microsecond."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        exponent = math.frexp(seconds / _SMALLEST_SECONDS)[1] if seconds > _SMALLEST_SECONDS else 0
        self._counts[min(exponent, _BUCKETS - 1)] += 1
        self._seconds += seconds

    def freeze(self) -> Latency:
        """Return the counts as they are now."""
        counted = zip(LATENCY_BOUNDS, self._counts, strict=True)
        return Latency(tuple((bound, count) for bound, count in counted if count), self._seconds)


class ObservedLatency(LatencyHistogram):
    """A histogram that also tells of each call, as an event, if anybody listens.

    Parameters
    ----------
    **attributes : str or int
        Of the events.
    """

    __slots__ = ("_attributes",)

    def __init__(self, **attributes: str | int) -> None:
        super().__init__()
        self._attributes = attributes

    def add(self, seconds: float) -> None:
        """Count one duration."""
        super().add(seconds)
        if is_anybody_listening():
            publish(Event("call", seconds, self._attributes))


@dataclass(frozen=True, slots=True)
class Latency:
    """A histogram of call durations.

    Attributes
    ----------
    buckets : tuple of (float, int)
        The upper bound in seconds and the number of sampled calls of every bucket that has any, ascending.
    seconds : float
        The sum of the durations.
    """

    buckets: tuple[tuple[float, int], ...] = ()
    seconds: float = 0.0

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
class ResilienceStatistics:
    """What an operator's limits have done since it was opened, at one moment; zero or None for those that are off.

    Attributes
    ----------
    cache_hits, cache_misses, cache_entries : int
        Elements that found their outputs, those that did not, and outputs that are kept.
    shared : int
        Elements that took the outcome of an identical call that was under way.
    waiting : int
        Elements, of a batch function batches, that wait for a limit.
    rate_limited : int
        Calls that had to wait for the rate limit.
    concurrency_limit, running : int or None, int
        How many calls may be under way, and how many are.
    circuit : str or None
        "closed", "half_open" or "open".
    circuit_opened, circuit_refused : int
        How often the breaker opened, and how many calls failed because of it.
    wait_seconds : float
        What all calls together have waited for limits; those that wait still are not in it.
    """

    cache_hits: int = 0
    cache_misses: int = 0
    cache_entries: int = 0
    shared: int = 0
    waiting: int = 0
    rate_limited: int = 0
    concurrency_limit: int | None = None
    running: int = 0
    circuit: str | None = None
    circuit_opened: int = 0
    circuit_refused: int = 0
    wait_seconds: float = 0.0


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
        Of a sample of the calls; what they wait for limits before is not in it.
    resilience : ResilienceStatistics or None
        What the limits did; None without them.
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
    resilience: ResilienceStatistics | None = None

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
