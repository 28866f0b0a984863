"""The chain of a job whose subtasks are spread over children, as its run sees it."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from async_op.in_flight.waiters import Waiters
from async_op.job.chain import Cuts, Plan, inlet_limit
from async_op.job.channels import Outlet
from async_op.job.committing import Contribution, Part
from async_op.job.operators import Owner
from async_op.job.outputs import Collector, EpochOutputs
from async_op.job.processes import messages
from async_op.job.processes.child_handles import Child, Children, gathered
from async_op.job.processes.remote_channels import RemoteInlet, Sender
from async_op.job.routing import Route
from async_op.operator.counters import Counted
from async_op.resilience.lending import Lender
from async_op.statistics import ResilienceStatistics
from async_op.threads.own_thread import on_own_thread
from snapshots import PendingSnapshot, Snapshot

LEND_SECONDS = 0.25
"""How often children lend each other what they do not use of a limit; what moves takes two turns."""

CLOSE_SECONDS = 30.0
"""How long children may take to close all their functions; then their processes are killed."""


def sections_of(parallelism: int, count: int) -> list[range]:
    """Return the subtasks of each child: contiguous runs whose lengths differ by one at most."""
    bounds = [number * parallelism // count for number in range(count + 1)]
    return [range(begin, end) for begin, end in pairwise(bounds)]


class DistributedChain:
    """Does what `Chain` does, with operators in children. Only the thread of the event loop may call it.

    Parameters
    ----------
    children : Children
        The processes.
    plan, parallelism, owner
        As for `Chain`.
    outputs : Collector
        Woken when a child has too many outputs for one epoch.

    Attributes
    ----------
    entrances, work_at_cut
        As for `Chain`.
    """

    def __init__(
        self,
        children: Children,
        plan: Plan,
        parallelism: int,
        outputs: Collector,
        owner: Owner,
    ) -> None:
        self.parallelism = parallelism
        self.work_at_cut: object = None
        self._children = children
        self._names = list(plan.steps)
        self._outputs = outputs
        self._owner = owner
        self._are_timers_held = self._is_begun = False
        self._owners: list[Child] = []
        for child, own in zip(children.all, sections_of(parallelism, len(children.all)), strict=True):
            child.own = own
            child.passing = self
            self._owners += [child] * len(own)
        self._sent = {child: [0] * len(self._names) for child in children.all}
        self._unmarked: set[Child] = set()
        self._marks = Waiters()
        self._sender = Sender(messages.PARENT, lambda target: self._owners[target].link)
        count = len(children.all)
        self._lenders = {
            name: Lender(options.resilience.lendable(count), count)
            for name, options in plan.steps.items()
            if options.resilience is not None and options.resilience.lendable(count)
        }
        self.entrances = self._new_entrances(plan)

    def _new_entrances(self, plan: Plan) -> list[Outlet]:
        options = plan.steps[self._names[0]]
        route = Route(options, self.parallelism, plan.max_parallelism)
        self._inlets = [
            _CountedInlet(0, one, route.reaching(one), inlet_limit(options), self._sender, self._sent[owner])
            for one, owner in enumerate(self._owners)
        ]
        return [Outlet(self._inlets, subtask, route) for subtask in range(self.parallelism)]

    # What comes from children.

    def passed(self, child: Child, kind: int, payload: bytes) -> None:
        """Pass on what one child has for a subtask of another."""
        place = messages.destination_of(payload)
        if kind == messages.CREDIT:
            if place.sender == messages.PARENT:
                self._inlets[place.target].credited(place.number)
            else:
                self._children.all[place.sender - 1].link.send(kind, payload)
            return
        receiver = self._owners[place.target]
        if kind == messages.ELEMENTS:
            self._sent[receiver][place.step] += place.number
            if child in self._unmarked:  # sent before its cut, and comes behind the receiver's
                payload = messages.late(payload)
        receiver.link.send(kind, payload)

    def marked(self, child: Child) -> None:
        """Note that a child has made its cut: what it sends from now on comes after it."""
        self._unmarked.discard(child)
        self._marks.wake()

    def stands(self) -> None:
        """Look whether the epoch has to end."""
        if not self.has_room:
            self._outputs.changed.wake()

    def failed(self, error: BaseException) -> None:
        """End the run."""
        self._marks.wake()
        self._owner.failed(error)

    @property
    def _has_lost_child(self) -> bool:
        return any(child.failure is not None for child in self._children.all)

    # What the run asks for.

    async def open(self, snapshot: Snapshot | None) -> None:
        """Open all steps, from the last to the first, each of them everywhere before the next."""
        children = self._children
        await children.start()
        self._is_begun = True
        await gathered(
            child.ask("begin", self.parallelism, child.own, snapshot, self._are_timers_held) for child in children.all
        )
        for number in reversed(range(len(self._names))):
            await children.ask("open_step", number)
        await children.ask("go")
        self._may_be_silent(False)

    def tasks(self) -> list[Any]:
        """Return what never ends: lending. The children move elements into their operators themselves."""
        return [self._lend() if self._lenders else asyncio.Event().wait()]

    async def _lend(self) -> None:
        """Move shares of limits between children, for ever.

        A turn begins when all children have answered in the turn before: what one of them has given up, another one
        may get. An answer that is still on its way would be given away twice.
        """
        children = self._children.all
        while True:
            plans = {name: lender.plan() for name, lender in self._lenders.items()}
            heard = await gathered(
                child.ask("lend", {name: plan[number] for name, plan in plans.items()})
                for number, child in enumerate(children)
            )
            for name, lender in self._lenders.items():
                lender.note([holdings[name] for holdings in heard])
            await asyncio.sleep(LEND_SECONDS)

    def hold_timers(self, are_held: bool) -> None:
        """Fire no timers, or fire them again."""
        self._are_timers_held = are_held
        if self._is_begun:
            self._tell("hold_timers", are_held)

    def notice_idleness(self) -> None:
        """Have the children look for idle subtasks, and report how they stand."""
        self._tell("tick")

    def cut(self, *, is_final: bool) -> tuple[list[Part], list[Counted]]:
        """Have all children cut, behind all that was sent to them; their parts come with `written`."""
        self._sender.flush()
        self._unmarked = set(self._children.all)
        for child in self._children.all:
            child.link.send(messages.CUT, b"\1" if is_final else b"")
        return [], []

    async def written(self, pending: PendingSnapshot, outputs: EpochOutputs) -> Sequence[Contribution]:
        """Return what the children have written of the newest cut; one of them writes the parent's outputs, too.

        Those are dead letters of the source. Only one step of a job may have outputs in a snapshot.
        """
        await self._marks.wait_until(lambda: not self._unmarked or self._has_lost_child)
        for child in self._children.all:
            child.check()
        self.work_at_cut = self.work()
        own = await on_own_thread(outputs.table) if outputs.count else None
        begun = pickle.dumps(pending)
        return await gathered(
            child.ask("write", begun, own if child is self._owners[0] else None) for child in self._children.all
        )

    @property
    def has_room(self) -> bool:
        """Whether the epoch may go on."""
        return not any(child.status.is_full for child in self._children.all)

    @property
    def knows_its_work(self) -> bool:
        """Whether `work` is what it is now: the children report it only from time to time."""
        return False

    def work(self) -> object:
        """Return what changes whenever something happens that a child has reported."""
        return tuple(child.status.work for child in self._children.all)

    def in_flight(self) -> dict[str, int]:
        """Return for each step how many elements are in operators, or on their way into them."""
        found = dict.fromkeys(self._names, 0)
        for child, sent in self._sent.items():
            status = child.status
            for number, name in enumerate(self._names):
                received = status.received[number] if status.received else 0
                found[name] += status.in_flight.get(name, 0) + max(0, sent[number] - received)
        return found

    def oldest_call_seconds(self) -> float:
        """Return the age of the oldest element without a result that a child has reported."""
        return max(child.status.oldest_call_seconds for child in self._children.all)

    def limits(self) -> dict[str, ResilienceStatistics]:
        """Return for each step with limits where they stand."""
        found: dict[str, ResilienceStatistics] = {}
        for child in self._children.all:
            for name, limits in child.status.limits.items():
                found[name] = found[name].beside(limits) if name in found else limits
        return found

    async def drain(self, *, is_final: bool) -> None:
        """Wait until nothing is in flight, step by step: what a step has sent is there before the next one is asked."""
        self._sender.flush()
        for name in self._names:
            await self._children.ask("drain_step", name, is_final)

    def stop(self) -> None:
        """Begin no more calls, and let no output leave."""
        self._tell("stop")

    async def end_calls(self) -> None:
        """Wait until the cancelled calls have ended."""
        for inlet in self._inlets:
            inlet.clear()
        await self._children.ask("end_calls")

    async def close(self) -> None:
        """Give up what is in flight, and close the functions of all children that are still alive."""
        self._sender.forget()
        self._may_be_silent(True)
        replies = [child.ask("close") for child in self._children.all if self._is_begun and child.failure is None]
        if replies:
            await asyncio.wait(replies, timeout=CLOSE_SECONDS)
        for child in self._children.all:
            child.passing = None
        for reply in replies:
            if reply.done() and (error := reply.exception()) is not None:
                raise error

    async def committed(self, version: int, cuts: Cuts) -> None:
        """Tell the functions that a snapshot is committed."""
        own = {child: {place: cut for place, cut in cuts.items() if place[1] in child.own} for child in self._owners}
        await gathered(child.ask("committed", version, found) for child, found in own.items())

    def _may_be_silent(self, may_be_silent: bool) -> None:
        for child in self._children.all:
            child.may_be_silent = may_be_silent

    def _tell(self, name: str, *arguments: Any) -> None:
        for child in self._children.all:
            child.ask(name, *arguments)


class _CountedInlet(RemoteInlet):
    """Counts what the parent itself has sent to a child."""

    __slots__ = ("_counts",)

    def __init__(self, *arguments: Any) -> None:
        *others, self._counts = arguments
        super().__init__(*others)

    def put(self, channel: int, elements: Sequence[Any]) -> None:
        self._counts[self._step] += len(elements)
        super().put(channel, elements)
