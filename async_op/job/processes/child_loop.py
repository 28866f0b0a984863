"""The side of a child: its section of the chain on one event loop, and what the parent may ask of it."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import time
import traceback
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from async_op.elements import Element
from async_op.errors import as_exception
from async_op.job.chain import Chain, Cuts, Plan, Section
from async_op.job.channels import Inlet
from async_op.job.committing import Contribution, Part, Written, write_parts
from async_op.job.counters import Counts, counts_of
from async_op.job.errors import ChildFailed
from async_op.job.outputs import Collector, EpochOutputs
from async_op.job.processes import messages
from async_op.job.processes.remote_channels import CreditedInlet, RemoteInlet, Sender
from async_op.job.step import Step
from async_op.job.task_group import TaskGroup
from async_op.job.waiting import ended
from async_op.operator.counters import Counted, milliseconds
from async_op.resilience.lending import Allowance, Holdings
from async_op.statistics import ResilienceStatistics
from async_op.threads.own_thread import on_own_thread
from keygroups.safe_text import add_note, described, printable
from snapshots import PendingSnapshot, Snapshot

SENT_BYTES_MAX = 16 * 2**20
"""Outputs of a child in one epoch that it sends to the parent, as Arrow data; more are read back from storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """What a child is told when it starts.

    Attributes
    ----------
    number, count : int
        Which child it is, counted from 1, and how many there are.
    steps : mapping of str to Step
        The steps of the job.
    hash, max_parallelism, lineage, are_decoded
        As for `Plan`.
    """

    number: int
    count: int
    steps: Mapping[str, Step]
    hash: str
    max_parallelism: int
    lineage: str
    are_decoded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStatus:
    """How a child stands.

    Attributes
    ----------
    in_flight : mapping of str to int
        For each step, the elements in its operators and on their way into them.
    received : list of int
        For each step, the elements that have come from other processes.
    outputs, dead_letters : int
        How many have left in this run.
    work : object
        What changes whenever something happens.
    limits : mapping of str to ResilienceStatistics
        Where the limits of steps stand.
    is_full : bool
        Whether the epoch has to end, because it has too many outputs.
    processor_seconds : float
        Processor time of the process.
    oldest_call_seconds : float
        The age of the oldest element without a result.
    """

    in_flight: Mapping[str, int] = field(default_factory=dict)
    received: Sequence[int] = ()
    outputs: int = 0
    dead_letters: int = 0
    work: object = None
    limits: Mapping[str, ResilienceStatistics] = field(default_factory=dict)
    is_full: bool = False
    processor_seconds: float = 0.0
    oldest_call_seconds: float = 0.0


class _CutTaken(NamedTuple):
    parts: list[Part]
    counted: list[Counted]
    outputs: EpochOutputs
    late: dict[tuple[str, int], list[Element]]
    process: Counts


