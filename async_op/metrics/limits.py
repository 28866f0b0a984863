"""The metrics of limits: of one operator, of a step of a job, and of the epochs of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable

from async_op.metrics.families import Family, Labels, family_of, split_family
from async_op.statistics import ResilienceStatistics

LIMIT_COUNTERS = {
    "cache_hits": "Elements whose outputs were in the cache.",
    "cache_misses": "Elements whose outputs were not in the cache.",
    "shared": "Elements that shared the outcome of an identical call under way.",
    "rate_limited": "Calls that waited for a rate limit.",
    "circuit_opened": "How often the circuit breaker opened.",
    "circuit_refused": "Calls that failed because the circuit breaker was open.",
    "budget_refused": "Calls that were not made because a budget had not enough left.",
}
"""What epochs count, too."""

_WAIT = "Time that calls have waited for limits."

_GAUGES = {
    "cache_entries": "Outputs in the cache.",
    "waiting": "Calls that are waiting for a limit.",
    "running": "Calls under way.",
    "concurrency_limit": "Calls that may be under way.",
}


def limit_families(prefix: str, found: Iterable[tuple[Labels, ResilienceStatistics]]) -> list[Family]:
    """Return the metrics of limits, by labels and what the limits have done; their names begin with a prefix."""
    found = list(found)
    counters = LIMIT_COUNTERS | {"wait_seconds": _WAIT}
    families = [family_of(prefix, name, "counter", text, found) for name, text in counters.items()]
    families += [family_of(prefix, name, "gauge", text, found) for name, text in _GAUGES.items()]
    spent, left = "What calls have cost.", "What is left of a budget, for all that share it."
    families.append(split_family(f"{prefix}spent", "counter", spent, "unit", lambda one: one.spent, found))
    families.append(split_family(f"{prefix}budget_left", "gauge", left, "unit", lambda one: one.left, found))
    circuit = "1 for the state of the circuit breaker."
    families.append(split_family(f"{prefix}circuit", "gauge", circuit, "state", _circuit, found))
    return families


def _circuit(one: ResilienceStatistics) -> dict[str, float]:
    if one.circuit is None:
        return {}
    return {state: float(state == one.circuit) for state in ("closed", "half_open", "open")}
