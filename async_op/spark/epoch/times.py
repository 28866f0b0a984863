"""The times that one epoch leaves to the next: the watermark, and when the first timers are due."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from async_op.spark.rows.schemas import check_columns
from async_op.spark.task.report import SubtaskTimes
from keygroups.errors import ConfigError

_DELAY = "spark.watermarkDelayMs"
"""What `withWatermark` adds to the metadata of its column."""


@dataclass(frozen=True, slots=True)
class EpochTimes:
    """The times in a source position; a manifest stores them, so that the next epoch is the same whenever it runs.

    All times are milliseconds since the Unix epoch.

    Attributes
    ----------
    watermark : int or None
        The newest watermark that operators have had.
    next_watermark : int or None
        The watermark that follows from all rows so far; the next epoch begins with it.
    next_timer, next_event_timer : int or None
        When the first timers are to fire, by the clock and by the watermark.

    Examples
    --------
    >>> times = EpochTimes().after([SubtaskTimes(5000, next_event_timer=3000), SubtaskTimes(4000)], 1000)
    >>> times.next_watermark, times.next_event_timer, times.is_any_due(now=0)
    (4000, 3000, True)
    >>> times.after([SubtaskTimes(4500), SubtaskTimes()], 1000)
    EpochTimes(watermark=4000, next_watermark=4000, next_timer=None, next_event_timer=None)
    """

    watermark: int | None = None
    next_watermark: int | None = None
    next_timer: int | None = None
    next_event_timer: int | None = None

    @property
    def new_watermark(self) -> int | None:
        """The watermark that the next epoch begins with; None if operators have had it already."""
        return self.next_watermark if self.next_watermark != self.watermark else None

    def after(self, subtasks: Iterable[SubtaskTimes], delay_milliseconds: int) -> EpochTimes:
        """Return the times after an epoch; its watermark stays `delay_milliseconds` behind the rows."""
        subtasks = list(subtasks)
        event_times = [one.event_time for one in subtasks if one.event_time is not None]
        seen = [event_time - delay_milliseconds for event_time in event_times]
        before = [] if self.next_watermark is None else [self.next_watermark]
        return EpochTimes(
            watermark=self.next_watermark,
            next_watermark=max(seen + before, default=None),
            next_timer=_first(one.next_timer for one in subtasks),
            next_event_timer=_first(one.next_event_timer for one in subtasks),
        )

    def is_any_due(self, now: int) -> bool:
        """Tell whether an epoch without rows would fire a timer."""
        return _is_due(self.next_timer, now) or self.is_watermark_due()

    def is_watermark_due(self) -> bool:
        """Tell whether timers wait for the watermark that the next epoch begins with."""
        return _is_due(self.next_event_timer, self.new_watermark)


def watermark_delay_of(frame: DataFrame, event_time: str) -> int:
    """Return the delay, in milliseconds, that a DataFrame's `withWatermark` gave a column.

    Raises
    ------
    ConfigError
        The column does not exist or has no watermark.
    """
    check_columns(frame.schema, "event_time", event_time)
    delay = frame.schema[event_time].metadata.get(_DELAY)
    if delay is None:
        reason = f'it has no watermark: add .withWatermark("{event_time}", "10 seconds") to the input'
        raise ConfigError("event_time", event_time, reason)
    return int(delay)


def _first(timers: Iterable[int | None]) -> int | None:
    return min((timer for timer in timers if timer is not None), default=None)


def _is_due(timer: int | None, until: int | None) -> bool:
    return timer is not None and until is not None and timer <= until
