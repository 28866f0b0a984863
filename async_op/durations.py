"""Checks durations of calls and delays, and warns if seconds look like milliseconds."""

from __future__ import annotations

import sys
import warnings
from datetime import timedelta

from async_op.errors import LooksLikeMilliseconds
from keygroups.arguments import Duration, check_duration, check_positive_duration

_USUAL_SECONDS_MAX = 3600
OWN_PACKAGES = frozenset({"async_op", "keygroups", "snapshots"})
"""Packages whose frames are not the user's code."""


def check_delay(name: str, value: Duration, *, reason: str | None = None) -> float:
    """Return a delay in seconds, zero or more; warns if the number looks like milliseconds.

    Raises
    ------
    ConfigError
        The value is neither a number of seconds nor a timedelta, or it is negative or infinite.
    """
    seconds = check_duration(name, value, reason=reason)
    _warn_of_milliseconds(name, value, seconds)
    return seconds


def check_positive_delay(name: str, value: Duration, *, reason: str | None = None) -> float:
    """Return a delay in seconds, more than zero; warns and raises as `check_delay` does."""
    seconds = check_positive_duration(name, value, reason=reason)
    _warn_of_milliseconds(name, value, seconds)
    return seconds


def check_timeout(name: str, value: Duration | None) -> float | None:
    """Return a timeout in seconds, more than zero, or None; warns and raises as `check_delay` does."""
    return None if value is None else check_positive_delay(name, value, reason="use None for no timeout")


def _warn_of_milliseconds(name: str, value: object, seconds: float) -> None:
    # A timedelta states its unit.
    if seconds > _USUAL_SECONDS_MAX and not isinstance(value, timedelta):
        warnings.warn(LooksLikeMilliseconds(name, seconds), stacklevel=_callers_level())


def _callers_level() -> int:
    """Return the `stacklevel` that makes a warning point at the user's code, seen from the caller of this function."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OWN_PACKAGES:
        frame, level = frame.f_back, level + 1
    return level
