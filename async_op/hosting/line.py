"""Elements that a feeder has handed over and that have no room yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from async_op.clock import Clock
from async_op.elements import Element, Watermark
from async_op.hosting.ages import Ages
from async_op.hosting.operator import ResidentOperator
from async_op.hosting.restoring import Waiting
from async_op.in_flight.waiters import Waiters


class Line:
    """Brings elements into the operator as it has room. Only the thread of the event loop may call it.

    What waits has not been called for, and its time budget has not begun. A cut takes the line as it is at that
    moment: an element is in the line until it is in the operator, and never in neither.

    Parameters
    ----------
    operator : ResidentOperator
        Opened.
    clock : Clock
        For waits that end.
    failed : callable
        Called with the error of an element that the operator does not take.

    Attributes
    ----------
    ages : Ages
        Of what has come into the operator.
    """

    def __init__(self, operator: ResidentOperator, clock: Clock, failed: Callable[[BaseException], None]) -> None:
        self._operator = operator
        self._clock = clock
        self._failed = failed
        self._elements = deque[Waiting](operator.left_over)
        self.ages = Ages()
        self.ages.mark(operator.accepted, clock.time())
        self._failure: BaseException | None = None
        self._is_held = False
        self._queued_seconds = 0.0
        self._queued_since: float | None = clock.time() if self._elements else None
        self._changed = Waiters(self._check)
        self._pump = asyncio.get_running_loop().create_task(self._move())

    def __len__(self) -> int:
        return len(self._elements)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._elements)

    def put(self, elements: Iterable[Element]) -> None:
        """Add elements at the end."""
        self._elements.extend(elements)
        self._grown()

    def put_watermark(self, watermark: Watermark) -> None:
        """Add a watermark at the end; it never waits for room, because it takes the place of one right before it."""
        if self._elements and isinstance(self._elements[-1], Watermark):
            self._elements.pop()
        self._elements.append(watermark)
        self._grown()

    def queued_seconds(self) -> float:
        """Return for how long there was something in the line, all times together."""
        since = self._queued_since
        return self._queued_seconds + (0.0 if since is None else self._clock.time() - since)

    def hold(self, is_held: bool) -> None:
        """Let nothing into the operator for now, or go on."""
        self._is_held = is_held
        self._changed.wake()

    async def wait_until_at_most(self, length: int, until: float | None) -> None:
        """Return once the line is that short, or a moment has come.

        Raises
        ------
        BaseException
            What has ended the line.
        """
        if until is None:
            await self._changed.wait_until(lambda: len(self) <= length)
        elif (left := until - self._clock.time()) > 0:
            await self._changed.wait_at_most(left, self._clock, lambda: len(self) <= length)
        else:
            self._check()

    def end(self, reason: BaseException) -> None:
        """Move nothing any more; whoever waits gets the reason."""
        self._pump.cancel()
        if self._failure is None:
            self._failure = reason
            self._changed.wake()

    async def _move(self) -> None:
        try:
            while True:
                await self._changed.wait_until(lambda: bool(self._elements) and not self._is_held)
                await self._operator.room()
                if self._elements and not self._is_held:  # while it waited, things may have changed
                    await self._move_some()
                    self.ages.mark(self._operator.accepted, self._clock.time())
                    self._shrunk()
                    await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001 - it is the host's
            self.end(error)
            self._failed(error)

    def _grown(self) -> None:
        if self._queued_since is None and self._elements:
            self._queued_since = self._clock.time()
        self._changed.wake()

    def _shrunk(self) -> None:
        if self._queued_since is not None and not self._elements:
            self._queued_seconds += self._clock.time() - self._queued_since
            self._queued_since = None
        self._changed.wake()

    async def _move_some(self) -> None:
        """Move a watermark, or what fits of the elements before the next one; nothing else runs meanwhile."""
        if isinstance(self._elements[0], Watermark):
            await self._operator.process_watermark(self._elements.popleft().timestamp)  # type: ignore[union-attr]
        else:
            self._operator.offer(self._taken())

    def _taken(self) -> Iterator[Element]:
        while self._elements and not isinstance(self._elements[0], Watermark):
            yield self._elements.popleft()  # type: ignore[misc]

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
