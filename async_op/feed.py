"""Elements that come in as others leave, taken by the worker that has become free."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from async_op.elements import Element, Entry
from async_op.in_flight import InFlight

if TYPE_CHECKING:
    from async_op.intake import Intake
    from async_op.invoker import Invoker

_TAKEN_MAX = 1024
"""Only elements that leave at once make it so many; then others have their turn."""


class Feed:
    """An input of which each worker takes the next element itself, as soon as its call has returned.

    Whoever feeds puts many elements in at once, and waits while there is no room. Workers replace what leaves,
    because to wake up the one, or a worker, for each would cost as much as the rest of the operator. They do so while
    more than half of what was in flight is: calls that return at once cost less if they are put in together.

    Only the thread of the event loop may call it.

    Parameters
    ----------
    elements : iterator of (value, timestamp, element id)
        What is to come in.
    in_flight : InFlight
        Tells how much is in.
    capacity : int
        How much may be.
    intake : Intake
        Takes elements in.
    invoker : Invoker
        Has their calls made.
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
        "_next",
        "_start",
        "_wake",
    )

    def __init__(
        self,
        elements: Iterator[Element],
        in_flight: InFlight,
        capacity: int,
        intake: Intake,
        invoker: Invoker,
    ) -> None:
        self._elements = elements
        self._in_flight = in_flight
        self._capacity = capacity
        self._admit = intake.admit
        self._start = invoker.start
        self._is_direct = invoker.is_direct
        self._wake = invoker.wake
        self._low = capacity
        self._next: Element | None = None
        self._left: asyncio.Future[None] | None = None
        self._error: BaseException | None = None

    def take(self) -> Entry | None:
        """Take in what replaces something that has left; a lone element is returned if its call may begin at once."""
        in_flight = self._in_flight
        in_use = in_flight.accepted - in_flight.departed
        if in_use < self._low:
            self._leave()
        elif in_use < self._capacity:
            if self._is_direct:
                if self._left is not None and in_use + 1 < self._capacity:
                    self._wake(self._capacity - in_use)
                return self._take_one()
            if self._left is not None:
                self._take_many()
        return None

    def stop(self) -> None:
        """Let workers take nothing any more."""
        self._low = self._capacity = 0
        self._leave()

    async def give_way(self) -> None:
        """Let workers run after elements have been put in; raises what an element or the iterator raised."""
        self._low = len(self._in_flight) // 2
        await asyncio.sleep(0)
        if self._error is not None:
            raise self._error

    async def wait(self, following: Element) -> Element | None:
        """Return the next element once there is much room again, or None at the end.

        Parameters
        ----------
        following : (value, timestamp, element id)
            What comes in first; it has been taken from the iterator, so that its end is known in time.
        """
        self._next = following
        self._left = asyncio.get_running_loop().create_future()
        self._low = self._capacity // 2
        try:
            await self._left
        finally:
            self._left = None
        if self._error is not None:
            raise self._error
        following, self._next = self._next, None
        return following

    def _leave(self) -> None:
        if self._left is not None and not self._left.done():
            self._left.set_result(None)

    def _take_one(self) -> Entry | None:
        entry = None
        try:
            element = self._next or next(self._elements, None)
            if element is not None:
                entry = self._admit(*element)
            if self._left is not None:
                self._next = next(self._elements, None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the elements were put in
            self._error = error
            self.stop()
        if self._next is None:
            self._leave()
        return entry

    def _take_many(self) -> None:
        for _ in range(_TAKEN_MAX):
            if self._next is None or len(self._in_flight) >= self._capacity:
                return
            entry = self._take_one()
            if entry is not None:
                self._start((entry,))
        self._leave()
