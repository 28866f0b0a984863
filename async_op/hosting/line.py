"""Elements that a feeder has handed over and for which the operator has no room yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from async_op.clock import Clock
from async_op.elements import Element, Watermark
from async_op.hosting.ages import Ages
from async_op.hosting.operator import ResidentOperator
from async_op.hosting.reserve import Reserve
from async_op.hosting.restoring import Waiting
from async_op.in_flight.waiters import Waiters


class Line:
    """Moves elements into the operator when it has room. Only the thread of the event loop may call it.

    No call has begun for an element in the line, and its timeout is not running. A cut includes the line: at any
    moment, an element is either in the line or in the operator.

    Parameters
    ----------
    operator : ResidentOperator
        The operator, already open.
    clock : Clock
        The source of time.
    reserve : Reserve
        How long the line may be while more rows are fetched.
    failed : callable
        Called with the error if the operator does not accept an element.

    Attributes
    ----------
    ages : Ages
        When elements came into the operator.
    """

    def __init__(
        self, operator: ResidentOperator, clock: Clock, reserve: Reserve, failed: Callable[[BaseException], None]
    ) -> None:
        self._operator = operator
        self._clock = clock
        self._reserve = reserve
        self._failed = failed
        self._elements = deque[Waiting](operator.left_over)
        self.ages = Ages()
        self.ages.mark(operator.accepted, clock.time())
        self._failure: BaseException | None = None
        self._is_held = False
        self._is_concluding = False
        self._queued_seconds = 0.0
        self._queued_since: float | None = clock.time() if self._elements else None
        self._changed = Waiters(self._check)
        self._pump = asyncio.get_running_loop().create_task(self._move())

    def __len__(self) -> int:
        return len(self._elements)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._elements)

    @property
    def has_room(self) -> bool:
        """Whether the rows of another epoch may come: no more elements wait than the reserve."""
        return len(self) <= self._reserve.size

    def put(self, elements: Iterable[Element], rows_bytes: int) -> None:
        """Add the elements of rows at the end; `rows_bytes` is the size of the rows as they were fed."""
        before = len(self)
        self._elements.extend(elements)
        self._reserve.fed(before, len(self) - before, rows_bytes)
        self._grown()

    def note_cut(self) -> None:
        """Note that a cut was taken: the reserve must last from here until the next rows come."""
        self._reserve.cut(len(self))

    def put_watermark(self, watermark: Watermark) -> None:
        """Add a watermark at the end; it replaces one that is right before it, so watermarks alone use up no room."""
        if self._elements and isinstance(self._elements[-1], Watermark):
            self._elements.pop()
        self._elements.append(watermark)
        self._grown()

    def queued_seconds(self) -> float:
        """Return the total time during which the line was not empty."""
        since = self._queued_since
        return self._queued_seconds + (0.0 if since is None else self._clock.time() - since)

    def hold(self, is_held: bool) -> None:
        """Stop moving elements into the operator, or go on."""
        self._is_held = is_held
        self._changed.wake()

    def conclude(self, is_concluding: bool) -> None:
        """Let nobody wait for the line, or let them wait again."""
        self._is_concluding = is_concluding
        self._changed.wake()

    async def wait_for_room(self, until: float | None) -> None:
        """Wait until `has_room`; otherwise as `wait_until_at_most`."""
        await self.wait_until_at_most(self._reserve.size, until)

    async def wait_until_at_most(self, length: int, until: float | None) -> None:
        """Wait until the line has at most `length` elements, or until the clock shows `until` (None: without limit).

        After `conclude`, it does not wait.

        Raises
        ------
        BaseException
            The reason for which the line has ended.
        """
        is_over = lambda: self._is_concluding or len(self) <= length  # noqa: E731
        if until is None:
            await self._changed.wait_until(is_over)
        elif (left := until - self._clock.time()) > 0:
            await self._changed.wait_at_most(left, self._clock, is_over)
        else:
            self._check()

    def end(self, reason: BaseException) -> None:
        """Stop for good; all who wait for the line get the reason as an error."""
        self._pump.cancel()
        if self._failure is None:
            self._failure = reason
            self._changed.wake()

    async def _move(self) -> None:
        try:
            with self._operator.refill(self._following, self._refused):
                while True:
                    await self._changed.wait_until(lambda: bool(self._elements) and not self._is_held)
                    await self._operator.room()
                    if self._elements and not self._is_held:  # both may have changed during the wait
                        await self._move_some()
                        self.ages.mark(self._operator.accepted, self._clock.time())
                        self._shrunk()
                        await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001 - handed to the host
            self._refused(error)

    def _following(self, sequence: int) -> Element | None:
        """Return the next element, for a worker whose call has returned; None if it has to wait."""
        if self._is_held or not self._elements or isinstance(self._elements[0], Watermark):
            return None
        element = self._elements.popleft()
        self.ages.mark(sequence + 1, self._clock.time())
        if self._changed.waiting or not self._elements:
            self._shrunk()
        return element  # type: ignore[return-value]

    def _refused(self, error: Exception) -> None:
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
        """Move a watermark, or the elements before the next watermark that fit, in one step of the event loop."""
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
