"""An operator on an event loop of its own thread, beside the thread that Spark feeds with batches."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from async_op.cancellation import cancel_all
from async_op.elements import Record, Watermark
from async_op.errors import MailboxClosed
from async_op.operator import AsyncWaitOperator
from async_op.processor import MailboxProcessor, MailboxStatistics
from async_op.statistics import OperatorStatistics
from async_op.waiting import ParkWait, WaitSituation, WaitStrategies
from snapshots import SubtaskRestore, SubtaskSnapshot

_T = TypeVar("_T")

OUTPUTS_AT_ONCE = 1024
"""Outputs that cross from the loop to the feeding thread together."""

TICK_SECONDS = 0.1
"""How long an output may wait for company, and how often the feeding thread wakes where nothing leaves."""

_SETTLE_SECONDS = 60.0

# A thread that spins takes the interpreter lock from the loop that it waits for, so the default is to park.
_PARK = ParkWait(5e-3)
DEFAULT_STRATEGIES = WaitStrategies(source=_PARK, consume=_PARK, back_pressure=_PARK)

Element = tuple[Any, int | None, str | None]
"""A value, its timestamp and its id, as `AsyncWaitOperator.process` takes them."""

OperatorFactory = Callable[[Callable[[Record | Watermark], object]], AsyncWaitOperator]


class LastStep(NamedTuple):
    """What is left of an operator that has been closed.

    Attributes
    ----------
    snapshot : SubtaskSnapshot
        Cut before.
    outputs : list
        Those that were not yielded before.
    statistics : OperatorStatistics
        The counters.
    next_timer, next_event_timer : int or None
        When the first of its timers are to fire.
    """

    snapshot: SubtaskSnapshot
    outputs: list[Any]
    statistics: OperatorStatistics
    next_timer: int | None
    next_event_timer: int | None


class OperatorThread:
    """Runs one operator on its own loop. One other thread, the feeding one, calls the methods.

    The feeding thread is a mailbox's: its default action takes the next batch of elements from the source, and is
    suspended until the operator has accepted them; outputs come as mail.

    Parameters
    ----------
    make_operator : callable
        Called with the operator's `output`.
    restore : SubtaskRestore, optional
        What the operator is opened with.
    outputs_at_once : int
        How many outputs cross to the feeding thread together, unless `TICK_SECONDS` are over before.

    Attributes
    ----------
    watermarks : int
        How many have left the operator; they are not among the outputs.
    """

    def __init__(
        self,
        make_operator: OperatorFactory,
        restore: SubtaskRestore | None = None,
        *,
        outputs_at_once: int = OUTPUTS_AT_ONCE,
    ) -> None:
        self.operator = make_operator(self._keep)
        self._restore = restore
        self._outputs_at_once = outputs_at_once
        self.watermarks = 0
        self._outputs: list[Any] = []
        self._arrived: list[list[Any]] = []
        self._loop = _new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="keygroups loop", daemon=True)

    def __enter__(self) -> OperatorThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call(self.operator.close())
        finally:
            self._stop()

    def run(
        self,
        source: Iterator[Iterable[Element]],
        barrier_timeout: float | None = None,
        watermark: int | None = None,
    ) -> Iterator[list[Any]]:
        """Feed elements until the source ends, then wait for what is in flight; yields outputs as they come.

        Opens the operator first. Where no output comes, an empty list is yielded every `TICK_SECONDS`, so that whoever
        takes them can show that it is alive, and learns that nobody listens any more.

        Parameters
        ----------
        source : iterator of iterables of elements
            One iterable a batch.
        barrier_timeout : float, optional
            Seconds to wait, at the end, for calls under way, and before the elements for the timers of the watermark;
            without it, until all have returned.
        watermark : int, optional
            Stands before the elements, and behind what the operator was opened with.
        """
        self._processor = MailboxProcessor(lambda _: self._feed(source, barrier_timeout), DEFAULT_STRATEGIES)
        self._mail = self._processor.executor()
        self._ended = False
        opened = self._processor.suspend_default_action(WaitSituation.SOURCE)
        self._start(self._open(watermark, barrier_timeout), opened.resume)
        self._loop.call_soon_threadsafe(self._tick)
        try:
            while not self._ended:
                self._processor.run()
                yield from self._take_arrived()
            self._processor.close()
            yield from self._take_arrived()
        finally:
            self._processor.close()

    def cut(self) -> LastStep:
        """Cut a snapshot and close the operator."""
        return self._call(self._cut())

    def waits(self) -> MailboxStatistics:
        """Return how long the feeding thread waited, and for what."""
        return self._processor.statistics()

    # The feeding thread's.

    def _feed(self, source: Iterator[Iterable[Element]], barrier_timeout: float | None) -> None:
        started = time.monotonic()
        batch = next(source, None)
        self._processor.count_wait(WaitSituation.SOURCE, time.monotonic() - started)
        if batch is not None:
            accepted = self._processor.suspend_default_action(WaitSituation.BACK_PRESSURE)
            self._start(self.operator.process_all(batch), accepted.resume)
        else:
            self._processor.suspend_default_action(WaitSituation.CONSUME)
            # As mail, so that it comes after the outputs.
            self._start(self._end(barrier_timeout), lambda: self._mail.execute(self._leave_run, "end"))

    def _start(self, work: Coroutine[Any, Any, object], then: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(self._report(work, then), self._loop)

    def _arrive(self, outputs: list[Any]) -> None:
        self._arrived.append(outputs)
        self._processor.pause()

    def _leave_run(self) -> None:
        self._ended = True
        self._processor.complete()

    def _take_arrived(self) -> list[list[Any]]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        future: Future[_T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    def _stop(self) -> None:
        self._call(_end_all_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # The loop's.

    async def _open(self, watermark: int | None, barrier_timeout: float | None) -> None:
        # An epoch touches a part of the state only.
        await self.operator.open(self._restore, preload=False)
        if watermark is None:
            return
        is_first = self.operator.statistics().in_flight == 0
        await self.operator.process_watermark(watermark)
        if is_first:
            # Then only its timers hold it, and no element is to come before the timer of its key.
            await self._settle(barrier_timeout)

    async def _end(self, barrier_timeout: float | None) -> None:
        # Not `finish`, which makes the last attempts at once: a partition's end is no reason to hurry a service.
        await self._settle(barrier_timeout)
        self._flush()

    async def _settle(self, timeout: float | None) -> None:
        settled = await self.operator.settle(_SETTLE_SECONDS if timeout is None else timeout)
        while not settled and timeout is None:
            settled = await self.operator.settle(_SETTLE_SECONDS)

    async def _cut(self) -> LastStep:
        """Cut and close in one step of the loop: a call that began in between would be paid for and forgotten."""
        operator = self.operator
        snapshot = await operator.snapshot()
        timers = operator.next_timer(), operator.next_timer(event_time=True)
        last = LastStep(snapshot, self._outputs, operator.statistics(), *timers)
        self._outputs = []
        await operator.close()
        return last

    async def _report(self, work: Coroutine[Any, Any, object], then: Callable[[], object]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - raised again in the feeding thread
            self._processor.report(error)
        else:
            then()

    def _keep(self, element: Record | Watermark) -> None:
        if not isinstance(element, Record):
            self.watermarks += 1
            return
        self._outputs.append(element.value)
        if len(self._outputs) >= self._outputs_at_once:
            self._flush()

    def _tick(self) -> None:
        # Mail that nobody has taken yet says as much as an empty one more.
        if (self._outputs or not self._processor.mailbox.has_mail()) and not self._flush():
            return
        self._loop.call_later(TICK_SECONDS, self._tick)

    def _flush(self) -> bool:
        """Send what has left the operator to the feeding thread; tell whether that takes anything any more."""
        outputs = self._outputs
        keep = lambda: self._arrived.append(outputs)  # noqa: E731
        try:
            self._mail.execute(lambda: self._arrive(outputs), "outputs", cancel=keep)
        except MailboxClosed:
            return False
        self._outputs = []
        return True


async def _end_all_tasks() -> None:
    """End what a function has started on the loop and left behind, its threads included."""
    loop = asyncio.get_running_loop()
    await cancel_all(asyncio.all_tasks() - {asyncio.current_task()})
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a uvloop where it is installed: the operator runs about twice as fast on it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
