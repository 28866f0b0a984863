"""Counters of an operator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStatistics:
    """What an operator has done since it was opened, at one moment.

    Attributes
    ----------
    in_flight : int
        Elements accepted and not yet emitted, watermarks included.
    accepted : int
        Records taken in by `process`.
    calls : int
        Invocations of the function.
    reinvoked : int
        Calls for elements that were pending in the restored snapshot.
    reemitted : int
        Elements whose stored result was taken over from the snapshot, without a call.
    emitted : int
        Outputs, watermarks included.
    timeouts : int
        Elements whose time budget ran out.
    late_results : int
        Results that came after the timeout and were ignored.
    """

    in_flight: int
    accepted: int
    calls: int
    reinvoked: int
    reemitted: int
    emitted: int
    timeouts: int
    late_results: int
