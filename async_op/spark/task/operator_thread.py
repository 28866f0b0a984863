"""An operator on an event loop of its own thread, beside the thread that Spark gets outputs from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

from async_op.elements import Element, Record, Watermark
from async_op.errors import MailboxClosed, as_exception
from async_op.hosting.loop_thread import LoopThread
from async_op.operator.operator import AsyncWaitOperator
from async_op.threads.mailbox import Mail, Mailbox
from async_op.threads.wait_strategies import WaitSituation, WaitStrategies
from async_op.threads.waits import Waits

OUTPUTS_AT_ONCE = 1024
"""How many outputs cross from the loop to the feeding thread together."""

TICK_SECONDS = 0.1
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
        How many outputs cross to the thread of the task together; after `TICK_SECONDS`, fewer do.

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
        self.operator = make_operator(self._keep)
        self._strategies = strategies
        self.waits = Waits(strategies)
        self._outputs_at_once = outputs_at_once
        self._outputs: list[Any] = []
        self._arrived: list[list[Any]] = []
        self._mailbox = Mailbox()
        self._situation = WaitSituation.SOURCE
        self._ended = self._is_reading = False
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

    def run(self, source: Iterator[Iterable[Element]]) -> Iterator[list[Any]]:
        """Feed elements until the source ends, then wait for what is in flight; yields outputs as they come.

        Opens the operator first. While no output comes, it yields an empty list every `TICK_SECONDS`: then the caller
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
            while (batch := self._next_of(source)) is not None:
                self._situation = WaitSituation.BACK_PRESSURE
                self._wait_for(self.operator.process_all(batch), waits, WaitSituation.BACK_PRESSURE)
                self._situation = WaitSituation.SOURCE
            if self._mailbox.is_open:
                self._situation = WaitSituation.CONSUME
                self._wait_for(self._finish(), waits, WaitSituation.CONSUME)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the task
            self._report(as_exception(error))

    def _next_of(self, source: Iterator[Iterable[Element]]) -> Iterable[Element] | None:
        self._is_reading = True
        try:
            return next(source, None) if self._mailbox.is_open else None
        finally:
            self._is_reading = False

    def _wait_for(self, work: Coroutine[Any, Any, None], waits: Waits, situation: WaitSituation) -> None:
        if not self._mailbox.is_open:
            work.close()  # the loop may be gone
            return
        done = threading.Event()
        future = self._thread.begin(work)
        future.add_done_callback(lambda _: done.set())
        waits.until(done.is_set, done, lambda: situation)
        future.result()

    # Called on the thread of the loop.

    async def _finish(self) -> None:
        await self.operator.finish()
        self._flush()
        self._put(Mail(self._end))

    def _keep(self, element: Record | Watermark) -> None:
        assert isinstance(element, Record), "no watermark is fed"
        self._outputs.append(element.value)
        if len(self._outputs) >= self._outputs_at_once:
            self._flush()

    def _tick(self) -> None:
        # While mail waits, the thread of the task needs no empty list to wake up.
        if (self._outputs or not self._mailbox.has_mail()) and not self._flush():
            return
        self._thread.loop.call_later(TICK_SECONDS, self._tick)

    def _flush(self) -> bool:
        """Send the gathered outputs to the thread of the task; returns False if it accepts no more."""
        outputs, self._outputs = self._outputs, []
        return self._put(Mail(lambda: self._arrived.append(outputs)))

    # Called on any thread.

    def _report(self, error: Exception) -> None:
        """Have the thread of the task raise an error before it does anything else."""

        def fail() -> None:
            raise error

        self._put(Mail(fail, urgent=True))

    def _put(self, mail: Mail) -> bool:
        try:
            self._mailbox.put(mail)
        except MailboxClosed:
            return False
        return True
