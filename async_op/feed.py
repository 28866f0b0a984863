"""Elements that come in as others leave, taken by the worker that has become free."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from async_op.elements import Element, Entry
from async_op.in_flight import InFlight

if TYPE_CHECKING:
    from async_op.intake import Intake

_TAKEN_MAX = 1024
"""Only elements that leave at once make it so many; then others have their turn."""


class Feed:
    """An input of which each worker takes the next element itself, as soon as its call has returned.

    To wake up a task for each free place, which then wakes up a worker, would cost as much as the rest of the operator.
    Only the thread of the event loop may call it.

    Parameters
    ----------
    first : (value, timestamp, element id)
        What is to come in first.
    elements : iterator of (value, timestamp, element id)
        What is to come in then.
    in_flight : InFlight
        Tells how much is in.
    capacity : int
        How much may be. Workers take elements while more than half of it is in use: below, whoever fed before does.
    intake : Intake
        Takes elements in.

    Attributes
    ----------
    next : (value, timestamp, element id), or None
        What is to come in next; None at the end.
    """

    __slots__ = (
        "_admit",
        "_capacity",
        "_elements",
        "_error",
        "_in_flight",
        "_is_direct",
        "_left",
        "_low",
        "_start",
        "next",
    )

    def __init__(
        self, first: Element, elements: Iterator[Element], in_flight: InFlight, capacity: int, intake: Intake
    ) -> None:
        self.next: Element | None = first
        self._elements = elements
        self._in_flight = in_flight
        self._capacity = capacity
        self._low = capacity // 2
        self._admit = intake.admit
        self._start = intake.start
        self._is_direct = intake.is_direct
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._error: BaseException | None = None

    def take(self) -> Entry | None:
        """Take in what there is room for, as a rule one element; it is returned if its call may begin at once."""
        in_flight = self._in_flight
        in_use = in_flight.accepted - in_flight.departed
        if in_use + 1 == self._capacity and self._is_direct:
            return self._take_one()
        if in_use < self._low:
            self.leave()
        elif in_use < self._capacity:
            self._take_many()
        return None

    def _take_one(self) -> Entry | None:
        assert self.next is not None, "there was more when the feed began, or it has been left"
        entry = None
        try:
            entry = self._admit(*self.next)
            self.next = next(self._elements, None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the elements were put in
            self.next, self._error = None, error
        if self.next is None:
            self.leave()
        return entry

    def _take_many(self) -> None:
        for _ in range(_TAKEN_MAX):
            if self._in_flight.accepted - self._in_flight.departed >= self._capacity:
                return
            entry = self._take_one()
            if entry is not None:
                self._start((entry,))
        self.leave()

    def leave(self) -> None:
        """Let whoever fed before go on: there is much room, no more element, or nothing to be done any more."""
        self._capacity = self._low = 0
        if not self._left.done():
            self._left.set_result(None)

    async def wait(self) -> None:
        """Return once workers take no more elements from here; raises what an element or the iterator raised."""
        try:
            await self._left
        finally:
            self._left.cancel()
        if self._error is not None:
            raise self._error
