"""The metrics of an operator, derived from its statistics."""

from __future__ import annotations

from collections.abc import Iterable

from async_op.metrics.families import Family, Labels, Sample, cumulative, family_of, split_family
from async_op.metrics.limits import limit_families
from async_op.statistics import LATENCY_BOUNDS, Latency, OperatorStatistics

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


def operator_families(observed: Iterable[tuple[Labels, OperatorStatistics]]) -> list[Family]:
    """Return all metrics of the watched operators."""
    found = list(observed)
    families = [family_of(_PREFIX, name, "counter", text, found) for name, text in _COUNTERS.items()]
    in_flight, time_spent = f"{_PREFIX}in_flight", f"{_PREFIX}time_seconds"
    families.append(split_family(in_flight, "gauge", "Elements in flight.", "stage", _stages, found))
    families.append(split_family(time_spent, "counter", "Time spent by activity.", "activity", _activities, found))
    families.append(family_of(_PREFIX, "mailbox_length", "gauge", "Mails that wait for the event loop.", found))
    families.append(_latency("call_duration_seconds", "Durations of a sample of the calls.", "latency", found))
    text = "How long a sample of the mails waited for the event loop."
    families.append(_latency("mailbox_latency_seconds", text, "mailbox_latency", found))
    limits = ((labels, one.resilience) for labels, one in found if one.resilience is not None)
    return families + limit_families(_PREFIX, limits)


def _stages(one: OperatorStatistics) -> dict[str, float]:
    watermarks = one.in_flight - one.pending - one.completed
    stages: dict[str, float] = {"pending": one.pending, "completed": one.completed, "watermark": watermarks}
    return stages | {"awaited": one.awaited_outputs}


def _activities(one: OperatorStatistics) -> dict[str, float]:
    return {"idle": one.idle_seconds, "back_pressured": one.back_pressured_seconds, "busy": one.busy_seconds}


def _latency(name: str, text: str, of: str, found: Iterable[tuple[Labels, OperatorStatistics]]) -> Family:
    measured: list[tuple[Labels, Latency]] = [(labels, getattr(one, of)) for labels, one in found]
    samples = [Sample(labels, one.seconds, cumulative(one.buckets, LATENCY_BOUNDS)) for labels, one in measured]
    return Family(_PREFIX + name, "histogram", text, tuple(samples))
