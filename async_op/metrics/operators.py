"""The metrics of an operator, derived from its statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from async_op.metrics.families import Family, Kind, Sample, cumulative
from async_op.statistics import LATENCY_BOUNDS, Latency, OperatorStatistics, ResilienceStatistics

Labels = Mapping[str, str]

_PREFIX = "keygroups_operator_"

_COUNTERS = {
    "accepted": "Records accepted.",
    "emitted": "Outputs, watermarks included.",
    "timers_fired": "Timers that have fired.",
    "calls": "Calls made.",
    "retries": "Calls that were further attempts at the same element.",
    "timeouts": "Elements whose time budget ran out.",
    "late_results": "Results that arrived after the timeout and were ignored.",
    "skipped": "Elements that failed for good and were dropped.",
    "dead_letters": "Elements that failed for good and became dead letters.",
    "reinvoked": "Pending elements of a restored snapshot that were called for again.",
    "mails": "Results and calls that other threads handed to the event loop.",
    "reemitted": "Elements of a restored snapshot whose stored outputs were emitted.",
}
_RESILIENCE_COUNTERS = {
    "cache_hits": "Elements whose outputs were in the cache.",
    "cache_misses": "Elements whose outputs were not in the cache.",
    "shared": "Elements that shared the outcome of an identical call under way.",
    "rate_limited": "Calls that waited for a rate limit.",
    "circuit_opened": "How often the circuit breaker opened.",
    "circuit_refused": "Calls that failed because the circuit breaker was open.",
    "budget_refused": "Calls that were not made because a budget had not enough left.",
    "wait_seconds": "Time that calls have waited for limits.",
}
_RESILIENCE_GAUGES = {
    "cache_entries": "Outputs in the cache.",
    "waiting": "Calls that are waiting for a limit.",
    "running": "Calls under way.",
    "concurrency_limit": "Calls that may be under way.",
}


def operator_families(observed: Iterable[tuple[Labels, OperatorStatistics]]) -> list[Family]:
    """Return all metrics of the watched operators."""
    found = list(observed)
    guarded = [(labels, one.resilience) for labels, one in found if one.resilience is not None]
    families = [_plain(name, "counter", text, found) for name, text in _COUNTERS.items()]
    families.append(_by("in_flight", "gauge", "Elements in flight.", "stage", _stages, found))
    families.append(_by("time_seconds", "counter", "Time spent by activity.", "activity", _activities, found))
    families.append(_plain("mailbox_length", "gauge", "Mails that wait for the event loop.", found))
    families.append(_latency("call_duration_seconds", "Durations of a sample of the calls.", "latency", found))
    text = "How long a sample of the mails waited for the event loop."
    families.append(_latency("mailbox_latency_seconds", text, "mailbox_latency", found))
    families += [_plain(name, "counter", text, guarded) for name, text in _RESILIENCE_COUNTERS.items()]
    families += [_plain(name, "gauge", text, guarded) for name, text in _RESILIENCE_GAUGES.items()]
    families.append(_by("spent", "counter", "What calls have cost.", "unit", lambda one: one.spent, guarded))
    families.append(_by("circuit", "gauge", "1 for the state of the circuit breaker.", "state", _circuit, guarded))
    return families


def _plain(name: str, kind: Kind, text: str, found: Iterable[tuple[Labels, Any]]) -> Family:
    values = [(labels, getattr(one, name)) for labels, one in found]
    samples = tuple(Sample(labels, float(value)) for labels, value in values if value is not None)
    return Family(_PREFIX + name, kind, text, samples)


def _by(
    name: str,
    kind: Kind,
    text: str,
    label: str,
    split: Callable[[Any], Mapping[str, float]],
    found: Iterable[tuple[Labels, Any]],
) -> Family:
    samples = [Sample({**labels, label: part}, value) for labels, one in found for part, value in split(one).items()]
    return Family(_PREFIX + name, kind, text, tuple(samples))


def _stages(one: OperatorStatistics) -> dict[str, float]:
    watermarks = one.in_flight - one.pending - one.completed
    stages: dict[str, float] = {"pending": one.pending, "completed": one.completed, "watermark": watermarks}
    return stages | {"awaited": one.awaited_outputs}


def _activities(one: OperatorStatistics) -> dict[str, float]:
    return {"idle": one.idle_seconds, "back_pressured": one.back_pressured_seconds, "busy": one.busy_seconds}


def _circuit(one: ResilienceStatistics) -> dict[str, float]:
    if one.circuit is None:
        return {}
    return {state: float(state == one.circuit) for state in ("closed", "half_open", "open")}


def _latency(name: str, text: str, of: str, found: Iterable[tuple[Labels, OperatorStatistics]]) -> Family:
    measured: list[tuple[Labels, Latency]] = [(labels, getattr(one, of)) for labels, one in found]
    samples = [Sample(labels, one.seconds, cumulative(one.buckets, LATENCY_BOUNDS)) for labels, one in measured]
    return Family(_PREFIX + name, "histogram", text, tuple(samples))