class ChildLoop:
    """What a child does; a `Receiver`. Only the thread of the event loop may call it.

    The methods without an underscore that take part in no protocol of Python are what the parent may ask for.

    Parameters
    ----------
    spec : ChildSpec
        What it is told.
    """

    def __init__(self, spec: ChildSpec) -> None:
        self._spec = spec
        self._names = list(spec.steps)
        self._collector = Collector(spec.count)
        self._collector.on_change(self._notice_full)
        self._plan = Plan.of(
            spec.steps,
            spec.hash,
            spec.max_parallelism,
            spec.lineage,
            self._collector,
            (spec.number - 1, spec.count),
            are_decoded=spec.are_decoded,
        )
        self._link: messages.Link | None = None
        self._sender = Sender(spec.number, lambda _: self._connected)
        self._chain: Chain | None = None
        self._inlets: dict[tuple[int, int], Any] = {}
        self._received: list[int] = []
        self._snapshot: Snapshot | None = None
        self._tasks = TaskGroup()
        self._pumps: list[asyncio.Task[None]] = []
        self._drains: set[asyncio.Task[Any]] = set()
        self._is_over = self._was_full = False
        self._cut_taken: _CutTaken | None = None
        self._processor_milliseconds = 0
        self._end: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def serve(self, link: messages.Link) -> bool:
        """Do what the parent asks for until it wants an end; returns false if the parent was lost."""
        self._link = link
        self._tasks.spawn(self._collector.spill())
        self._report("ready", os.getpid())
        try:
            try:
                return await self._tasks.run(_outcome_of(self._end))
            except Exception as error:  # noqa: BLE001 - the parent raises it, and ends this child
                self.failed(error)
            return await self._end
        finally:
            self._sender.forget()
            await self._tasks.end()

    # What comes through the link.

    def lost(self) -> None:
        """End: the parent has died."""
        if not self._end.done():
            self._end.set_result(False)

    def received(self, kind: int, payload: bytes) -> None:
        """Take what the parent has sent. An error of the link's receiver, as at a cut, would end the link."""
        try:
            if kind == messages.CUT:
                self._cut(is_final=bool(payload))
            elif kind == messages.REQUEST:
                self._serve_request(*messages.loaded(payload))
            else:
                self._take(kind, payload)
        except Exception as error:  # noqa: BLE001 - the parent raises it
            self.failed(error)

    def _take(self, kind: int, payload: bytes) -> None:
        place = messages.destination_of(payload)
        inlet = self._inlets[place.step, place.target]
        if kind == messages.ELEMENTS:
            self._take_elements(inlet, place, messages.elements_in(payload))
        elif self._is_over:
            return  # the chain has made its last cut
        elif kind == messages.WATERMARK:
            inlet.put_watermark(place.channel, place.number)
        elif kind == messages.IDLE:
            inlet.set_idle(place.channel, bool(place.number))
        else:
            inlet.credited(place.number)

    def _take_elements(self, inlet: CreditedInlet, place: messages.Destination, elements: list[Element]) -> None:
        self._received[place.step] += place.number
        if place.is_late:
            assert self._cut_taken is not None, "the cut comes through the same link, before what is late for it"
            self._cut_taken.late.setdefault((self._names[place.step], place.target), []).extend(elements)
        if not self._is_over:
            inlet.receive(place, elements)

    def _serve_request(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        try:
            outcome = getattr(self, name)(*arguments)
        except Exception as error:  # noqa: BLE001 - the parent raises it
            self._answer(number, None, error)
            return
        if inspect.iscoroutine(outcome):
            self._tasks.spawn(self._answer_later(number, outcome))
        else:
            self._answer(number, outcome, None)

    async def _answer_later(self, number: int, work: Any) -> None:
        task = asyncio.current_task()
        try:
            outcome = await work
        except BaseException as error:
            if task is not None and task.cancelling():
                raise
            self._answer(number, None, error)  # whatever `close` of a function raises: the parent waits for the answer
        else:
            self._answer(number, outcome, None)

    def _answer(self, number: int, outcome: Any, error: BaseException | None) -> None:
        failure = None if error is None else Failure.of(error)
        self._connected.send(messages.REPLY, messages.dumped((number, outcome, failure)))

    def _report(self, name: str, what: Any) -> None:
        self._connected.send(messages.REPORT, messages.dumped((name, what)))

    def failed(self, error: BaseException) -> None:
        """Report to the parent what has failed."""
        self._report("failed", Failure.of(error))

    @property
    def _connected(self) -> messages.Link:
        assert self._link is not None, "the child serves"
        return self._link

    # What the parent asks for.

    def begin(self, parallelism: int, own: range, snapshot: Snapshot | None, are_timers_held: bool) -> None:
        """Begin a chain at another parallelism."""

        def new_inlet(step: int, target: int, channels: range, limit: int) -> Inlet:
            kind = CreditedInlet if target in own else RemoteInlet
            inlet = self._inlets[step, target] = kind(step, target, channels, limit, self._sender)
            return inlet

        self._inlets, self._received = {}, [0] * len(self._names)
        self._snapshot, self._is_over = snapshot, False
        self._chain = Chain(self._plan, parallelism, self._collector, self, Section(own, new_inlet))
        self._chain.hold_timers(are_timers_held)

    async def open_step(self, number: int) -> None:
        """Open the operators of a step; the steps behind it are open everywhere."""
        await self._running.open_step(number, self._snapshot)

    def go(self) -> None:
        """Move elements into the operators from now on: all steps are open everywhere."""
        self._snapshot = None
        self._pumps = [self._tasks.spawn(task) for task in self._running.tasks()]

    def hold_timers(self, are_held: bool) -> None:
        """Fire no timers, or fire them again."""
        self._running.hold_timers(are_held)

    def show_life(self) -> None:
        """Do nothing: the answer says that the event loop turns."""

    def tick(self) -> None:
        """Look for idle subtasks, and report how the child stands."""
        if self._pumps:
            self._running.notice_idleness()
            self._report("status", self.status())

    def status(self) -> ChildStatus:
        """Return how the child stands."""
        chain, collector = self._running, self._collector
        return ChildStatus(
            in_flight=chain.in_flight(),
            received=list(self._received),
            outputs=collector.outputs,
            dead_letters=collector.dead_letters,
            work=(chain.work(), collector.outputs, collector.dead_letters),
            limits=chain.limits(),
            is_full=not collector.has_room,
            processor_seconds=time.process_time(),
            oldest_call_seconds=chain.oldest_call_seconds(),
        )

    def lend(self, allowances: Mapping[str, Allowance]) -> Coroutine[Any, Any, dict[str, Holdings]]:
        """Go on with what this child is allowed of the limits of steps, and return what it holds of them now.

        The limits change in the turn in which the parent is heard: the next chain must not begin with what the chain
        before was allowed.
        """
        for name, allowance in allowances.items():
            self._plan.limits[name].allow(allowance, may_wait=True)
        return self._held(allowances)

    async def _held(self, names: Iterable[str]) -> dict[str, Holdings]:
        await asyncio.sleep(0)  # calls that look again, and still have not enough, are back in the line after a turn
        return {name: self._plan.limits[name].holdings(since_last=True) for name in names}

    async def drain_step(self, name: str, is_final: bool) -> None:
        """Wait until nothing of a step is in flight."""
        draining = asyncio.current_task()
        assert draining is not None, "coroutines run in tasks"
        self._drains.add(draining)
        try:
            await self._running.drain_step(name, is_final=is_final)
            self._sender.flush()  # the parent asks for the next step once it has the answer
        finally:
            self._drains.discard(draining)

    async def write(self, pending: bytes, letters: pa.Table | None) -> Contribution:
        """Write the parts of the newest cut, with what was late for it; the parent has all marks.

        `letters` are outputs of the parent, which come before this child's.
        """
        taken, self._cut_taken = self._cut_taken, None
        assert taken is not None, "a cut was taken"
        parts = self._running.with_late(taken.parts, taken.late)
        counts = counts_of(0, taken.outputs.count, (cut for _, cut in parts), taken.counted)
        written, table = await on_own_thread(_written, pending, parts, taken.outputs, letters)
        return Contribution(written, counts, taken.process, table)

    async def committed(self, version: int, cuts: Cuts) -> None:
        """Tell the functions of a commit."""
        await self._running.committed(version, cuts)

    def stop(self) -> None:
        """Begin no more calls, without a cut."""
        self._is_over = True
        self._end_pumps()
        self._running.stop()

    async def end_calls(self) -> None:
        """Wait until the calls have ended that a stop has cancelled."""
        self._tasks.release(self._pumps)
        await ended(self._pumps)
        self._pumps = []
        await self._running.end_calls()

    async def close(self) -> None:
        """Close the chain with its functions."""
        self._end_pumps()
        self._is_over = True
        self._sender.forget()
        chain, self._chain = self._chain, None
        self._collector.forget_senders()
        self._collector.on_change(self._notice_full)
        if chain is not None:
            await chain.close()

    def end(self) -> None:
        """End the process."""
        if not self._end.done():
            self._end.set_result(True)

    # Cuts.

    def _cut(self, *, is_final: bool) -> None:
        """Cut everything in this turn of the loop. What was sent until now comes before the mark."""
        self._sender.flush()
        if is_final:
            self._is_over = True
            self._end_pumps()
        parts, counted = self._running.cut(is_final=is_final)
        self._cut_taken = _CutTaken(parts, counted, self._collector.cut(), {}, self._process())
        self._connected.send(messages.MARK, messages.dumped(self.status()))

    def _process(self) -> Counts:
        """Return what a cut keeps of the process itself."""
        before, self._processor_milliseconds = self._processor_milliseconds, milliseconds(time.process_time())
        return {
            "pid": os.getpid(),
            "subtasks": self._running.subtasks,
            "processor_milliseconds": self._processor_milliseconds - before,
        }

    def _end_pumps(self) -> None:
        ending = {*self._pumps, *self._drains}
        self._tasks.release(ending)
        for task in ending:
            task.cancel()

    def _notice_full(self) -> None:
        is_full, before = not self._collector.has_room, self._was_full
        self._was_full = is_full
        if is_full and not before and self._chain is not None:
            self._report("status", self.status())

    @property
    def _running(self) -> Chain:
        assert self._chain is not None, "the parent has begun a chain"
        return self._chain


async def _outcome_of(end: asyncio.Future[bool]) -> bool:
    return await asyncio.shield(end)


def _written(
    pending: bytes, parts: Sequence[Part], outputs: EpochOutputs, letters: pa.Table | None
) -> tuple[list[Written], pa.Table | None]:
    begun: PendingSnapshot = pickle.loads(pending)  # noqa: S301 - from the parent; it reads the parent's manifest
    table = outputs.table() if letters is None else pa.concat_tables([letters, outputs.table()])
    try:
        return write_parts(begun, parts, table), table if table.nbytes <= SENT_BYTES_MAX else None
    finally:
        outputs.close()


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way to the parent. Each part is pickled by itself: a user's error may fail at that in any way.

    Attributes
    ----------
    text : str
        The type and the message of the error.
    where : str
        Its traceback.
    error, cause : bytes or None
        The error, and its cause, which no pickle of an error has; None if it cannot be pickled, or there is none.
    """

    text: str
    where: str
    error: bytes | None
    cause: bytes | None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return the failure for an error of a child."""
        return cls(described(error), _traceback_of(error), _pickled(error), _pickled(error.__cause__))

    def raised_in(self, child: int) -> Exception:
        """Return the error for the parent to raise, with the place where the child has raised it, and its cause."""
        error = _unpickled(self.error)
        if error is None:
            error = ChildFailed(child, self.text)
        add_note(error, f"in child {child}:\n{self.where}")
        BaseException.__setattr__(error, "__cause__", _unpickled(self.cause))  # also of a frozen dataclass
        return as_exception(error)


def _traceback_of(error: BaseException) -> str:
    try:
        return printable("".join(traceback.format_exception(error))).rstrip()
    except Exception:  # noqa: BLE001 - whatever a user's error raises
        return "(it has no traceback that can be printed)"


def _pickled(error: BaseException | None) -> bytes | None:
    try:
        return None if error is None else pickle.dumps(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - whatever a user's error raises
        return None


def _unpickled(error: bytes | None) -> BaseException | None:
    try:
        found: object = None if error is None else pickle.loads(error)  # noqa: S301 - from a process of this run
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - whatever a user's error raises
        return None
    return found if isinstance(found, BaseException) else None
