"""A host: keeps one subtask over many epochs, and answers the messages of feeders and of the driver.

H1: the newest manifest is the only truth. A host is a guess about the future: all that counts of it is the parts that
it writes, and it may vanish at any moment.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from async_op.clock import Clock, LoopClock
from async_op.elements import Element, Record, Watermark
from async_op.errors import as_exception
from async_op.hosting import messages as say
from async_op.hosting.fed_subtask import CutPart, FedSubtask
from async_op.hosting.fencing import Fencing
from async_op.hosting.host_settings import HostSettings
from async_op.hosting.lease import Lease
from async_op.subtask.inbox import Reserve, ReservedInbox
from async_op.subtask.operator import ResidentOperator
from async_op.subtask.outbox import Outbox
from async_op.threads.watchdog import blocking_functions

_log = logging.getLogger(__package__)


UNDER_WAY_MAX = 16
"""How many messages are read before they are answered; a feeder sends fewer before it waits for a reply."""


class OperatorFactory(Protocol):
    """Makes the operators of one generation, decodes their input, and writes their parts.

    The driver pickles it once for each generation.
    """

    def operator(self, subtask_index: int, output: Callable[[Record | Watermark], object]) -> ResidentOperator:
        """Return the operator of a subtask, not opened yet; it calls `output` with what leaves it."""
        ...

    def decoder(self, epoch: Any) -> Callable[[Any], Iterable[Element]]:
        """Return what makes elements of rows in one epoch: called once for each feed, in their order."""
        ...

    def bytes_of(self, rows: Any) -> int:
        """Return the size of rows as they are fed."""
        ...

    def pack(self, outputs: list[Any]) -> Any:
        """Return a run of outputs as one object."""
        ...

    async def write(self, part: CutPart, target: Any) -> Any:
        """Write a part while calls go on, never a manifest (H4); returns the handle by which the driver commits it."""
        ...


@dataclass(slots=True)
class _Session:
    """An epoch that is being fed; it waits until the host's clock shows `until` (None: not known yet, or never)."""

    feeder: Hashable
    job: str
    decode: Callable[[Any], Iterable[Element]]
    end: say.EpochEnd
    waits_for_restored: bool
    until: float | None
    heard_at: float


