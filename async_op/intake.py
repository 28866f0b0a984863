"""Where new elements come in."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from async_op.context import Scope
from async_op.elements import Element, Entry, add_entries, new_entry
from async_op.in_flight import InFlight
from async_op.invoker import Invoker
from async_op.keys import KeyAssignment


class Intake:
    """Makes entries of elements, puts them into the queue and has them called for.

    Only the thread of the event loop may call it. Elements of a batch function that have no key come in by `Batches`.

    Parameters
    ----------
    in_flight : InFlight
        Where they go.
    invoker : Invoker
        Makes the calls.
    keys : KeyAssignment or None
        Sets their keys, if they have any.
    scope : Scope
        The time budget of an element, and the clock.
    """

    __slots__ = ("_deadlines", "_in_flight", "_now", "_set_key", "_start", "_timeout")

    def __init__(self, in_flight: InFlight, invoker: Invoker, keys: KeyAssignment | None, scope: Scope) -> None:
        self._in_flight = in_flight
        self._start = invoker.start
        self._deadlines = invoker.deadlines
        self._set_key = None if keys is None else keys.set_key
        self._now = scope.clock.time
        self._timeout = scope.timeout

    def accept(self, value: Any, timestamp: int | None, element_id: str | None) -> None:
        """Take in a new element."""
        self._start((self.admit(value, timestamp, element_id),))

    def admit(self, value: Any, timestamp: int | None, element_id: str | None) -> Entry:
        """Take in a new element that whoever asked is to `start`; raises where its key belongs to others."""
        entry = new_entry(value, timestamp, element_id, self._in_flight.accepted)
        if self._set_key is not None:
            self._set_key(entry)
        if self._timeout is not None:
            entry.deadline = deadline = self._now() + self._timeout
            if deadline < self._deadlines.due:
                self._deadlines.arm(deadline)
        self._in_flight.put((entry,))
        return entry

    def take(self, source: Iterator[Element], room: int) -> bool:
        """Take in as many new elements as there is room for, and tell whether there may be more."""
        entries: list[Entry] = []
        try:
            add_entries(entries, islice(source, room), self._in_flight.accepted, self._set_key)
        finally:
            if entries:  # also what came before an error
                self._start_all(entries)
        return len(entries) == room

    def _start_all(self, entries: list[Entry]) -> None:
        if self._timeout is not None:
            deadline = self._now() + self._timeout
            for entry in entries:
                entry.deadline = deadline
            if deadline < self._deadlines.due:
                self._deadlines.arm(deadline)
        self._in_flight.put(entries)
        self._start(entries)
