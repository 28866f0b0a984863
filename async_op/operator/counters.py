"""Collects the counters of an operator's parts."""

from __future__ import annotations

from typing import Any

from async_op.operator.assembly import Parts
from async_op.statistics import OperatorStatistics


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
