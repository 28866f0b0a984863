"""Timers, kept as keyed state so that they are stored and moved like all keyed state."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Container, Hashable, Mapping
from itertools import count
from typing import Any, NamedTuple, TypeAlias, cast

import pyarrow as pa

from keygroups.descriptors import MapState
from keygroups.state.backend import MISSING, EntriesStateTable, StateTable
from keygroups.state.group import LazyGroup

STALE_MIN = 1024
"""The index is rebuilt once the places of deleted timers exceed this number and the places of the others."""


class Timer(NamedTuple):
    """A timer that has fired; in the queue it is the value of an element.

    Attributes
    ----------
    timestamp : int
        Milliseconds since the epoch.
    event_time : bool
        Whether the watermark fired it (true) or the clock (false).
    """

    timestamp: int
    event_time: bool


# The map keys are timestamps; the values have no meaning.
PROCESSING_TIME = MapState("keygroups_processing_time_timers", pa.map_(pa.int64(), pa.bool_()))
EVENT_TIME = MapState("keygroups_event_time_timers", pa.map_(pa.int64(), pa.bool_()))

TIMER_STATES = {state.name: state for state in (PROCESSING_TIME, EVENT_TIME)}
"""The states that hold timers, by their reserved names."""


Place: TypeAlias = tuple[int, int, int, Hashable]
"""The place of a timer: timestamp, number, key group, identity of the key. Places sort in firing order."""


class TimerIndex:
    """An index of the timers of one state by timestamp. Only the thread that owns the operator may call it.

    The state decides which timers exist; the index is derived from it. The place of a deleted timer stays until its
    turn comes, or until there are too many such places. A timer that is due while its key is busy is *parked* until the
    key becomes free. For each key, parked timers come before all others, in order.

    Parameters
    ----------
    table : StateTable
        The state, a map.
    busy : container of Hashable
        The identities of the keys with an invocation under way, as they are at any time.
    """

    __slots__ = ("_busy", "_heap", "_numbers", "_stale", "parked", "table")

    def __init__(self, table: StateTable, busy: Container[Hashable]) -> None:
        self.table = cast("EntriesStateTable", table)
        self.parked: dict[Hashable, list[Place]] = {}
        self._busy = busy
        self._heap: list[Place] = []
        self._numbers = count()
        self._stale = 0

    def load(self, restored: Mapping[int, LazyGroup]) -> dict[int, dict[Hashable, Any]]:
        """Read and index all timers of a snapshot. Another thread may call it before any other method is called.

        Returns
        -------
        dict of int to dict
            The content of the key groups, to be installed in the state.
        """
        groups: dict[int, dict[Hashable, Any]] = {number: group.load() for number, group in restored.items()}
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
        """The timestamp of the next place, whose timer may have been deleted; parked timers do not count."""
        return self._heap[0][0] if self._heap else None

    @property
    def next(self) -> int | None:
        """The exact timestamp of the next timer; unlike `first`, it skips deleted timers and counts parked ones."""
        while self._heap and not self._is_kept(self._heap[0]):
            heapq.heappop(self._heap)
            self._stale = max(0, self._stale - 1)
        first = self._heap[:1] + [places[0] for places in self.parked.values() if places]
        return min(first)[0] if first else None

    def add(self, timestamp: int, key_group: int, identity: Hashable) -> None:
        """Index a timer that was added to the state."""
        place = timestamp, next(self._numbers), key_group, identity
        parked = self.parked.get(identity)
        if parked is not None and place < parked[-1]:
            insort(parked, place)
        else:
            heapq.heappush(self._heap, place)

    def deleted(self) -> None:
        """Count a timer that was deleted from the state."""
        self._stale += 1
        if self._stale > max(STALE_MIN, len(self._heap) // 2):
            kept = {(place[0], place[3]): place for place in self._heap if self._is_kept(place)}
            self._heap = list(kept.values())
            heapq.heapify(self._heap)
            self._stale = 0

    def take(self, until: int) -> Place | None:
        """Remove from the state the next timer with a timestamp up to `until` and a free key; None if there is none."""
        while self._heap and self._heap[0][0] <= until:
            place = heapq.heappop(self._heap)
            identity = place[3]
            if identity in self._busy:
                self.parked.setdefault(identity, []).append(place)
            elif self._remove(place):
                return place
            else:
                self._stale = max(0, self._stale - 1)
        return None

    def take_parked(self, identity: Hashable, until: int) -> Place | None:
        """Remove from the state the next due timer of a key that has become free; None if there is none."""
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
        """Remove a timer from the state; returns whether it was there."""
        timestamp, _, key_group, identity = place
        timestamps: Any = self.table.get(key_group, identity)
        if timestamps is MISSING or timestamp not in timestamps:
            return False
        self.table.put_entries(key_group, identity, timestamps.delete(timestamp), (timestamp,), replaced=False)
        return True
