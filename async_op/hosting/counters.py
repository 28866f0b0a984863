"""What an operator has counted since its last cut."""

from __future__ import annotations

from typing import Any

from async_op.operator.assembly import Parts
from async_op.operator.counters import growing

CALLS = ("calls", "retries", "timeouts", "reinvoked", "reemitted", "skipped", "dead_letters")
"""The counts of calls, which manifests have under the same names."""

LIMITS = (
    *("cache_hits", "cache_misses", "shared"),
    *("rate_limited", "circuit_opened", "circuit_refused", "budget_refused"),
)
"""The counts of limits, which manifests have under the same names."""

Counted = dict[str, Any]


def counted_by(parts: Parts) -> Counted:
    """Return the statistics of an operator that only grow, by name; this looks at no element in flight."""
    limits = None if parts.limits is None else parts.limits.statistics()
    waited = {} if limits is None else {name: getattr(limits, name) for name in (*LIMITS, "wait_seconds")}
    return growing(parts) | waited


def since(before: Counted, now: Counted) -> Counted:
    """Return by how much each value has grown.

    Examples
    --------
    >>> since({"calls": 3}, {"calls": 5, "retries": 1})
    {'calls': 2, 'retries': 1}
    """
    return {name: value - before.get(name, 0) for name, value in now.items()}


def milliseconds(seconds: float) -> int:
    """Return a duration as manifests have it."""
    return round(1000 * seconds)
