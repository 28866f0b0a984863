"""`FedSubtask`: the subtask of a host, which is fed epoch by epoch and keeps its outputs until it is cut."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from async_op.clock import Clock
from async_op.elements import Element, Watermark
from async_op.errors import OperatorClosed, as_exception
from async_op.statistics import Stopwatch
from async_op.subtask.inbox import INBOX_MAX, ReservedInbox
from async_op.subtask.operator import ResidentOperator
from async_op.subtask.outbox import Outbox
from async_op.subtask.subtask import Subtask
from snapshots import SubtaskRestore, SubtaskSnapshot

_log = logging.getLogger(__package__)

_LOOK_SECONDS = 1.0
"""How often a wait looks whether it is in vain: time is a matter of the caller, loans and `hurry` are not awaited."""

Goal: TypeAlias = Literal["restored", "room", "everything"]
"""What `FedSubtask.settle` waits for."""


@dataclass(frozen=True, slots=True)
class CutPart:
    """What a cut takes in one step of the event loop.

    Attributes
    ----------
    version : int
        The version that it belongs to once it is committed.
    cut_id : str
        The id of the cut, which the manifest will name.
    snapshot : SubtaskSnapshot
        The state and the elements in flight.
    runs : list
        The outputs since the last cut, in packed runs.
    next_timer, next_event_timer : int or None
        When the operator's first timers are to fire, by the clock and by the watermark; None without timers.
    """

    version: int
    cut_id: str
    snapshot: SubtaskSnapshot
    runs: list[Any]
    next_timer: int | None = None
    next_event_timer: int | None = None


class FedSubtask(Subtask[ReservedInbox]):
    """A subtask that is fed, settled and cut, epoch after epoch.

    Calls do not notice epochs: they go on through cuts, and without a feeder. Only the thread of the event loop may
    call it.

    Parameters
    ----------
    operator : ResidentOperator
        The operator, not opened yet. Its outputs go into the outbox.
    inbox : ReservedInbox
        What waits for room.
    outbox : Outbox
        What has left since the last cut.
    clock : Clock
        The source of time.
    """

    def __init__(self, operator: ResidentOperator, inbox: ReservedInbox, outbox: Outbox, clock: Clock) -> None:
        super().__init__(operator, inbox, outbox, clock)
        self.outbox = outbox
        self._announcements = _Announcements(self)
        self._pump: asyncio.Task[None] | None = None
        self._is_stopped = self._is_hurried = False
        self._failure: BaseException | None = None
        self._processor_seconds = time.process_time()
        self._overtime_seconds = 0.0
        self._held = Stopwatch(clock)

    @property
    def failure(self) -> BaseException | None:
        """The error that has failed it, kept for the next request (H8); None while all is well, and after `stop`."""
        return self._failure or (self.operator.failure if self.is_open and not self._is_stopped else None)

    def check(self) -> None:
        """Raise the error that has failed it."""
        if (failure := self.failure) is not None:
            raise failure

    async def open(self, restore: SubtaskRestore | None = None, *, preload: bool = True) -> None:
        """Open the operator with its share of a snapshot, and begin to move elements into it."""
        await super().open(restore, preload=preload)
        self._pump = asyncio.get_running_loop().create_task(self._move())

    def stop(self) -> None:
        """Begin no more calls, and let no output leave; the function is closed with `close`."""
        self._is_stopped = True
        self._end_inbox(OperatorClosed("closed"))
        if self.is_open:
            self.operator.stop()

    async def close(self) -> None:
        """Give up all calls under way, and close the operator with its function."""
        self.stop()
        await self._announcements.finish()
        await self.operator.close()

    def fail(self, error: BaseException) -> None:
        """Keep an error, the first one only: nothing is taken in any more, and each waiting caller gets it."""
        self._failure = self._failure or error
        self._end_inbox(error)

    # An epoch: it begins, is fed, waits, and is cut.

    def begin_epoch(self) -> None:
        """Let any number of outputs leave until the cut."""
        self._is_hurried = False
        self.outbox.bound(False)

    def end_epoch(self) -> None:
        """Keep a bounded number of outputs until the next epoch begins; after a cut, or without one if it is lost."""
        self.outbox.bound(True)

    def hurry(self) -> None:
        """Let no caller wait much longer in this epoch, for calls or for room."""
        self._is_hurried = True

    async def feed(self, elements: Iterable[Element], rows_bytes: int, until: float | None) -> None:
        """Put in the elements of rows, and wait until no more than `INBOX_MAX` wait.

        It waits until the clock shows `until` at most, and not for calls that wait for the next epoch themselves.
        """
        self.inbox.put(elements, rows_bytes)
        await self._wait_for_inbox(INBOX_MAX, until)

    async def feed_watermark(self, timestamp: int, until: float | None) -> None:
        """Put in a watermark. If nothing is before it, wait until the timers that it makes due have fired."""
        is_first = self.is_empty
        self.inbox.put_watermark(Watermark(timestamp))
        if is_first:  # the timers must fire before elements of the same keys come in
            await self.settle(until, "everything")

    async def settle(self, until: float | None, what: Goal) -> None:
        """Wait for a goal, or until the clock shows `until` (None: without limit), or until `hurry`.

        ============ ====================================================== =============================
        `what`       waits until                                            returns early, too, once
        ============ ====================================================== =============================
        "restored"   all that came has room, and the calls of elements      (`until` does not matter)
                     that were restored have returned
        "room"       the inbox has room for the rows of another epoch;
                     for no call
        "everything" nothing waits and nothing is in flight                 all calls wait for the loans
                                                                            of the next epoch
        ============ ====================================================== =============================
        """
        match what:
            case "restored":
                await self._settle_restored()
            case "room":
                while not self.inbox.has_room and not self._is_over(until):
                    await self.inbox.wait_until_at_most(self.inbox.reserve.size, self._patience(until))
            case "everything":
                await self._settle_everything(until)

    def part(self, version: int) -> CutPart:
        """Take everything in one step of the loop: calls go on at once, and their results belong to the next part."""
        operator, outbox = self.operator, self.outbox
        snapshot = self.cut()
        left = outbox.outputs + outbox.watermarks
        assert left == snapshot.emitted, "an output is in the queue or in the part, never in both"
        self.inbox.note_cut()
        outbox.is_bounded = True  # what leaves while the part is written waits for the next epoch
        timers = operator.next_timer(), operator.next_timer(event_time=True)
        return CutPart(version, snapshot.cut_id, snapshot, outbox.take(), *timers)

    def wrote(self, part: CutPart) -> None:
        """Note that a part was written; `committed` tells whether it counts."""
        self._announcements.wrote(part.cut_id, part.version)

    def committed(self, cut_id: str | None) -> None:
        """Tell the function which cut of this subtask the newest manifest names; None if none."""
        self._announcements.committed(cut_id)

    def metrics(self, part: CutPart) -> dict[str, Any]:
        """Return what was counted since the last call, and how it stands right after a cut."""
        now = self.operator.counted() | {
            "outputs": self.outbox.outputs,
            "processor_seconds": time.process_time() - self._processor_seconds,
            "overtime_seconds": self._overtime_seconds,
            "held_seconds": self._held.seconds,
            "queued_seconds": self.inbox.queued_seconds(),
        }
        return self._since_last(now) | {
            "in_flight": len(part.snapshot.in_flight),
            "waiting": len(self.inbox),
            "has_room": self.inbox.has_room,
            "oldest_call_seconds": self.oldest_call_seconds,
            "is_loaded": self.operator.is_loaded,
        }

    # Waiting.

    def _is_over(self, until: float | None) -> bool:
        return self._is_hurried or (until is not None and self._clock.time() >= until)

    def _patience(self, until: float | None) -> float:
        """Return for how long to wait before looking again."""
        if self._is_hurried:
            return 0.0
        return _LOOK_SECONDS if until is None else max(0.0, min(_LOOK_SECONDS, until - self._clock.time()))

    async def _wait_for_inbox(self, length: int, until: float | None) -> None:
        while len(self.inbox) > length and not (self._is_over(until) or self.operator.waits_for_loans):
            await self.inbox.wait_until_at_most(length, self._patience(until))

    async def _settle_restored(self) -> None:
        await self._wait_for_inbox(0, None)
        started = self._clock.time()
        if await self.operator.settle_restored():
            self._overtime_seconds += self._clock.time() - started

    async def _settle_everything(self, until: float | None) -> None:
        while True:
            await self._wait_for_inbox(0, until)
            is_empty = await self.operator.settle(self._patience(until)) and not self.inbox
            if is_empty or self._is_over(until) or self.operator.waits_for_loans:
                return

    # From the inbox into the operator.

    def adjust(self) -> None:
        """Take in elements and fire timers while the outbox has room, and note for how long it has none."""
        was_held = self.is_held
        super().adjust()
        if self.is_held and not was_held:
            self._held.start()
            _log.debug(
                "the outbox is full, with %d outputs: nothing is taken in before the next epoch", len(self.outbox)
            )
        elif was_held and not self.is_held:
            self._held.stop()
            _log.debug("the outbox has room again")

    async def _move(self) -> None:
        try:
            await self.pump()
        except Exception as error:  # noqa: BLE001 - kept for the next request
            self.fail(error)

    def _end_inbox(self, reason: BaseException) -> None:
        if self._pump is not None:
            self._pump.cancel()
        self.inbox.end(reason)


class _Announcements:
    """Tells the function of a subtask which of its cuts were committed, with one `snapshot_complete` at a time.

    A host learns only of the newest manifest, and the newest version stands for those before it. So while one call is
    under way, only the newest version waits. An error of a call fails the subtask.
    """

    def __init__(self, subtask: FedSubtask) -> None:
        self._subtask = subtask
        self._written: tuple[str, int] | None = None
        self._due: tuple[str, int] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._is_closed = False

    def wrote(self, cut_id: str, version: int) -> None:
        """Note that a part was written; only a manifest that names its cut shows that it was committed."""
        self._written = cut_id, version

    def committed(self, cut_id: str | None) -> None:
        """Note which cut the newest manifest names; None if none of this host."""
        if self._written is None or self._written[0] != cut_id:
            return
        self._due, self._written = self._written, None
        if self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._run(), name="keygroups snapshot complete")

    async def finish(self) -> None:
        """Wait for the calls that are due; what they raise from now on is told in the log."""
        self._is_closed = True
        if self._telling is not None:
            await asyncio.wait([self._telling])

    async def _run(self) -> None:
        try:
            while self._due is not None:
                (cut_id, version), self._due = self._due, None
                await self._subtask.operator.snapshot_complete(version, cut_id)
        except BaseException as error:  # noqa: BLE001 - the next feeder raises it, or the log tells
            if self._is_closed:
                _log.exception("the function failed in snapshot_complete")
            self._subtask.fail(as_exception(error))
        finally:
            self._telling = None
