"""An operator on an event loop of its own thread, beside the thread that Spark gets outputs from."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from itertools import chain
from typing import Any

from async_op.elements import Element, Record, Watermark
from async_op.errors import as_exception
from async_op.in_flight.in_flight import ValueOutput
from async_op.operator.operator import AsyncWaitOperator
from async_op.threads.loop_thread import LoopThread
from async_op.threads.mailbox import Mail, Mailbox
from async_op.threads.wait_strategies import WaitSituation, WaitStrategies
from async_op.threads.waits import Waits

OUTPUTS_AT_ONCE = 1024
"""How many outputs cross from the loop to the feeding thread together."""

FLUSH_SECONDS = 0.1
"""How long an output may wait for others, and how often the feeding thread wakes up without outputs."""

OperatorFactory = Callable[[Callable[[Record | Watermark], object]], AsyncWaitOperator]


class OperatorThread:
    """Runs one operator on an event loop of its own, as a context manager. Only the thread of the task may call it.

    A second thread reads the source and feeds the operator, so that a slow source holds up no output: to the thread of
    the task, outputs come as mail.

    Parameters
    ----------
    make_operator : callable
        Returns the operator; called with the function that gets its outputs.
    strategies : WaitStrategies
        How the threads wait.
    outputs_at_once : int
        How many outputs cross to the thread of the task together; after `FLUSH_SECONDS`, fewer do.

    Attributes
    ----------
    waits : Waits
        How long the thread of the task has waited for outputs, by what held them up.
    """

    def __init__(
        self,
        make_operator: OperatorFactory,
        strategies: WaitStrategies,
        *,
        outputs_at_once: int = OUTPUTS_AT_ONCE,
    ) -> None:
        self._outputs = _Gathered(self, outputs_at_once)
        self.operator = make_operator(self._outputs)
        self._strategies = strategies
        self.waits = Waits(strategies)
        self._arrived: list[list[Any]] = []
        self._mailbox = Mailbox()
        self._situation = WaitSituation.SOURCE
        self._ended = self._is_reading = False
        self._portions = deque[Iterable[Element]]()
        self._feeding: Future[None] | None = None
        self._moved = threading.Event()
        self._reader: threading.Thread | None = None
        self._thread = LoopThread(self._report)

    def __enter__(self) -> OperatorThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._mailbox.close()
        try:
            self._thread.call(self.operator.close())
        finally:
            if self._reader is not None and not self._is_reading:
                self._reader.join()  # a read that blocks cannot be ended
            self._thread.stop()
            self._feeding = None  # it refers to this object

    def run(self, source: Iterator[Iterable[Element]]) -> Iterator[list[Any]]:
        """Feed elements until the source ends, then wait for what is in flight; yields outputs as they come.

        Opens the operator first. While no output comes, it yields an empty list every `FLUSH_SECONDS`: then the caller
        can show a sign of life, and notices if Spark no longer wants the outputs.

        Parameters
        ----------
        source : iterator of iterables of elements
            One iterable for each batch. It is read on a thread of its own.
        """
        self._thread.loop.call_soon_threadsafe(self._tick)
        self._reader = threading.Thread(target=self._read, args=(source,), name="keygroups source", daemon=True)
        self._reader.start()
        mailbox = self._mailbox
        try:
            while not self._ended:
                self.waits.until(mailbox.has_mail, mailbox.arrival, lambda: self._situation)
                mailbox.create_batch()
                while (mail := mailbox.take()) is not None:
                    mail.run()
                yield from self._take_arrived()
        finally:
            mailbox.close()

    def _take_arrived(self) -> list[list[Any]]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def _end(self) -> None:
        self._ended = True

    # Called on the thread that reads the source.

    def _read(self, source: Iterator[Iterable[Element]]) -> None:
        waits = Waits(self._strategies)
        try:
            self._wait_for(self.operator.open(), waits, WaitSituation.SOURCE)
            while (portion := self._next_of(source)) is not None:
                self._situation = WaitSituation.BACK_PRESSURE
                self._feed(portion, waits)
                self._situation = WaitSituation.SOURCE
            if self._mailbox.is_open:
                self._situation = WaitSituation.CONSUME
                self._wait_for(self._finish(self._feeding), waits, WaitSituation.CONSUME)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the task
            self._report(as_exception(error))

    def _next_of(self, source: Iterator[Iterable[Element]]) -> Iterable[Element] | None:
        self._is_reading = True
        try:
            return next(source, None) if self._mailbox.is_open else None
        finally:
            self._is_reading = False

    def _feed(self, portion: Iterable[Element], waits: Waits) -> None:
        """Have the elements of a portion fed, and wait until the first of them is: the next portion is read meanwhile.

        So workers find their next element without a wait for this thread.
        """
        self._portions.append(portion)
        while self._portions and self._mailbox.is_open:
            if self._feeding is None or self._feeding.done():
                if self._feeding is not None:
                    self._feeding.result()  # raises what it failed with
                self._feeding = self._begin(self.operator.process_all(chain.from_iterable(self._taken())))
                self._feeding.add_done_callback(self._fed)
            self._until(self._is_taken, waits, WaitSituation.BACK_PRESSURE)

    def _is_taken(self) -> bool:
        """Tell whether the portion is being fed, or will not be."""
        return not self._portions or self._feeding is None or self._feeding.done()

    def _wait_for(self, work: Coroutine[Any, Any, None], waits: Waits, situation: WaitSituation) -> None:
        if not self._mailbox.is_open:
            work.close()  # the loop may be gone
            return
        future = self._begin(work)
        self._until(future.done, waits, situation)
        future.result()

    def _begin(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        future = self._thread.begin(work)
        future.add_done_callback(lambda _: self._moved.set())
        return future

    def _until(self, is_over: Callable[[], bool], waits: Waits, situation: WaitSituation) -> None:
        self._moved = threading.Event()  # what happens before this line, `is_over` tells
        waits.until(is_over, self._moved, lambda: situation)

    # Called on the thread of the loop.

    def _taken(self) -> Iterator[Iterable[Element]]:
        while self._portions:
            portion = self._portions.popleft()
            self._moved.set()
            yield portion

    def _fed(self, feeding: Future[None]) -> None:
        error = feeding.exception()
        if error is not None:  # the reading thread may wait for rows, and learn of it too late
            self._report(as_exception(error))

    async def _finish(self, feeding: Future[None] | None) -> None:
        if feeding is not None:
            await asyncio.wrap_future(feeding)
        await self.operator.finish()
        self.flush()
        self._put(Mail(self._end))

    def _tick(self) -> None:
        # While mail waits, the thread of the task needs no empty list to wake up.
        if (self._outputs.values or not self._mailbox.has_mail()) and not self.flush():
            return
        self._thread.loop.call_later(FLUSH_SECONDS, self._tick)

    def flush(self) -> bool:
        """Send the gathered outputs to the thread of the task; returns False if it accepts no more."""
        outputs = self._outputs.take()
        return self._put(Mail(lambda: self._arrived.append(outputs)))

    # Called on any thread.

    def _report(self, error: Exception) -> None:
        """Have the thread of the task raise an error before it does anything else."""

        def fail() -> None:
            raise error

        self._put(Mail(fail, urgent=True))

    def _put(self, mail: Mail) -> bool:
        return self._mailbox.put(mail)


class _Gathered(ValueOutput):
    """Outputs on their way out of the loop. Only the thread of the loop may use it."""

    def __init__(self, thread: OperatorThread, at_once: int) -> None:
        self.values: list[Any] = []
        self._thread = thread
        self._at_once = at_once

    def extend(self, values: Iterable[Any], /) -> None:
        self.values += values
        while len(self.values) >= self._at_once:
            self._thread.flush()

    def take(self) -> list[Any]:
        taken, self.values = self.values[: self._at_once], self.values[self._at_once :]
        return taken
