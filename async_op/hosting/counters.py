"""What an operator has counted since its last cut."""

from __future__ import annotations

from typing import Any

from async_op.statistics import OperatorStatistics

COUNTED = (
    "accepted",
    "calls",
    "retries",
    "timeouts",
    "late_results",
    "reinvoked",
    "reemitted",
    "skipped",
    "dead_letters",
    "timers_fired",
    "idle_seconds",
    "back_pressured_seconds",
    "busy_seconds",
)
"""The statistics of an operator that only grow."""

LIMITS = (
    *("cache_hits", "cache_misses", "shared"),
    *("rate_limited", "circuit_opened", "circuit_refused", "budget_refused"),
)
"""The counts of limits."""

Counted = dict[str, Any]


def counted(statistics: OperatorStatistics) -> Counted:
    """Return the statistics that only grow, by name."""
    values = {name: getattr(statistics, name) for name in COUNTED}
    if statistics.resilience is not None:
        values |= {name: getattr(statistics.resilience, name) for name in (*LIMITS, "wait_seconds")}
    return values


def since(before: Counted, now: Counted) -> Counted:
    """Return by how much each value has grown.

    Examples
    --------
    >>> since({"calls": 3}, {"calls": 5, "retries": 1})
    {'calls': 2, 'retries': 1}
    """
    return {name: value - before.get(name, 0) for name, value in now.items()}
