"""One subtask of a step: its operator, and where its outputs go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from async_op.elements import Element, ElementId, Record, Watermark, output_id
from async_op.errors import AsyncTimeoutError, ElementFailed
from async_op.functions.plain import name_of
from async_op.in_flight.in_flight import NamedOutput, ValueOutput
from async_op.job.channels import FINAL, Inlet, Outlet
from async_op.job.outputs import Collector
from async_op.lifecycle import Lifecycle
from async_op.operator.counters import Counted
from async_op.operator.subtask_info import SubtaskInfo
from async_op.options import OperatorOptions
from async_op.statistics import ResilienceStatistics
from async_op.subtask.operator import ResidentOperator, Waiting
from async_op.subtask.subtask import Subtask
from snapshots import SubtaskRestore, SubtaskSnapshot
from snapshots.format.in_flight_elements import RestoredQueue

_log = logging.getLogger(__package__)

COMPLETE_SECONDS_MAX = 60.0
"""Seconds that the `snapshot_complete` of a function may take."""

_UNHEARD = (
    "snapshot_complete(%d) of %s was cancelled after %g s; the snapshot is committed, and the function hears of the "
    "next one, or of this one when the job starts again: give what it waits for a timeout of its own"
)


def is_of_element(error: BaseException) -> bool:
    """Return whether an error fails one element: it stays in flight, and its operator goes on to the next cut."""
    return isinstance(error, ElementFailed | AsyncTimeoutError)


@dataclass(frozen=True, slots=True)
class Merge:
    """How a step is restored with another parallelism.

    Its subtasks then get elements of old subtasks whose watermarks differ. So all of them begin at the lowest watermark
    of all channels up to this step, and the source's watermark follows behind all restored elements.

    Attributes
    ----------
    watermark : int or None
        The watermark to begin at.
    """

    watermark: int | None

    def __call__(self, queue: RestoredQueue) -> RestoredQueue:
        """Return a restored queue without the watermarks of its old channels."""
        return RestoredQueue(tuple(one for one in queue.elements if not one.is_watermark), self.watermark)


class _ToStep(NamedOutput):
    """Hands outputs on to the next step, and remembers the newest watermark but the final one."""

    __slots__ = ("_outlet", "_put_one", "watermark")

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._put_one = outlet.put_one
        self.watermark: int | None = None

    def take(self, values: Sequence[Any], timestamp: int | None, parent: ElementId) -> None:
        if len(values) == 1:  # usually, and a list for each output would cost as much as all of its way
            element_id = (parent, 0) if type(parent) is tuple else output_id(parent, 0)
            self._put_one((values[0], timestamp, element_id))
        else:
            self._outlet.put([(value, timestamp, output_id(parent, number)) for number, value in enumerate(values)])

    def __call__(self, output: Watermark) -> None:
        if output.timestamp != FINAL:
            self.watermark = output.timestamp
            self._outlet.put_watermark(output.timestamp)


class _ToSinks(ValueOutput):
    """The same for the last step, whose outputs need neither ids nor timestamps."""

    __slots__ = ("extend", "watermark")

    extend: Callable[[Iterable[Any]], None]

    def __init__(self, collector: Collector) -> None:
        # A method of its own would cost as much as all the rest.
        self.extend = collector.extend
        self.watermark: int | None = None

    def __call__(self, output: Record | Watermark) -> None:
        if isinstance(output, Watermark) and output.timestamp != FINAL:
            self.watermark = output.timestamp


class Owner(Protocol):
    """What has the operators of steps: the run of a job, or a child process."""

    def failed(self, error: BaseException) -> None:
        """Take the error that ends an operator, or fails one of its elements, as soon as it comes."""
        ...


class StepLifecycle(Lifecycle):
    """The lifecycle of a step's operator, whose owner is told of each failure; one of an element ends nothing.

    Parameters
    ----------
    owner : Owner
        What has the operator.
    """

    __slots__ = ("_is_stopped", "_owner")

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self._owner = owner
        self._is_stopped = False

    def silence(self) -> None:
        """Tell the owner nothing more: it has stopped the operator."""
        self._is_stopped = True

    def fail(self, error: BaseException) -> None:
        """End the operator, unless an element has failed, and tell the owner."""
        is_stopped, failure = self._is_stopped, error if is_of_element(error) else None
        if failure is None:
            super().fail(error)
            failure = self.failure
        if not is_stopped and failure is not None:
            self._owner.failed(failure)


class StepOperator(ResidentOperator):
    """The operator of one subtask of a step.

    Parameters
    ----------
    options : OperatorOptions
        The options of the step.
    subtask_info : SubtaskInfo
        Which subtask it is.
    receiver : Outlet or Collector
        Gets what leaves: the next step, or the sinks.
    merge : Merge or None
        How it is restored, if that is with another parallelism.
    owner : Owner
        Told at once of the error that ends the operator, or fails one of its elements.

    Attributes
    ----------
    newest_watermark : int or None
        The newest watermark that had come in when the restored snapshot was cut.
    """

    __slots__ = ("_merge", "_output_to", "newest_watermark")

    _lifecycle: StepLifecycle

    def __init__(
        self,
        options: OperatorOptions,
        subtask_info: SubtaskInfo,
        receiver: Outlet | Collector,
        merge: Merge | None,
        owner: Owner,
    ) -> None:
        output: Any = _ToStep(receiver) if isinstance(receiver, Outlet) else _ToSinks(receiver)
        self._output_to: _ToStep | _ToSinks = output
        self._merge = merge
        self.newest_watermark: int | None = None
        self._set_up(options, output, subtask_info, None, StepLifecycle(owner))

    @property
    def watermark(self) -> int | None:
        """The newest watermark that has left, but the final one."""
        return self._output_to.watermark

    async def empty(self, *, is_final: bool) -> None:
        """Wait until all that was taken in has left, with retries; timers that are due fire, and no later ones.

        Parameters
        ----------
        is_final : bool
            Whether no timestamp can come any more, so that all timers of event time fire.
        """
        if is_final:
            self.offer_watermark(FINAL)
        await self.finish()

    def refused(self, error: BaseException) -> None:
        """End the job: an element was not accepted, although it is not the element that is wrong."""
        self._lifecycle.fail(error)

    def cut(self, waiting: Iterable[Waiting]) -> SubtaskSnapshot:
        """Return the snapshot of the operator and of the elements on their way into it, without the final watermark."""
        cut = super().cut(waiting)
        if cut.watermark == FINAL:
            cut = replace(cut, watermark=self.watermark)
        if any(one.timestamp == FINAL for one in cut.in_flight if one.is_watermark):
            kept = (one for one in cut.in_flight if not (one.is_watermark and one.timestamp == FINAL))
            cut = replace(cut, in_flight=tuple(kept))
        return cut

    def stop(self) -> None:
        """Begin no more calls, cancel those under way, and let no output leave."""
        self._lifecycle.silence()
        super().stop()
        if self._parts is not None:
            self._parts.cancel()

    async def end_calls(self) -> None:
        """Wait until the cancelled calls have ended, and keep the state until `close`; call `stop` before."""
        if self._parts is not None:
            await self._parts.close()

    async def snapshot_complete(self, version: int, cut_id: str | None = None) -> None:
        """Tell the function of a commit, but do not wait for it for ever: a job has to end, and to rescale."""
        try:
            async with asyncio.timeout(COMPLETE_SECONDS_MAX) as limit:
                await super().snapshot_complete(version, cut_id)
        except TimeoutError:
            if not limit.expired():
                raise
            _log.warning(_UNHEARD, version, name_of(self._options.function), COMPLETE_SECONDS_MAX)

    def limits(self) -> ResilienceStatistics | None:
        """Return where the limits stand, and what this operator has done with them; any thread may ask."""
        return None if self._parts is None or self._parts.limits is None else self._parts.limits.statistics()

    def _fitting(self, queue: RestoredQueue) -> RestoredQueue:
        queue = queue if self._merge is None else self._merge(queue)
        marks = [one.timestamp for one in queue.elements if one.is_watermark]
        self._output_to.watermark, self.newest_watermark = queue.watermark, (marks or [queue.watermark])[-1]
        return super()._fitting(queue)


class StepSubtask(Subtask[Inlet]):
    """One subtask of a step. Its inbox is the inlet, and its outbox the outlet to the next step or the collector.

    Parameters
    ----------
    operator : StepOperator
        The operator.
    inlet : Inlet
        What is on its way.
    receiver : Outlet or Collector
        Where its outputs go.
    clock : Clock
        The source of time.
    """

    operator: StepOperator

    async def open(self, restore: SubtaskRestore | None = None, *, preload: bool = True) -> None:
        """Open the operator with its share of a snapshot."""
        await super().open(restore, preload=preload)
        self.inbox.begin_at(self.operator.newest_watermark)

    def fail(self, error: Exception) -> None:
        """End the job: an element was not accepted, although it is not the element that is wrong."""
        self.operator.refused(error)

    async def pump(self) -> None:
        """Move elements into the operator as it has room, for ever; those that need not wait go past the inlet."""
        self.inbox.straight = self._taken_straight
        try:
            await super().pump()
        finally:
            self.inbox.straight = None

    def _taken_straight(self, elements: Iterator[Element], count: int) -> bool:
        if self.is_held or self.operator.failure is not None or self.operator.free < count:
            return False
        try:
            self._take_in(elements)
        except BaseException as error:  # noqa: BLE001 - of the step, not of the source that hands them on
            self.operator.refused(error)
        return True

    def counted(self) -> Counted:
        """Return what it has counted since the last time, and the age of the oldest element without a result."""
        return self._since_last(self.operator.counted()) | {"oldest_call_seconds": self.oldest_call_seconds}

    async def drain(self, *, is_final: bool) -> None:
        """Wait until nothing is on its way in, and nothing in the operator; see `StepOperator.empty`."""
        await self.inbox.changed.wait_until(lambda: not self.inbox.elements)
        await self.operator.empty(is_final=is_final)
