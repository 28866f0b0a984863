"""The operators of all steps at one parallelism, and the channels between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import pyarrow as pa

from async_op.calls.checked_outputs import with_checked_outputs
from async_op.calls.value_checks import StorableOutputs, Unstorable
from async_op.clock import LoopClock
from async_op.dead_letters import DeadLetter
from async_op.elements import Element
from async_op.functions.base import AsyncBatchFunction, AsyncFunction
from async_op.in_flight.idempotency_keys import Identity
from async_op.job.channels import Inlet, Outlet
from async_op.job.committing import Contribution, Part
from async_op.job.operators import Merge, Owner, StepOperator, StepSubtask
from async_op.job.outputs import Collector, EpochOutputs
from async_op.job.routing import Route
from async_op.job.step import Step
from async_op.job.waiting import side_by_side
from async_op.operator.counters import Counted
from async_op.operator.subtask_info import SubtaskInfo
from async_op.options import OperatorOptions
from async_op.resilience import SharedLimits
from async_op.resilience.lending import Allowance
from async_op.resilience.waiting_line import WHOLE, Share
from async_op.statistics import ResilienceStatistics
from snapshots import PendingSnapshot, Snapshot, SubtaskRestore
from snapshots.format.subtask import ElementTypes

_INLET_MIN, _INLET_MAX = 16, 1024

Late = Mapping[tuple[str, int], Sequence[Element]]
"""What has to be added to parts of a cut, by the name of the step and the subtask."""


def inlet_limit(options: OperatorOptions) -> int:
    """Return how many elements may be on their way into a subtask."""
    return min(max(options.capacity, _INLET_MIN), _INLET_MAX)


def _is_packed_early(options: OperatorOptions) -> bool:
    """Return whether nothing looks at the outputs of a step between its worker and the collector that packs them."""
    is_single = isinstance(options.function, AsyncFunction) and not isinstance(options.function, AsyncBatchFunction)
    return is_single and (options.retry is None or not options.retry.looks_at_outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all chains of a job have in common.

    Attributes
    ----------
    steps : mapping of str to OperatorOptions
        The options of each step by its name, in order.
    hash : str
        The hash that maps a key to its key group.
    max_parallelism : int
        The number of key groups.
    limits : mapping of str to SharedLimits
        The limits of each step that has any. They outlive rescales.
    lineage : str
        The first part of all idempotency keys.
    value_types : mapping of str to (pyarrow.DataType or None)
        The type of the values that come into each step, if it is declared.
    are_decoded : bool
        Whether the source has decoded its values itself; see `Source`.
    """

    steps: Mapping[str, OperatorOptions]
    hash: str
    max_parallelism: int
    limits: Mapping[str, SharedLimits]
    lineage: str
    value_types: Mapping[str, pa.DataType | None]
    are_decoded: bool

    @classmethod
    def of(
        cls,
        steps: Mapping[str, Step],
        hash_: str,
        max_parallelism: int,
        lineage: str,
        collector: Collector,
        share: Share = WHOLE,
        *,
        are_decoded: bool,
    ) -> Plan:
        """Return the plan of a job for the running event loop; `collector` gets the dead letters.

        `share` is the part of its limits that this process has at first; others may lend it more than a part.
        """

        def letters_of(name: str) -> Callable[[DeadLetter], None]:
            return lambda letter: collector.take_letter(letter, name)

        options = {name: step.options(hash_, letters_of(name)) for name, step in steps.items()}
        clock = LoopClock(asyncio.get_running_loop())
        allowance: Allowance | None = None if share == WHOLE else {}
        limits = {
            name: SharedLimits(one.resilience, one.capacity, clock, share, allowance)
            for name, one in options.items()
            if one.resilience is not None
        }
        return cls(
            steps=options,
            hash=hash_,
            max_parallelism=max_parallelism,
            limits=limits,
            lineage=lineage,
            value_types={name: step.value_type for name, step in steps.items()},
            are_decoded=are_decoded,
        )

    @property
    def forwarded(self) -> list[str]:
        """The names of the steps before the first one with a key: elements stay on their subtask up to there."""
        return list(takewhile(lambda name: self.steps[name].key_by is None, self.steps))


