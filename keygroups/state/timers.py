"""Timers as they are kept: as keyed state, so that they are stored and moved as all of it is."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Hashable, Mapping
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from keygroups.descriptors import MapState
from keygroups.state.backend import MISSING, LazyGroup, StateTable
from keygroups.state.identity import original_of

STALE_MIN = 1024
"""The index is made anew once it has more places of deleted timers than this, and than of others."""


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


# A map key is a timestamp; the value says nothing.
PROCESSING_TIME = MapState("keygroups_processing_time_timers", pa.map_(pa.int64(), pa.bool_()))
EVENT_TIME = MapState("keygroups_event_time_timers", pa.map_(pa.int64(), pa.bool_()))

TIMER_STATES = {state.name: state for state in (PROCESSING_TIME, EVENT_TIME)}
"""The states in which timers are kept, by their reserved names."""


Place: TypeAlias = tuple[int, int, int, Hashable]
"""Where a timer is kept: timestamp, number, key group, identity of the key. Ordered as the timers are to fire."""


class TimerIndex:
    """The timers of one state by their timestamps. Only the thread that owns the operator may call it.

    The state says which timers there are, and the index is made from it. A place whose timer has been deleted stays
    until it comes up, or until there are too many of them. A timer that is due while its key is busy is *parked*, and
    asked for when the key becomes free. Of each key, what is parked comes before what is not, and is in order.

    Parameters
    ----------
    table : StateTable
        The state.
    is_busy : callable
        Tells whether an invocation for a key is under way.
    """

    __slots__ = ("_heap", "_is_busy", "_numbers", "_stale", "parked", "table")

    def __init__(self, table: StateTable, is_busy: Callable[[Hashable], bool]) -> None:
        self.table = table
        self.parked: dict[Hashable, list[Place]] = {}
        self._is_busy = is_busy
        self._heap: list[Place] = []
        self._numbers = count()
        self._stale = 0

    def load(self, restored: Mapping[int, LazyGroup | dict[Hashable, Any]]) -> dict[int, dict[Hashable, Any]]:
        """Read and index all timers of a snapshot. A thread may call it, before anything else is called.

        Returns
        -------
        dict of int to dict
            What the key groups hold, to be installed in the state.
        """
        groups: dict[int, dict[Hashable, Any]] = {
            number: group if isinstance(group, dict) else group.load() for number, group in restored.items()
        }
        self._heap = [
            (timestamp, next(self._numbers), key_group, identity)
            for key_group, group in groups.items()
            for identity, timestamps in group.items()
            for timestamp in timestamps
        ]
        heapq.heapify(self._heap)
        return groups

    @property
    def first(self) -> int | None:
        """The timestamp of the next timer, unless it has been deleted; those that are parked aside."""
        return self._heap[0][0] if self._heap else None

    @property
    def next(self) -> int | None:
        """The timestamp of the next timer, for certain; looks at those that were deleted before it."""
        while self._heap and not self._is_kept(self._heap[0]):
            heapq.heappop(self._heap)
            self._stale = max(0, self._stale - 1)
        first = self._heap[:1] + [places[0] for places in self.parked.values() if places]
        return min(first)[0] if first else None

    def add(self, timestamp: int, key_group: int, identity: Hashable) -> None:
        """Tell that a timer is in the state that was not before."""
        place = timestamp, next(self._numbers), key_group, identity
        parked = self.parked.get(identity)
        if parked is not None and place < parked[-1]:
            insort(parked, place)
        else:
            heapq.heappush(self._heap, place)

    def deleted(self) -> None:
        """Tell that a timer is not in the state any more."""
        self._stale += 1
        if self._stale > max(STALE_MIN, len(self._heap) // 2):
            kept = {(place[0], place[3]): place for place in self._heap if self._is_kept(place)}
            self._heap = list(kept.values())
            heapq.heapify(self._heap)
            self._stale = 0

    def take(self, until: int) -> Place | None:
        """Remove from the state the next timer with a timestamp up to some time whose key is free."""
        while self._heap and self._heap[0][0] <= until:
            place = heapq.heappop(self._heap)
            identity = place[3]
            if self._is_busy(original_of(identity)):
                self.parked.setdefault(identity, []).append(place)
            elif self._remove(place):
                return place
            else:
                self._stale = max(0, self._stale - 1)
        return None

    def take_parked(self, identity: Hashable, until: int) -> Place | None:
        """Remove from the state the next timer of a key that has become free."""
        parked = self.parked.pop(identity, [])
        while parked and parked[0][0] <= until:
            place = parked.pop(0)
            if self._remove(place):
                if parked:
                    self.parked[identity] = parked
                return place
        for place in parked:
            heapq.heappush(self._heap, place)
        return None

    def _is_kept(self, place: Place) -> bool:
        timestamp, _, key_group, identity = place
        timestamps: Any = self.table.get(key_group, identity)
        return timestamps is not MISSING and timestamp in timestamps

    def _remove(self, place: Place) -> bool:
        """Remove a timer from the state, and tell whether it was there."""
        timestamp, _, key_group, identity = place
        timestamps: Any = self.table.get(key_group, identity)
        if timestamps is MISSING or timestamp not in timestamps:
            return False
        self.table.put_entries(key_group, identity, timestamps.delete(timestamp), (timestamp,), replaced=False)
        return True
