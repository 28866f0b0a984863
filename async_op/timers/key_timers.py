"""`ctx.timers`: registers and deletes the timers of a key."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from immutables import Map

from async_op.elements import check_timestamp
from async_op.errors import TimersUnavailable
from async_op.timers.service import TimerService
from keygroups.descriptors import MapState
from keygroups.state import EntriesStateTable, MapHandle
from keygroups.state.handles import MapOverlay
from keygroups.state.timers import EVENT_TIME, PROCESSING_TIME, TimerIndex

_NO_TIMERS: Map[Hashable, Any] = Map()


class TimedInvocation(Protocol):
    """What the timers of a key need of an invocation. A protocol, because the context that is one makes `KeyTimers`."""

    @property
    def key(self) -> Hashable:
        """The key of the element."""
        ...

    def state(self, descriptor: MapState) -> MapHandle:
        """Return the handle of a state; raises `StateAccessOutsideInvocation` once the invocation has ended."""
        ...


class _TimerOverlay(MapOverlay):
    """The timers of a key, with the uncommitted changes of one invocation."""

    __slots__ = ("_before", "_index", "_service")

    def __init__(self, content: Map[Hashable, Any], service: TimerService, index: TimerIndex) -> None:
        super().__init__(content)
        self._before = content
        self._service = service
        self._index = index

    def apply(self, table: EntriesStateTable, key_group: int, identity: Hashable) -> None:
        """Write the changes to the state and to its index."""
        # Asked before the state is written: on disk, what was there is read only now.
        before = {timestamp for timestamp in self.changed if timestamp in self._before}
        super().apply(table, key_group, identity)
        for timestamp in self.changed:
            is_there, was_there = timestamp in self.content, timestamp in before
            if is_there and not was_there:
                assert isinstance(timestamp, int), "`register` has checked it"
                self._index.add(timestamp, key_group, identity)
            elif was_there and not is_there:
                self._index.deleted()
        self._service.changed(self._index)


class KeyTimers:
    """The timers of an element's key, as one invocation sees them. Its changes take effect when it completes.

    There is one timer per kind and timestamp, however often it is registered. Only the thread of the event loop may use
    it, and only until the invocation ends.
    """

    __slots__ = ("_invocation", "_service")

    def __init__(self, invocation: TimedInvocation, service: TimerService | None) -> None:
        if service is None:
            raise TimersUnavailable(invocation.key)
        self._invocation = invocation
        self._service = service

    @property
    def processing_time(self) -> int:
        """The current processing time in milliseconds since the epoch; processing-time timers fire by it."""
        return self._service.processing_time

    @property
    def watermark(self) -> int | None:
        """The newest watermark that has left the operator; None before the first."""
        return self._service.watermark

    def register(self, timestamp: int, event_time: bool = False) -> None:
        """Have `on_timer` invoked for the key at a timestamp; if that is in the past, as soon as possible.

        Parameters
        ----------
        timestamp : int
            Milliseconds since the epoch.
        event_time : bool
            If true, the timer fires when the watermark reaches the timestamp; if false, when the clock does. An
            event-time timer that is not later than the newest watermark fires with the next watermark.

        Raises
        ------
        ConfigError
            The timestamp is not a 64-bit integer.
        StateAccessOutsideInvocation
            The invocation has ended.
        """
        timestamp = check_timestamp(timestamp)
        overlay = self._overlay(event_time)
        overlay.content = overlay.content.set(timestamp, None)
        overlay.changed.add(timestamp)

    def delete(self, timestamp: int, event_time: bool = False) -> None:
        """Delete a timer if there is one.

        Parameters
        ----------
        timestamp, event_time : int, bool
            The arguments with which it was registered.

        Raises
        ------
        ConfigError
            The timestamp is not a 64-bit integer.
        StateAccessOutsideInvocation
            The invocation has ended.
        """
        timestamp = check_timestamp(timestamp)
        overlay = self._overlay(event_time)
        if timestamp in overlay.content:
            overlay.content = overlay.content.delete(timestamp)
            overlay.changed.add(timestamp)

    def timestamps(self, event_time: bool = False) -> list[int]:
        """Return the timestamps of the key's timers of one kind, ascending."""
        content: Any = self._overlay(event_time).content
        return sorted(content)

    def _overlay(self, event_time: bool) -> _TimerOverlay:
        index = self._service.index_of(event_time)
        handle = self._invocation.state(EVENT_TIME if event_time else PROCESSING_TIME)
        overlay = handle.overlay_of(lambda content: _TimerOverlay(content, self._service, index), _NO_TIMERS)
        assert isinstance(overlay, _TimerOverlay), "only timers use these states"
        return overlay
