"""What the parts of an operator have counted: all of it, what only grows, and by how much since the last cut."""

from __future__ import annotations

from typing import Any

from async_op.operator.assembly import Parts
from async_op.statistics import OperatorStatistics
from snapshots.format.manifest import named_by_unit

CALLS = ("calls", "retries", "timeouts", "reinvoked", "reemitted", "skipped", "dead_letters")
"""The counts of calls, which manifests have under the same names."""

LIMITS = (
    *("cache_hits", "cache_misses", "shared"),
    *("rate_limited", "circuit_opened", "circuit_refused", "budget_refused"),
)
"""The counts of limits, which manifests have under the same names."""

Counted = dict[str, Any]


def statistics_of(parts: Parts) -> OperatorStatistics:
    """Return the current counters of all parts."""
    return OperatorStatistics(
        **parts.in_flight.counters(),
        **growing(parts),
        latency=parts.latency.freeze(),
        mails=parts.mailbox.mails,
        mailbox_length=len(parts.mailbox),
        mailbox_latency=parts.mailbox.latency,
        resilience=None if parts.limits is None else parts.limits.statistics(),
        emitted=parts.in_flight.emitted,
    )


def growing(parts: Parts) -> dict[str, Any]:
    """Return the statistics that only grow, by name; this looks at no element, however many are in flight."""
    in_flight, recovery, limits = parts.in_flight, parts.recovery, parts.limits
    timers_fired = 0 if parts.timers is None else parts.timers.fired
    others = in_flight.watermarks + recovery.reinvoked + recovery.reemitted + timers_fired
    calls = parts.workers.calls + (0 if parts.batches is None else parts.batches.calls)
    return {
        "accepted": in_flight.accepted - others,
        "timers_fired": timers_fired,
        "calls": calls if limits is None else limits.calls,
        "retries": parts.completion.retries,
        "timeouts": parts.dispatch.timeouts,
        "late_results": parts.completion.late_results,
        "reinvoked": recovery.reinvoked,
        "reemitted": recovery.reemitted,
        "skipped": parts.errors.skipped,
        "dead_letters": parts.errors.dead_letters,
        **parts.times.seconds(),
    }


def counted_by(parts: Parts) -> Counted:
    """Return the statistics of an operator that only grow, by name; this looks at no element in flight."""
    limits = None if parts.limits is None else parts.limits.statistics()
    mailbox = {"mails": parts.mailbox.mails, "mailbox_seconds": parts.mailbox.latency.seconds}
    counted = growing(parts) | mailbox
    if limits is None:
        return counted
    return counted | {name: getattr(limits, name) for name in (*LIMITS, "wait_seconds")} | named_by_unit(limits.spent)


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
