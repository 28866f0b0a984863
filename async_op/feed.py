"""Elements that come in as others leave, taken by the worker that has become free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from async_op.elements import Element
from async_op.in_flight import InFlight


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
    accept : callable
        Takes an element in.

    Attributes
    ----------
    next : (value, timestamp, element id), or None
        What is to come in next; None at the end.
    """

    __slots__ = ("_accept", "_capacity", "_elements", "_error", "_in_flight", "_left", "_low", "next")

    def __init__(
        self,
        first: Element,
        elements: Iterator[Element],
        in_flight: InFlight,
        capacity: int,
        accept: Callable[[Any, int | None, str | None], None],
    ) -> None:
        self.next: Element | None = first
        self._elements = elements
        self._in_flight = in_flight
        self._capacity = capacity
        self._low = capacity // 2
        self._accept = accept
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._error: BaseException | None = None

    def take(self) -> None:
        """Take in as much as there is room for, as a rule one element; leave it to others if there is much room."""
        in_use = self._in_flight.accepted - self._in_flight.departed
        if self._left.done():
            return
        if in_use < self._low:
            self.leave()
            return
        for _ in range(self._capacity - in_use):
            try:
                assert self.next is not None, "there was more when the feed began, or it has been left"
                self._accept(*self.next)
                self.next = next(self._elements, None)
            except BaseException as error:  # noqa: BLE001 - it is raised where the elements were put in
                self.next, self._error = None, error
            if self.next is None:
                self.leave()
                return

    def leave(self) -> None:
        """Let whoever fed before go on: there is much room, no more element, or nothing to be done any more."""
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
