"""Timestamps of a stream's elements, and the watermarks that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeAlias

from async_op.durations import check_delay
from async_op.elements import Element, timestamp_in
from async_op.errors import UnusableTimestamp
from keygroups.arguments import Duration, check_callable
from keygroups.errors import ConfigError
from keygroups.safe_text import described, repr_of
from snapshots.format.subtask import RefusedValue

TimestampsBy: TypeAlias = Callable[[Any], int | float | str | datetime | None] | str
"""How to get the timestamp of a value: a callable, or a column name."""

LAST_WATERMARK = 2**63 - 1
"""The watermark at the end of the input: no timer of event time is later."""


class Timestamps:
    """Makes elements of values, and a watermark whenever one of them raises it.

    The watermark stays behind the highest timestamp by the delay, and one millisecond more: an element with exactly
    the earliest timestamp that the delay allows is not late. So it may go before the element that raises it. There it
    keeps elements with the same timestamp together, and timers fire before a call sees a later element.

    Parameters
    ----------
    timestamp_of : callable
        Returns the timestamp of a value in a form that `timestamp_in` knows, or None.
    delay : int
        By how many milliseconds an element may come after a later one.
    """

    def __init__(self, timestamp_of: Callable[[Any], object], delay: int) -> None:
        self._timestamp_of = timestamp_of
        self._behind = delay + 1
        self._watermark = -(2**63)
        self._put = self._watermark

    def element(self, value: Any) -> Element:
        """Return the element of a value.

        A value without a usable timestamp is replaced by a `RefusedValue`, so `on_error` decides on it alone and the
        stream continues.
        """
        if type(value) is RefusedValue:
            return value, None, None
        try:
            timestamp = self._timestamp(value)
        except Exception as error:  # noqa: BLE001 - also what the caller's own function raises
            return RefusedValue(repr_of(value), described(error)), None, None
        if timestamp is not None:
            self._watermark = max(self._watermark, timestamp - self._behind)
        return value, timestamp, None

    @property
    def is_ahead(self) -> bool:
        """Whether there is a watermark to take."""
        return self._watermark > self._put

    def take(self) -> int:
        """Return the watermark that belongs before the newest element."""
        self._put = self._watermark
        return self._watermark

    def _timestamp(self, value: Any) -> int | None:
        timestamp = self._timestamp_of(value)
        if timestamp is None:
            return None
        milliseconds = timestamp_in(timestamp)
        if milliseconds is None:
            raise UnusableTimestamp(value, timestamp)
        return milliseconds


def timestamps_of(by: TimestampsBy | None, delay: Duration | None) -> Timestamps | None:
    """Return what gives a stream its timestamps, or None for a stream without them.

    Raises
    ------
    ConfigError
        An argument is invalid, or there is a delay without timestamps.
    """
    if by is None:
        if delay is not None:
            raise ConfigError("watermark_delay", delay, "watermarks follow timestamps: pass `timestamps`, too")
        return None
    if not isinstance(by, str):
        check_callable("timestamps", by, 1, reason="it returns milliseconds since the epoch; for dicts, name a column")
    reason = "it is by how much an element may come after a later one; leave it out if they come in order"
    seconds = 0.0 if delay is None else check_delay("watermark_delay", delay, reason=reason)
    return Timestamps(_column(by) if isinstance(by, str) else by, round(1000 * seconds))


def _column(name: str) -> Callable[[Any], object]:
    def timestamp_of(value: Any) -> object:
        try:
            return value[name]
        except (KeyError, TypeError, IndexError):
            raise UnusableTimestamp(value, None, name) from None

    return timestamp_of
