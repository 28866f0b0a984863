"""Keeps one subtask's operator over many epochs, and answers the messages of feeders and of the driver.

H1: the newest manifest is the only truth. A host is a guess about the future: all that counts of it is the parts that
it writes, and it may vanish at any moment.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from async_op.clock import Clock, LoopClock
from async_op.elements import Element, Watermark
from async_op.errors import OperatorClosed, as_exception
from async_op.hosting import messages as say
from async_op.hosting.announcements import Announcements
from async_op.hosting.blueprint import Blueprint, CutPart
from async_op.hosting.counters import since
from async_op.hosting.gate import Gate
from async_op.hosting.lease import Lease
from async_op.hosting.line import Line
from async_op.hosting.outbox import Outbox
from async_op.hosting.reserve import Reserve
from async_op.hosting.residence import Residence

_log = logging.getLogger(__package__)

_LINE_MAX = 1024
"""The feeder waits while more elements than this have no room in the operator."""

_SETTLE_SECONDS = 1.0
"""How often a host that waits for calls looks whether it is to wait any longer."""


@dataclass(slots=True)
class _Session:
    """An epoch that is being fed."""

    feeder: Hashable
    job: str
    decode: Callable[[Any], Iterable[Element]]
    barrier_timeout: float | None
    is_bounded: bool
    until: float | None
    heard_at: float


class Host:
    """Keeps one operator. Only the thread of the event loop may call it, with one message of a feeder at a time.

    Parameters
    ----------
    blueprint : Blueprint
        Makes the operator.
    residence : Residence
        Which subtask the host is for.
    clock : Clock, optional
        The host's source of time; the event loop's by default. The operator has the clock that the blueprint gives it.

    Attributes
    ----------
    ended : asyncio.Event
        Set when the host must be closed: it was told to end, is to be replaced, or its lease has run out.
    is_between_epochs : bool
        Whether no feeder feeds it; also true while its part is being written.
    """

    def __init__(self, blueprint: Blueprint, residence: Residence, clock: Clock | None = None) -> None:
        self._blueprint = blueprint
        self._residence = residence
        self._clock: Clock = clock or LoopClock(asyncio.get_running_loop())
        self._gate = Gate(residence.generation, residence.manifest_id)
        self._outbox = Outbox(blueprint.pack, self._left)
        self._operator = blueprint.operator(residence.subtask_index, self._outbox)
        self._announcements = Announcements(self._operator.snapshot_complete, self._fail)
        self._reserve = Reserve(self._operator.capacity, residence.reserve_max, residence.reserve_bytes_max)
        self._line: Line | None = None
        self._session: _Session | None = None
        self.is_between_epochs = True
        self._is_over = False
        self._final_version: int | None = None
        self._failure: BaseException | None = None
        self._counted: dict[str, Any] = {}
        self._processor_seconds = time.process_time()
        self._overtime_seconds = 0.0
        self.ended = asyncio.Event()
        self._opened = asyncio.Event()
        self._lease = Lease(residence.lease_seconds, self._clock, self.ended.set)

    async def open(self) -> None:
        """Open the operator. If that fails, the next hello or poll is answered with the error (H8)."""
        self._operator.allow(self._residence.allowance, may_wait=True)
        try:
            await self._operator.open(self._residence.restore, preload=self._residence.is_resident)
            self._line = Line(self._operator, self._clock, self._reserve, self._fail)
        except BaseException as error:  # noqa: BLE001 - kept for the next feeder
            self._failure = as_exception(error)
        finally:
            self._opened.set()

    async def close(self) -> None:
        """Give up all calls under way, and close the operator with its function."""
        self._lease.end()
        self.ended.set()
        self._stop()
        await self._announcements.finish()
        try:
            await self._operator.close()
        except Exception:  # noqa: BLE001 - told in the log
            # Nothing depends on it any more, and it must not hide the error that has ended the epoch.
            _log.exception("the function failed to close")

    def fail(self, error: BaseException) -> None:
        """Keep an error that was raised outside the operator, and answer feeders with it (H8)."""
        self._fail(error)
        if self._line is not None:
            self._line.end(error)

    async def answer(self, feeder: Hashable, message: say.Message) -> say.Reply:
        """Carry out a message and return the reply.

        Parameters
        ----------
        feeder : hashable
            The connection that the message came through.
        message : Message
            The driver's messages may come through any connection; those of an epoch only through that of its hello.
        """
        self.heard(feeder)
        try:
            return await self._answer(feeder, message)
        except Exception as error:  # noqa: BLE001 - sent to the feeder, which raises it
            return say.Failed(self._found_failure() or error)

    def heard(self, feeder: Hashable) -> None:
        """Note that a feeder has shown a sign of life, and so the driver whose task it is."""
        is_fed = self._session is not None and self._session.feeder == feeder
        # The driver learns of a new host when its epoch has ended: until then, only the feeder can renew the lease.
        if (is_fed or not self._opened.is_set()) and not self.ended.is_set():
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
                await self._opened.wait()
                return self._hello(feeder, message)
            case say.Poll():
                return self._status()
            case say.Statistics():
                await self._opened.wait()
                return say.Counters(self._operator.statistics())
            case say.Renew() | say.Committed() | say.Stop() | say.Conclude():
                return self._obey(message)
        session = self._session
        if session is None or session.feeder != feeder:
            return say.Refused("stale")
        line = self._usable_line()
        match message:
            case say.Feed():
                return await self._feed(session, line, message.rows)
            case say.FeedWatermark():
                await self._feed_watermark(session, line, Watermark(message.timestamp))
                return say.Done()
            case say.Settle():
                return say.Settled(await self._settle(session, line, message))
            case say.Take():
                return say.Outputs(self._outbox.take())
            case say.Cut():
                return await self._cut(session, line, message)

    # Claims, and orders of the driver.

    def _hello(self, feeder: Hashable, hello: say.Hello) -> say.Reply:
        refused = self._gate.judge(hello, is_being_fed=self._is_being_fed(feeder, hello.job))
        if refused == "replace":
            self.ended.set()
        if refused is not None:
            return say.Refused(refused)
        # H8: raises a failure between epochs; a fresh host would hide it.
        line = self._usable_line()
        self._gate.soil()
        self._announcements.committed(hello.manifest.cut_id)
        # The driver has just sent this task, so it is alive; it may have no other way to reach this machine.
        self._lease.renew()
        now = self._clock.time()
        timeout = hello.barrier_timeout
        is_bounded = hello.is_strict or self._residence.is_resident
        until = now + timeout if is_bounded and timeout is not None else None
        # In its task an operator ends with the epoch, so no later one could bring what its calls wait for.
        self._operator.allow(hello.allowance, may_wait=is_bounded)
        decoder = self._blueprint.decoder(hello.epoch)
        self._session = _Session(feeder, hello.job, decoder, timeout, is_bounded, until, now)
        line.conclude(False)
        self.is_between_epochs = False
        self._hold()
        return say.Done()

    def _is_being_fed(self, feeder: Hashable, job: str) -> bool:
        """Tell whether another attempt of the same job is at work; what is left of an earlier job counts no more."""
        session = self._session
        if session is None or session.feeder == feeder or session.job != job:
            return False
        return self._clock.time() - session.heard_at < self._residence.patience_seconds

    def _obey(self, message: say.Renew | say.Committed | say.Stop | say.Conclude) -> say.Reply:
        if message.generation != self._gate.generation:
            return say.Refused("foreign")
        if isinstance(message, say.Conclude):
            return self._conclude()
        self._announcements.committed(message.cut_id)
        match message:
            case say.Renew():
                self._lease.renew()
            case say.Committed():
                if message.version == self._final_version:
                    self.ended.set()
            case say.Stop():
                if not self._gate.may_stop(message.fence):
                    return say.Refused("stale")
                self.ended.set()
        return say.Done()

    def _conclude(self) -> say.Reply:
        if self._session is not None and self._line is not None:
            self._session.until = self._clock.time()
            self._line.conclude(True)
        return say.Done()

    # An epoch.

    async def _feed(self, session: _Session, line: Line, rows: Any) -> say.Reply:
        line.put(session.decode(rows), self._blueprint.bytes_of(rows))
        await self._wait_in_line(line, _LINE_MAX, session)
        return say.Done()

    async def _wait_in_line(self, line: Line, length: int, session: _Session) -> None:
        """Wait until no more elements wait for room; but not for calls that wait for the next epoch themselves."""
        while True:
            now = self._clock.time()
            await line.wait_until_at_most(length, min(session.until or math.inf, now + _SETTLE_SECONDS))
            is_over = session.until is not None and self._clock.time() >= session.until
            if len(line) <= length or is_over or self._operator.waits_for_loans:
                return

    async def _feed_watermark(self, session: _Session, line: Line, watermark: Watermark) -> None:
        is_first = not line and self._operator.statistics().in_flight == 0
        line.put_watermark(watermark)
        if is_first:
            # Only the timers that it makes due hold it up, and they must fire before elements of the same keys come in.
            await self._wait_for_calls(line, session)

    async def _settle(self, session: _Session, line: Line, settle: say.Settle) -> bool:
        if not session.is_bounded:
            await line.wait_until_at_most(0, None)
            started = self._clock.time()
            has_waited = await self._operator.settle_restored()
            now = self._clock.time()
            self._overtime_seconds += now - started if has_waited else 0.0
            session.until = None if session.barrier_timeout is None else now + session.barrier_timeout
        if settle.for_room:
            await line.wait_for_room(session.until)
            return False
        return await self._wait_for_calls(line, session)

    async def _wait_for_calls(self, line: Line, session: _Session) -> bool:
        while True:
            await self._wait_in_line(line, 0, session)
            until = math.inf if session.until is None else session.until
            if await self._operator.settle(max(0.0, min(_SETTLE_SECONDS, until - self._clock.time()))) and not line:
                return True
            if session.until is not None and self._clock.time() >= session.until:
                return False
            if self._operator.waits_for_loans:
                return False

    async def _cut(self, session: _Session, line: Line, cut: say.Cut) -> say.Reply:
        """Take everything in one step of the loop: calls go on at once, and their results belong to the next part."""
        snapshot = await self._operator.snapshot(line)
        left = self._outbox.outputs + self._outbox.watermarks
        assert left == snapshot.emitted, "an output is in the queue or in the part, never in both"
        timers = self._operator.next_timer(), self._operator.next_timer(event_time=True)
        line.note_cut()
        part = CutPart(cut.version, snapshot.cut_id, snapshot, self._outbox.take(), *timers)
        metrics, holdings = self._metrics(snapshot.in_flight, line), self._operator.holdings(since_last=True)
        self.is_between_epochs = True
        if cut.final:
            self._final_version = cut.version
        if cut.final or not self._residence.is_resident:  # in its task an operator ends with its cut
            self._stop()
        try:
            # The session lasts until the part is written: no other feeder is let in before.
            handle = await self._blueprint.write(part, cut.target)
            if not cut.final:
                self._gate.clean(part.cut_id)
            self._announcements.wrote(part.cut_id, part.version)
        finally:
            self._leave_session()
        return say.Part(session.job, self._residence.subtask_index, cut.version, handle, metrics, holdings)

    def _metrics(self, in_flight: tuple[object, ...], line: Line) -> dict[str, Any]:
        now = self._operator.counted() | {
            "outputs": self._outbox.outputs,
            "processor_seconds": time.process_time() - self._processor_seconds,
            "overtime_seconds": self._overtime_seconds,
            "queued_seconds": line.queued_seconds(),
        }
        metrics, self._counted = since(self._counted, now), now
        return metrics | {
            "in_flight": len(in_flight),
            "waiting": len(line),
            "has_room": line.has_room,
            "oldest_call_seconds": line.ages.of(self._operator.oldest, self._clock.time()) or 0.0,
            "is_loaded": self._operator.is_loaded,
        }

    # Between epochs.

    def _leave_session(self) -> None:
        self._session = None
        self.is_between_epochs = True
        self._hold()

    def _left(self) -> None:
        if self.is_between_epochs and len(self._outbox) >= self._residence.outputs_max:
            self._hold()

    def _hold(self) -> None:
        """Between epochs, take in nothing and fire no timers while there are too many outputs; otherwise go on.

        Timers may register timers, so nothing else bounds the outputs that a host keeps.
        """
        if self._line is None or self._is_over:
            return
        is_held = self.is_between_epochs and len(self._outbox) >= self._residence.outputs_max
        self._line.hold(is_held)
        if is_held:
            self._operator.hold()
        else:
            self._operator.release()

    def _status(self) -> say.Status:
        operator, line = self._operator, self._line
        if line is None:
            return say.Status(failure=self._found_failure())
        return say.Status(
            ready=len(self._outbox),
            in_flight=operator.statistics().in_flight,
            waiting=len(line),
            has_room=line.has_room,
            oldest_call_seconds=line.ages.of(operator.oldest, self._clock.time()),
            next_timer=operator.next_timer(),
            next_event_timer=operator.next_timer(event_time=True),
            is_loaded=operator.is_loaded,
            failure=self._found_failure(),
            holdings=operator.holdings(),
        )

    # Failures, and the end.

    def _usable_line(self) -> Line:
        failure = self._found_failure()
        if failure is not None:
            raise failure
        assert self._line is not None, "an operator that was opened has a line"
        return self._line

    def _found_failure(self) -> BaseException | None:
        return self._failure or (None if self._is_over else self._operator.failure)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def _stop(self) -> None:
        """Begin no more calls; the function is closed when the host is."""
        self._is_over = True
        if self._line is not None:
            self._line.end(OperatorClosed("closed"))
            self._operator.stop()