class Host:
    """Keeps one subtask. Only the thread of the event loop may call it, with one message of a feeder at a time.

    Parameters
    ----------
    factory : OperatorFactory
        Makes the operator.
    settings : HostSettings
        Which subtask the host is for.
    clock : Clock, optional
        The host's source of time; the event loop's by default. The operator has the clock that the factory gives it.

    Attributes
    ----------
    subtask : FedSubtask
        The subtask.
    ended : asyncio.Event
        Set when the host must be closed: it was told to end, is to be replaced, or its lease has run out.
    opened : asyncio.Event
        Set when the function's `open` has returned or failed. The lease begins then: `open` may take its time.
    """

    def __init__(self, factory: OperatorFactory, settings: HostSettings, clock: Clock | None = None) -> None:
        self._factory = factory
        self._settings = settings
        self._clock: Clock = LoopClock(asyncio.get_running_loop()) if clock is None else clock
        self._fencing = Fencing(settings.generation, settings.manifest_id)
        outbox = Outbox(factory.pack, settings.outputs_max)
        operator = factory.operator(settings.subtask_index, outbox)
        reserve = Reserve(operator.capacity, settings.reserve_max, settings.reserve_bytes_max)
        self.subtask = FedSubtask(operator, ReservedInbox(self._clock, reserve), outbox, self._clock)
        self._session: _Session | None = None
        self._final_version: int | None = None
        self._told: BaseException | None = None
        self.ended = asyncio.Event()
        self.opened = asyncio.Event()
        self._lease = Lease(settings.lease_seconds, self._clock, self.ended)

    async def open(self) -> None:
        """Open the operator. If that fails, the next hello or poll is answered with the error (H8)."""
        self.subtask.operator.allow(self._settings.allowance, may_wait=True)
        try:
            await self.subtask.open(self._settings.restore, preload=self._settings.is_resident)
        except BaseException as error:  # noqa: BLE001 - kept for the next feeder
            failed_open = self.subtask.operator.failed_open
            self.subtask.fail(as_exception(error) if failed_open is None else failed_open)
        finally:
            self.opened.set()
            self._lease.renew()

    async def close(self) -> None:
        """Give up all calls under way, and close the operator with its function."""
        self._lease.end()
        self.ended.set()
        try:
            await self.subtask.close()
        except Exception:  # noqa: BLE001 - told in the log
            # Nothing depends on it any more, and it must not hide the error that has ended the epoch.
            _log.exception("the function failed to close")

    async def answer(self, feeder: Hashable, message: say.Message) -> say.Reply:
        """Carry out a message and return the reply.

        Parameters
        ----------
        feeder : hashable
            The connection that the message came through.
        message : Message
            The driver's messages may come through any connection; an epoch's only through its hello's.
        """
        self.heard(feeder)
        try:
            return await self._answer(feeder, message)
        except Exception as error:  # noqa: BLE001 - sent to the feeder, which raises it
            return say.Failed(self._logged(self.subtask.failure or error))

    def _logged(self, failure: BaseException) -> BaseException:
        """Log a failure with its traceback, once: later requests get the same one."""
        if failure is not self._told:
            self._told = failure
            _log.error("subtask %d has failed", self._settings.subtask_index, exc_info=failure)
        return failure

    def heard(self, feeder: Hashable) -> None:
        """Note that a feeder has shown a sign of life, and so the driver whose task it is."""
        is_fed = self._session is not None and self._session.feeder == feeder
        # The driver learns of a new host when its epoch has ended: until then, only the feeder can renew the lease.
        if is_fed and not self.ended.is_set():
            self._lease.renew()
        if self._session is not None and is_fed:
            self._session.heard_at = self._clock.time()

    def gone(self, feeder: Hashable) -> None:
        """Note that a feeder has hung up. If it had not cut, the host stays dirty: no manifest names what it holds."""
        if self._session is not None and self._session.feeder == feeder:
            self._leave_session()

    async def _answer(self, feeder: Hashable, message: say.Message) -> say.Reply:
        match message:
            case say.Hello():
                await self.opened.wait()
                return self._hello(feeder, message)
            case say.Poll():
                return self._status()
            case say.Renew() | say.Committed() | say.Stop() | say.Conclude():
                return self._obey(message)
        session = self._session
        if session is None or session.feeder != feeder:
            return say.Refused("stale")
        self.subtask.check()
        match message:
            case say.Feed(rows):
                await self.subtask.feed(session.decode(rows), self._factory.bytes_of(rows), session.until)
            case say.FeedWatermark(timestamp):
                await self.subtask.feed_watermark(timestamp, session.until)
            case say.Settle():
                await self._settle(session)
            case say.Cut():
                return await self._cut(session, message)
        return say.Done()

    # Claims, and orders of the driver.

    def _hello(self, feeder: Hashable, hello: say.Hello) -> say.Reply:
        refused = self._fencing.judge(
            hello.generation, hello.fence, hello.manifest, is_being_fed=self._is_being_fed(feeder, hello.job)
        )
        if refused == "replace":
            self.ended.set()
        if refused is not None:
            return say.Refused(refused)
        # H8: raises a failure between epochs; a fresh host would hide it.
        self.subtask.check()
        self._fencing.mark_dirty()
        self.subtask.committed(hello.manifest.cut_id)
        # The driver has just sent this task, so it is alive; it may have no other way to reach this machine.
        self._lease.renew()
        waits_for_restored = hello.end.waits_for != "calls in time" and not self._settings.is_resident
        # In its task an operator ends with the epoch, so no later one could bring what its calls wait for.
        self.subtask.operator.allow(hello.allowance, may_wait=not waits_for_restored)
        until = None if waits_for_restored else self._until(hello.end)
        decode = self._factory.decoder(hello.epoch)
        self._session = _Session(
            feeder, hello.job, decode, hello.end, waits_for_restored, until, heard_at=self._clock.time()
        )
        self.subtask.begin_epoch()
        return say.Done()

    def _until(self, end: say.EpochEnd) -> float | None:
        return None if end.barrier_timeout is None else self._clock.time() + end.barrier_timeout

    def _is_being_fed(self, feeder: Hashable, job: str) -> bool:
        """Tell whether another attempt of the same job is at work; what is left of an earlier job counts no more."""
        session = self._session
        if session is None or session.feeder == feeder or session.job != job:
            return False
        return self._clock.time() - session.heard_at < self._settings.patience_seconds

    def _obey(self, message: say.Renew | say.Committed | say.Stop | say.Conclude) -> say.Reply:
        if message.generation != self._fencing.generation:
            return say.Refused("foreign")
        if isinstance(message, say.Conclude):
            self.subtask.hurry()
            return say.Done()
        self.subtask.committed(message.cut_id)
        match message:
            case say.Renew():
                self._lease.renew()
            case say.Committed():
                if message.version == self._final_version:
                    self.ended.set()
            case say.Stop():
                if not self._fencing.may_stop(message.fence):
                    return say.Refused("stale")
                self.ended.set()
        return say.Done()

    # An epoch.

    async def _settle(self, session: _Session) -> None:
        if session.waits_for_restored:
            await self.subtask.settle(None, "restored")
            session.until = self._until(session.end)
        await self.subtask.settle(session.until, "room" if session.end.waits_for == "room" else "everything")

    async def _cut(self, session: _Session, cut: say.Cut) -> say.Reply:
        subtask, is_final = self.subtask, session.end.is_final
        part = subtask.part(cut.version)
        metrics, holdings = subtask.metrics(part), subtask.operator.holdings(since_last=True)
        if is_final:
            self._final_version = cut.version
        if is_final or not self._settings.is_resident:  # in its task an operator ends with its cut
            subtask.stop()
        try:
            # The session lasts until the part is written: no other feeder is let in before.
            handle = await self._factory.write(part, cut.target)
            if not is_final:
                self._fencing.mark_cut(part.cut_id)
            subtask.wrote(part)
        finally:
            self._leave_session()
        index, blocking = self._settings.subtask_index, blocking_functions()
        return say.Part(session.job, index, cut.version, handle, metrics, holdings, blocking)

    def _leave_session(self) -> None:
        self._session = None
        self.subtask.end_epoch()

    def _status(self) -> say.Status:
        subtask = self.subtask
        if not subtask.is_open:
            return say.Status(failure=subtask.failure)
        statistics = subtask.operator.statistics()
        return say.Status(
            ready=len(subtask.outbox),
            in_flight=statistics.in_flight,
            waiting=len(subtask.inbox),
            calls=statistics.calls,
            oldest_call_seconds=subtask.oldest_call_seconds,
            has_room=subtask.inbox.has_room,
            failure=subtask.failure,
            holdings=subtask.operator.holdings(),
            blocking=blocking_functions(),
        )


