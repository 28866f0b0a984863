"""The counters and durations that an operator measures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from async_op.clock import Clock
from keygroups.events import Event, is_anybody_listening, publish
from keygroups.representation import counts_repr, html_facts, set_fields

JobState: TypeAlias = Literal[
    "new", "opening", "running", "rescaling", "draining", "stopping", "restarting", "ended", "failed"
]
"""What a job does, from `JobProgress`."""

_BUCKETS = 40
_SMALLEST_SECONDS = 1e-6

LATENCY_BOUNDS = tuple(_SMALLEST_SECONDS * 2**n for n in range(_BUCKETS))
"""The upper bounds of the histogram's buckets in seconds."""


class LatencyHistogram:
    """Counts durations in buckets whose upper bounds double, from one microsecond on."""

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
    """A histogram that also emits an event for each duration if there is a listener.

    Parameters
    ----------
    **attributes : str or int
        The attributes of the events.
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
        The upper bound in seconds and the number of sampled calls of every non-empty bucket, ascending.
    seconds : float
        The sum of the durations.
    """

    buckets: tuple[tuple[float, int], ...] = ()
    seconds: float = 0.0

    __repr__ = counts_repr

    def quantile(self, fraction: float) -> float | None:
        """Return the duration in seconds that this fraction of calls did not exceed, or None if there were no calls.

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
        """Start the watch; the time until `stop` is added to the sum."""
        self._started = self._clock.time()

    def stop(self) -> None:
        """Stop the watch; time no longer counts."""
        self._seconds = self.seconds
        self._started = None

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def seconds(self) -> float:
        """The sum, including the time since `start` if the watch is running."""
        return self._seconds if self._started is None else self._seconds + self._clock.time() - self._started


class Times:
    """How an operator has spent its time since it was created. Only the thread of the event loop may call it."""

    __slots__ = ("_clock", "_opened_at", "back_pressured", "idle")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._opened_at = clock.time()
        self.idle, self.back_pressured = Stopwatch(clock), Stopwatch(clock)
        self.idle.start()

    def seconds(self) -> dict[str, Any]:
        """Return the seconds spent idle (nothing in flight), back-pressured (`process` waiting for room) and busy."""
        idle, back_pressured = self.idle.seconds, self.back_pressured.seconds
        busy = max(0.0, self._clock.time() - self._opened_at - idle - back_pressured)
        return {"idle_seconds": idle, "back_pressured_seconds": back_pressured, "busy_seconds": busy}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResilienceStatistics:
    """What an operator's limits have done since `open`, at one moment; zero or None for limits that are off.

    Attributes
    ----------
    cache_hits, cache_misses, cache_entries : int
        Elements whose outputs were in the cache, elements whose outputs were not, and outputs in the cache.
    shared : int
        Elements that shared the outcome of an identical call under way.
    waiting : int
        Elements (for a batch function, batches) that are waiting for a limit.
    rate_limited : int
        Calls that waited for a rate limit, or for as long as the service had asked to.
    spent : mapping of str to float
        What calls that have ended have cost, by unit: as they reported it, and as it was estimated where they did not.
    left : mapping of str to float
        What is left of each budget for all operators that share it; negative if calls under way have exceeded it.
    budget_refused : int
        Calls that were not made, because a budget had not enough left.
    concurrency_limit, running : int or None, int
        How many calls may be under way, and how many are.
    circuit : str or None
        "closed", "half_open" or "open"; None without a circuit breaker.
    circuit_opened, circuit_refused : int
        How often the breaker opened, and how many calls failed because of it.
    wait_seconds : float
        The total time that calls have waited for limits; calls that are still waiting are not included.
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
    budget_refused: int = 0
    spent: Mapping[str, float] = field(default_factory=dict)
    left: Mapping[str, float] = field(default_factory=dict)
    wait_seconds: float = 0.0

    __repr__ = counts_repr

    def __add__(self, other: ResilienceStatistics) -> ResilienceStatistics:
        """Return the counters of two operators that share their limits."""
        added = {name: getattr(self, name) + getattr(other, name) for name in _ADDED}
        units = self.spent.keys() | other.spent.keys()
        spent = {unit: self.spent.get(unit, 0) + other.spent.get(unit, 0) for unit in sorted(units)}
        return replace(self, **added, spent=spent)

    def beside(self, other: ResilienceStatistics) -> ResilienceStatistics:
        """Return the counters of two processes that have a part of the limits each."""
        bounds = [one.concurrency_limit for one in (self, other) if one.concurrency_limit is not None]
        return replace(
            self + other,
            concurrency_limit=sum(bounds) if bounds else None,
            circuit=max(self.circuit, other.circuit, key=_CIRCUITS.index),
            # Each process has heard of what the other one has spent, but perhaps not of all.
            left={unit: min(self.left.get(unit, left), left) for unit, left in {**self.left, **other.left}.items()},
        )

    def _repr_html_(self) -> str:
        return html_facts("limits of an operator", set_fields(self))


_CIRCUITS = (None, "closed", "half_open", "open")
"""From the best to the worst."""

_ADDED = (
    *("cache_hits", "cache_misses", "cache_entries", "shared", "waiting", "rate_limited", "running"),
    *("circuit_opened", "circuit_refused", "budget_refused", "wait_seconds"),
)
"""What differs from operator to operator, and is no shared limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStatistics:
    """What an operator has done since `open`, at one moment.

    Attributes
    ----------
    in_flight : int
        Elements accepted but not yet emitted, watermarks included: the sum of the next three.
    pending, completed, watermarks : int
        Elements whose call has not returned, elements whose call has returned, and watermarks.
    awaited_outputs : int
        Outputs that have been emitted to an async `output` that is not done with them.
    accepted : int
        Records accepted by `process`.
    timers_fired : int
        Timers that have fired and become elements.
    calls, retries : int
        All calls, and those that were further attempts at the same element.
    reinvoked, reemitted : int
        Elements of the restored snapshot that were called again, and those whose stored outputs were emitted.
    emitted : int
        Outputs, watermarks included.
    timeouts, late_results : int
        Elements whose time budget ran out, and results that arrived too late and were ignored.
    skipped, dead_letters : int
        Elements that failed for good and were skipped, and those that became dead letters.
    idle_seconds, back_pressured_seconds, busy_seconds : float
        Time with nothing in flight; with `process` waiting for room; and the rest.
    mails, mailbox_length : int
        Messages from other threads to the event loop: results of functions on threads, their use of state, and calls
        submitted to `executor`. How many have been processed, and how many wait.
    latency : Latency
        The durations of a sample of the calls, without the time that they waited for limits.
    mailbox_latency : Latency
        How long a sample of the mails has waited for the event loop: the first mail of each of its turns.
    resilience : ResilienceStatistics or None
        What the limits did; None without limits.
    """

    in_flight: int
    pending: int
    completed: int
    watermarks: int
    awaited_outputs: int
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
    mails: int = 0
    mailbox_length: int = 0
    latency: Latency = field(default_factory=Latency)
    mailbox_latency: Latency = field(default_factory=Latency)
    resilience: ResilienceStatistics | None = None

    __repr__ = counts_repr

    def _repr_html_(self) -> str:
        return html_facts("statistics of an operator", set_fields(self))
