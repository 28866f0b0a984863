"""Timers as they are kept: as keyed state, so that they are stored and moved as all of it is."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from keygroups.descriptors import MapState


class Timer(NamedTuple):
    """A timer that has fired: in the queue of elements it is the value of one.

    Attributes
    ----------
    timestamp : int
        Milliseconds since the epoch.
    event_time : bool
        Whether the watermark made it fire, or the clock.
    """

    timestamp: int
    event_time: bool


PROCESSING_TIME = MapState("keygroups_processing_time_timers", pa.map_(pa.int64(), pa.null()))
EVENT_TIME = MapState("keygroups_event_time_timers", pa.map_(pa.int64(), pa.null()))

TIMER_STATES = {state.name: state for state in (PROCESSING_TIME, EVENT_TIME)}
"""The states in which timers are kept, by their reserved names."""