class Conversation(ABC):
    """Answers a feeder. Only the thread of the event loop may call it.

    Parameters
    ----------
    host : Host
        The host that answers.

    Attributes
    ----------
    answering : asyncio.Task
        Ends by itself only if not even an error can be sent; then the feeder can no longer be answered.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._inbox: asyncio.Queue[Any] = asyncio.Queue(UNDER_WAY_MAX)
        self.answering = asyncio.get_running_loop().create_task(self._answer())

    @abstractmethod
    def reply(self, reply: say.Reply) -> None:
        """Send a reply to the feeder."""

    async def hear(self, message: Any) -> None:
        """Take a message, or the error of one that cannot be read; waits while too many are not answered."""
        await self._inbox.put(message)

    def heard(self) -> None:
        """Note that the feeder has shown a sign of life."""
        self._host.heard(self)

    def end(self) -> None:
        """Stop answering: the feeder has hung up."""
        self.answering.cancel()
        self._host.gone(self)

    async def _answer(self) -> None:
        while True:
            message = await self._inbox.get()
            reply = say.Failed(message) if isinstance(message, Exception) else await self._host.answer(self, message)
            try:
                self.reply(reply)
            except Exception as error:  # noqa: BLE001 - the feeder, which waits for a reply, raises it
                self.reply(say.Failed(error))
