"""An operator on an event loop of its own thread, beside the thread that gets Spark's batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from async_op.elements import Element, Record, Watermark
from async_op.errors import MailboxClosed, as_exception
from async_op.hosting.loop_thread import LoopThread
from async_op.operator.operator import AsyncWaitOperator
from async_op.threads.processor import MailboxProcessor
from async_op.threads.wait_strategies import ParkWait, WaitSituation, WaitStrategies

_T = TypeVar("_T")

OUTPUTS_AT_ONCE = 1024
"""How many outputs cross from the loop to the feeding thread together."""

TICK_SECONDS = 0.1
"""How long an output may wait for others, and how often the feeding thread wakes up without outputs."""

# A thread that spins takes the interpreter lock from the loop that it waits for, so the default is to park.
_PARK = ParkWait(5e-3)
DEFAULT_STRATEGIES = WaitStrategies(source=_PARK, consume=_PARK, back_pressure=_PARK)

OperatorFactory = Callable[[Callable[[Record | Watermark], object]], AsyncWaitOperator]


class OperatorThread:
    """Runs one operator on an event loop of its own, as a context manager. Only the feeding thread may call it.

    The feeding thread runs a mailbox. Its default action takes the next batch of elements from the source, and is
    suspended until the operator has accepted them. Outputs come as mail.

    Parameters
    ----------
    make_operator : callable
        Returns the operator; called with the function that gets its outputs.
    outputs_at_once : int
        How many outputs cross to the feeding thread together; after `TICK_SECONDS`, fewer do.
    """

    def __init__(
        self,
        make_operator: OperatorFactory,
        *,
        outputs_at_once: int = OUTPUTS_AT_ONCE,
    ) -> None:
        self.operator = make_operator(self._keep)
        self._outputs_at_once = outputs_at_once
        self._outputs: list[Any] = []
        self._arrived: list[list[Any]] = []
        self._thread = LoopThread(lambda error: self._processor.report(error))

    def __enter__(self) -> OperatorThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._thread.call(self.operator.close())
        finally:
            self._thread.stop()

    def run(self, source: Iterator[Iterable[Element]]) -> Iterator[list[Any]]:
        """Feed elements until the source ends, then wait for what is in flight; yields outputs as they come.

        Opens the operator first. While no output comes, it yields an empty list every `TICK_SECONDS`: then the caller
        can show a sign of life, and notices if Spark no longer wants the outputs.

        Parameters
        ----------
        source : iterator of iterables of elements
            One iterable for each batch.
        """
        self._processor = MailboxProcessor(lambda _: self._feed(source), DEFAULT_STRATEGIES)
        self._mail = self._processor.executor()
        self._ended = False
        opened = self._processor.suspend_default_action(WaitSituation.SOURCE)
        self._start(self.operator.open(), opened.resume)
        self._thread.loop.call_soon_threadsafe(self._tick)
        try:
            while not self._ended:
                self._processor.run()
                yield from self._take_arrived()
            self._processor.close()
            yield from self._take_arrived()
        finally:
            self._processor.close()

    # Called on the feeding thread.

    def _feed(self, source: Iterator[Iterable[Element]]) -> None:
        started = time.monotonic()
        batch = next(source, None)
        self._processor.count_wait(WaitSituation.SOURCE, time.monotonic() - started)
        if batch is not None:
            accepted = self._processor.suspend_default_action(WaitSituation.BACK_PRESSURE)
            self._start(self.operator.process_all(batch), accepted.resume)
        else:
            self._processor.suspend_default_action(WaitSituation.CONSUME)
            # As mail, so that the end comes after the outputs.
            self._start(self._end(), lambda: self._mail.execute(self._leave_run, "end"))

    def _start(self, work: Coroutine[Any, Any, object], then: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(self._report(work, then), self._thread.loop)

    def _arrive(self, outputs: list[Any]) -> None:
        self._arrived.append(outputs)
        self._processor.pause()

    def _leave_run(self) -> None:
        self._ended = True
        self._processor.complete()

    def _take_arrived(self) -> list[list[Any]]:
        arrived, self._arrived = self._arrived, []
        return arrived

    # Called on the thread of the loop.

    async def _end(self) -> None:
        await self.operator.finish()
        self._flush()

    async def _report(self, work: Coroutine[Any, Any, object], then: Callable[[], object]) -> None:
        try:
            await work
        except BaseException as error:  # noqa: BLE001 - raised again in the feeding thread
            self._processor.report(as_exception(error))
        else:
            then()

    def _keep(self, element: Record | Watermark) -> None:
        assert isinstance(element, Record), "no watermark is fed"
        self._outputs.append(element.value)
        if len(self._outputs) >= self._outputs_at_once:
            self._flush()

    def _tick(self) -> None:
        # While mail waits, the feeding thread needs no empty list to wake up.
        if (self._outputs or not self._processor.mailbox.has_mail()) and not self._flush():
            return
        self._thread.loop.call_later(TICK_SECONDS, self._tick)

    def _flush(self) -> bool:
        """Send the gathered outputs to the feeding thread; returns False if it accepts no more."""
        outputs = self._outputs
        keep = lambda: self._arrived.append(outputs)  # noqa: E731
        try:
            self._mail.execute(lambda: self._arrive(outputs), "outputs", cancel=keep)
        except MailboxClosed:
            return False
        self._outputs = []
        return True
