"""The timers of a key, as a function registers and deletes them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from immutables import Map

from async_op.errors import TimersUnavailable
from async_op.timers import TimerService
from keygroups.errors import ConfigError
from keygroups.state import MISSING, StateAccessOutsideInvocation, StateTable, Transaction
from keygroups.state.handles import MapOverlay
from keygroups.state.timers import TimerIndex

if TYPE_CHECKING:
    from async_op.context import InvocationContext


class _TimerOverlay(MapOverlay):
    """The timers of a key with what one invocation does to them."""

    __slots__ = ("_before", "_index", "_service")

    def __init__(self, content: Map[Hashable, Any], service: TimerService, index: TimerIndex) -> None:
        super().__init__(content)
        self._before = content
        self._service = service
        self._index = index

    def apply(self, table: StateTable, key_group: int, identity: Hashable) -> None:
        """Write the timers to the state and to its index."""
        super().apply(table, key_group, identity)
        for timestamp in self.changed:
            is_there, was_there = timestamp in self.content, timestamp in self._before
            if is_there and not was_there:
                assert isinstance(timestamp, int), "as it was checked"
                self._index.add(timestamp, key_group, identity)
            elif was_there and not is_there:
                self._index.deleted()
        self._service.changed(self._index)


class KeyTimers:
    """The timers of an element's key, as one invocation sees them: what it does to them counts once it completes.

    There is one timer for each timestamp of a kind, however often it is registered. Only the thread of the event loop
    may use it, until the invocation ends.
    """

    __slots__ = ("_invocation", "_service")

    def __init__(self, invocation: InvocationContext, service: TimerService | None) -> None:
        if service is None:
            raise TimersUnavailable(invocation.key)
        self._invocation = invocation
        self._service = service

    @property
    def processing_time(self) -> int:
        """The time by which timers of processing time fire: milliseconds since the epoch."""
        return self._service.processing_time

    @property
    def watermark(self) -> int | None:
        """The newest watermark that has left the operator, None before the first."""
        return self._service.watermark

    def register(self, timestamp: int, event_time: bool = False) -> None:
        """Have `on_timer` invoked for the key at some time; in the past, as soon as possible.

        Parameters
        ----------
        timestamp : int
            Milliseconds since the epoch.
        event_time : bool
            Fire when the watermark reaches the timestamp, and not when the clock does. One that is not later than the
            newest watermark fires with the next.

        Raises
        ------
        ConfigError
            The timestamp is no integer of 64 bits.
        StateAccessOutsideInvocation
            The invocation has ended.
        """
        if type(timestamp) is not int or not -(2**63) <= timestamp < 2**63:
            raise ConfigError("timestamp", timestamp, "a timer fires at an int of milliseconds since the epoch")
        overlay = self._overlay(event_time)
        overlay.content = overlay.content.set(timestamp, None)
        overlay.changed.add(timestamp)

    def delete(self, timestamp: int, event_time: bool = False) -> None:
        """Take back a timer, if there is one.

        Parameters
        ----------
        timestamp, event_time : int, bool
            As it was registered.
        """
        overlay = self._overlay(event_time)
        if timestamp in overlay.content:
            overlay.content = overlay.content.delete(timestamp)
            overlay.changed.add(timestamp)

    def timestamps(self, event_time: bool = False) -> list[int]:
        """Return when the key's timers of a kind are going to fire, in order."""
        content: Any = self._overlay(event_time).content
        return sorted(content)

    def _overlay(self, event_time: bool) -> _TimerOverlay:
        invocation = self._invocation
        if invocation.entry.invocation is not invocation:
            raise StateAccessOutsideInvocation(invocation.key)
        transaction = invocation.transaction
        if transaction is None:
            transaction = invocation.transaction = Transaction(
                invocation.scope.backend, invocation.key, invocation.key_group
            )
        if transaction.overlays is None:
            transaction.overlays = {}
        index = self._service.index_of(event_time)
        overlay = transaction.overlays.get(index.table)
        if overlay is None:
            held: Any = index.table.get(transaction.key_group, transaction.identity)
            overlay = _TimerOverlay(Map() if held is MISSING else held, self._service, index)
            transaction.overlays[index.table] = overlay
        assert isinstance(overlay, _TimerOverlay), "the states of timers are nobody else's"
        return overlay