@dataclass(frozen=True, slots=True)
class Section:
    """The part of a chain that one process has.

    Attributes
    ----------
    own : range
        Its subtasks of each step.
    new_inlet : callable
        Returns the way into a subtask, given the number of its step, the subtask, its channels, and the limit: an
        inlet, or the way to another process.
    """

    own: range
    new_inlet: Callable[[int, int, range, int], Inlet]

    @classmethod
    def whole(cls, parallelism: int) -> Section:
        """Return the only section of a job in one process."""
        return cls(range(parallelism), lambda _, __, channels, limit: Inlet(channels, limit))


class Chain:
    """The operators of all steps at one parallelism, or of a section. Only the loop's thread may call it.

    Parameters
    ----------
    plan : Plan
        The steps.
    parallelism : int
        The number of subtasks of each step.
    outputs : Collector
        Gets the outputs of the last step.
    owner : Owner
        Told at once of the error that ends an operator, or fails one of its elements.
    section : Section, optional
        Which subtasks it has; by default all.

    Attributes
    ----------
    entrances : list of Outlet
        For each subtask of the source, the way to the first step.
    work_at_cut : object
        What `work` was at the newest cut.
    """

    def __init__(
        self,
        plan: Plan,
        parallelism: int,
        outputs: Collector,
        owner: Owner,
        section: Section | None = None,
    ) -> None:
        self.parallelism = parallelism
        self.work_at_cut: object = None
        self._section = section or Section.whole(parallelism)
        self._plan = plan
        self._outputs = outputs
        self._owner = owner
        self._names = list(plan.steps)
        self._routes = {name: Route(options, parallelism, plan.max_parallelism) for name, options in plan.steps.items()}
        self._inlets = {name: self._new_inlets(number, name) for number, name in enumerate(self._names)}
        self._ways = {
            name: [Outlet(inlets, subtask, self._routes[name]) for subtask in range(parallelism)]
            for name, inlets in self._inlets.items()
        }
        self._subtasks: dict[str, list[StepSubtask]] = {}
        self._are_timers_held = False
        self._clock = LoopClock(asyncio.get_running_loop())
        for name, limits in plan.limits.items():
            limits.begin(len(self._section.own) * plan.steps[name].capacity)
        self.entrances = self._ways[self._names[0]]

    def _new_inlets(self, number: int, name: str) -> list[Inlet]:
        route, limit = self._routes[name], inlet_limit(self._plan.steps[name])
        return [
            self._section.new_inlet(number, index, route.reaching(index), limit) for index in range(self.parallelism)
        ]

    async def open(self, snapshot: Snapshot | None) -> None:
        """Open all steps, from the last to the first, because a step that opens emits what had completed."""
        for number in reversed(range(len(self._names))):
            await self.open_step(number, snapshot)

    async def open_step(self, number: int, snapshot: Snapshot | None) -> None:
        """Open the operators of a step; the steps behind it are open."""
        name = self._names[number]
        merge = None if snapshot is None else self._merge_of(number, snapshot)
        shares = [self._share(name, index, snapshot) for index in self._section.own]
        receivers = [self._receiver_of(number, index) for index in self._section.own]
        subtasks = self._subtasks[name] = []
        for index, receiver in zip(self._section.own, receivers, strict=True):
            subtasks.append(self._new_subtask(name, index, receiver, merge))
        # One after the other, functions that connect in `open` would make a rescale as long as all of them together.
        await side_by_side(map(self._open_subtask, subtasks, receivers, shares))

    def _receiver_of(self, number: int, index: int) -> Outlet | Collector:
        is_last = number + 1 == len(self._names)
        return self._outputs if is_last else self._ways[self._names[number + 1]][index]

    @staticmethod
    async def _open_subtask(subtask: StepSubtask, receiver: Outlet | Collector, share: SubtaskRestore | None) -> None:
        await subtask.open(share)
        if isinstance(receiver, Outlet) and subtask.operator.watermark is not None:
            receiver.put_watermark(subtask.operator.watermark)

    def _new_subtask(self, name: str, index: int, receiver: Outlet | Collector, merge: Merge | None) -> StepSubtask:
        options = self._plan.steps[name]
        # Each subtask opens a function of its own, as it would in a process of its own.
        checks, is_last = StorableOutputs(), name == self._names[-1]
        keep = checks.packed if is_last and _is_packed_early(options) else checks.copied
        options = replace(options, function=with_checked_outputs(options.function, checks, keep=keep))
        subtask_info = SubtaskInfo(
            parallelism=self.parallelism,
            subtask_index=index,
            max_parallelism=self._plan.max_parallelism,
            is_in_chain=True,
            limits=self._plan.limits.get(name),
            identity=Identity(self._plan.lineage, name),
            element_types=ElementTypes(value=self._plan.value_types[name]),
            # Later steps get outputs that were checked when their calls returned.
            vet=Unstorable(are_decoded=self._plan.are_decoded) if name == self._names[0] else None,
        )
        operator = StepOperator(options, subtask_info, receiver, merge, self._owner)
        subtask = StepSubtask(operator, self._inlets[name][index], receiver, self._clock)
        subtask.hold_timers(self._are_timers_held)
        return subtask

    def _share(self, name: str, index: int, snapshot: Snapshot | None) -> SubtaskRestore | None:
        if snapshot is None or name not in snapshot.step_names:
            return None
        return snapshot.restore(index, self.parallelism, step=name)

    def _merge_of(self, number: int, snapshot: Snapshot) -> Merge | None:
        """Return how a step is restored from a snapshot with another parallelism; None with the same one."""
        upstream = set(self._names[: number + 1])
        channels = [channel for channel in snapshot.manifest.channels if channel.step in upstream]
        counted = sum(channel.step == self._names[number] for channel in channels)
        if counted in (0, self.parallelism):
            return None
        marks = [channel.watermark for channel in channels]
        return Merge(None if None in marks else min(mark for mark in marks if mark is not None))

    def hold_timers(self, are_held: bool) -> None:
        """Fire no timers, or fire them again where there is room for what they emit."""
        self._are_timers_held = are_held
        for subtask in self._all():
            subtask.hold_timers(are_held)

    def tasks(self) -> list[Any]:
        """Return the coroutines that move elements into the operators; they never end."""
        return [subtask.pump() for subtask in self._all()]

    def cut(self, *, is_final: bool) -> tuple[list[Part], list[Counted]]:
        """Cut all steps in this turn of the event loop.

        Returns the parts, and what each operator has counted since the cut before. After a final cut, nothing leaves.
        """
        parts = [(name, subtask.cut()) for name, subtasks in self._ordered() for subtask in subtasks]
        counted = [subtask.counted() for subtask in self._all()]
        self.work_at_cut = self.work()
        if is_final:
            self.stop()
        return parts, counted

    async def written(
        self,
        pending: PendingSnapshot,
        outputs: EpochOutputs,
    ) -> Sequence[Contribution]:
        """Return what other processes have written of the newest cut: nothing, because this one has all parts."""
        return ()

    def with_late(self, parts: Iterable[Part], late: Late) -> list[Part]:
        """Return parts of the newest cut with what was on its way between processes, behind what they have."""
        operators = {(name, one): subtask.operator for name, one, subtask in self._places()}
        return [
            (name, operators[place].with_waiting(part, late[place]) if place in late else part)
            for name, part in parts
            for place in [(name, part.subtask_index)]
        ]

    knows_its_work = True
    """Whether `work` is what it is now."""

    @property
    def subtasks(self) -> int:
        """How many subtasks of each step it has."""
        return len(self._section.own)

    @property
    def has_room(self) -> bool:
        """Whether the epoch may go on."""
        return self._outputs.has_room

    def work(self) -> tuple[tuple[int, int], ...]:
        """Return counters that change whenever something happens."""
        return tuple(subtask.operator.work() for subtask in self._all())

    def in_flight(self) -> dict[str, int]:
        """Return for each step how many elements are in its operators or on their way into them."""
        found = {}
        for name, subtasks in self._ordered():
            subtasks = [one for one in subtasks if one.is_open]
            inside = sum(accepted - departed for accepted, departed in (one.operator.work() for one in subtasks))
            found[name] = inside + sum(len(one.inbox.elements) for one in subtasks)
        return found

    def oldest_call_seconds(self) -> float:
        """Return for how long the oldest element without a result has been in its operator."""
        return max((one.oldest_call_seconds for one in self._all() if one.is_open), default=0.0)

    def limits(self) -> dict[str, ResilienceStatistics]:
        """Return for each step with limits where they stand, and what its operators have done with them."""
        found: dict[str, ResilienceStatistics] = {}
        for name, subtasks in self._ordered():
            for statistics in (one.operator.limits() for one in subtasks if one.is_open):
                if statistics is not None:
                    found[name] = found[name] + statistics if name in found else statistics
        return found

    def notice_idleness(self) -> None:
        """Let subtasks without any input hold back no watermark of the steps after theirs."""
        for name, following in zip(self._names, self._names[1:], strict=False):
            for index, subtask in zip(self._section.own, self._subtasks[name], strict=True):
                self._ways[following][index].set_idle(subtask.inbox.is_idle and subtask.is_empty)

    async def drain(self, *, is_final: bool) -> None:
        """Wait until nothing is in flight, step by step; see `StepOperator.empty`."""
        for name in self._names:
            await self.drain_step(name, is_final=is_final)

    async def drain_step(self, name: str, *, is_final: bool) -> None:
        """Wait until nothing of a step is in flight, when nothing more comes from the steps before."""
        await asyncio.gather(*(subtask.drain(is_final=is_final) for subtask in self._subtasks[name]))

    def stop(self) -> None:
        """Begin no more calls, cancel those under way, and let no output leave."""
        for subtask in self._all():
            subtask.operator.stop()

    async def end_calls(self) -> None:
        """Wait until the cancelled calls have ended, and keep the state until `close`; call `stop` before."""
        for subtask in self._all():
            subtask.inbox.clear()
        await asyncio.gather(*(subtask.operator.end_calls() for subtask in self._all()))

    async def close(self) -> None:
        """Give up what is in flight, and close all operators; raises the first error of a function's `close`."""
        closing = (subtask.operator.close() for subtask in self._all())
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def committed(self, version: int, cuts: Cuts) -> None:
        """Tell the functions that a snapshot which they are part of is committed."""
        # A later cut may have been made meanwhile, so each operator must know which one it is.
        telling = (
            subtask.operator.snapshot_complete(version, cuts.get((name, index), ""))
            for name, index, subtask in self._places()
        )
        await asyncio.gather(*telling)

    def _ordered(self) -> list[tuple[str, list[StepSubtask]]]:
        return [(name, self._subtasks[name]) for name in self._names if name in self._subtasks]

    def _places(self) -> list[tuple[str, int, StepSubtask]]:
        own = self._section.own
        return [(name, one, it) for name, subtasks in self._ordered() for one, it in zip(own, subtasks, strict=False)]

    def _all(self) -> list[StepSubtask]:
        return [subtask for _, subtasks in self._ordered() for subtask in subtasks]


Cuts = Mapping[tuple[str | None, int], str]
"""The ids of the cuts that a manifest names, by step and subtask."""


def cuts_of(snapshot: Snapshot) -> Cuts:
    """Return the cuts that a snapshot consists of."""
    return {(channel.step, channel.subtask): channel.cut_id or "" for channel in snapshot.manifest.channels}
