"""Makes the calls of a batch function, and gives each element of a batch its outcome."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, overload

from async_op.call_costs import Spending
from async_op.calls.completion import Completion
from async_op.calls.isolation import CallContexts, values_of_their_own
from async_op.cancellation import cancel_all, tasks_if_all_are_cancelled
from async_op.errors import IncompleteBatch
from async_op.functions.base import AsyncBatchFunction
from async_op.functions.context import InvocationContext, Scope
from async_op.in_flight.entries import Block, Entry
from async_op.in_flight.queues import ElementQueue
from async_op.outputs import are_plain, are_single, checked, one_for_each
from async_op.resilience import Limits
from async_op.retry import seconds_asked
from async_op.statistics import LatencyHistogram
from async_op.threads.watchdog import Turn

_value_of = itemgetter(0)


class BatchCall:
    """One call for many elements, in its own task.

    Attributes
    ----------
    contexts : dict of Block to list of InvocationContext
        The contexts of blocks that were split during the call, in the order of their elements.
    spending : Spending or None
        What the call has spent, where costs are counted.
    members : list of (Block or InvocationContext)
        Blocks and the contexts of entries, in the order of the call's values.
    task : asyncio.Task
        The task that makes the call.
    wanted : int
        How many elements still need their results.
    """

    __slots__ = ("_calls", "contexts", "members", "spending", "task", "wanted")

    def __init__(
        self, waiting: Iterable[Entry | Block], scope: Scope, calls: BatchCalls, contexts: CallContexts
    ) -> None:
        self._calls = calls
        self.members: list[Block | InvocationContext] = []
        self.contexts: dict[Block, list[InvocationContext]] = {}
        self.spending: Spending | None = None
        for member in waiting:
            if isinstance(member, Block):
                member.call = self
                self.members.append(member)
            else:
                self.members.append(self.context_of(member, scope))
        self.wanted: int = len(self)
        self.task: asyncio.Task[None] = contexts.start(calls.make(self), "keygroups batch")

    def __len__(self) -> int:
        return sum(map(count_elements, self.members))

    def context_of(self, entry: Entry, scope: Scope) -> InvocationContext:
        """Begin an invocation for an entry that belongs to this call."""
        entry.call = self
        entry.invocation = context = InvocationContext()
        context.entry, context.scope, context.handles = entry, scope, None
        return context

    def take_apart(self, block: Block, entries: Iterable[Entry], scope: Scope) -> None:
        """Begin an invocation for each entry of a block that was split during this call."""
        self.contexts[block] = [self.context_of(entry, scope) for entry in entries]

    def interrupt(self) -> None:
        """Stop waiting for the result of one element; cancel the call once no result is wanted."""
        self.wanted -= 1
        if not self.wanted:
            self.task.cancel()
        self._calls.unwanted(1)

    def end(self) -> None:
        """Mark the call as ended."""
        self._calls.unwanted(self.wanted)

    def drop_unwanted(self) -> None:
        """Drop elements whose time budget ran out while the batch waited for a limit."""
        if self.wanted == len(self):
            return
        members, self.members = self.members, []
        for member in members:
            contexts = self.contexts.get(member) if isinstance(member, Block) else [member]
            if contexts is None:
                self.members.append(member)
            else:
                self.members += [context for context in contexts if context.entry.invocation is context]

    def values(self) -> list[Any]:
        """Return the values of all members, in order, for a function that may change them."""
        found: list[Any] = []
        for member in self.members:
            found += map(_value_of, member.elements) if isinstance(member, Block) else [member.entry.value]
        return values_of_their_own(found)


class BatchCalls:
    """Full batches and the calls for them. Only the thread of the event loop may use it.

    Parameters
    ----------
    function : AsyncBatchFunction
        The function to call.
    scope : Scope
        The settings and services that all invocations share.
    contexts : CallContexts
        The context variables that calls see.
    capacity : int
        The most elements in running calls; it also bounds the size of a batch.
    queue : ElementQueue
        The queue in which blocks are split.
    latency : LatencyHistogram
        Receives the duration of each call.
    completion : Completion
        Takes the outcome of each element.
    limits : Limits or None
        The limits that a batch may have to wait for.
    turn : Turn
        Says when calls that block have kept the event loop for too long.

    Attributes
    ----------
    calls : int
        How many elements have been passed to the function.
    """

    __slots__ = (
        "_called_for",
        "_capacity",
        "_completion",
        "_contexts",
        "_full",
        "_function",
        "_invoke",
        "_latency",
        "_queue",
        "_running",
        "_scope",
        "_stopped",
        "_turn",
        "calls",
    )

    def __init__(
        self,
        function: AsyncBatchFunction,
        scope: Scope,
        contexts: CallContexts,
        capacity: int,
        queue: ElementQueue,
        latency: LatencyHistogram,
        completion: Completion,
        limits: Limits | None,
        turn: Turn,
    ) -> None:
        self._function = function
        self._turn = turn
        self._invoke = self._call_function if limits is None else limits.protect_batch(self._call_function)
        self._scope = scope
        self._contexts = contexts
        self._capacity = capacity
        self._queue = queue
        self._latency = latency
        self._completion = completion
        self._full = deque[list[Entry | Block]]()
        self._called_for = 0
        self._running = set[asyncio.Task[None]]()
        self._stopped = False
        self.calls = 0

    def add(self, members: list[Entry | Block]) -> None:
        """Make the call for a batch, as soon as it fits into `capacity` with the elements of running calls."""
        if members:
            self._full.append(members)
        self._launch()

    def remove(self, entry: Entry) -> bool:
        """Remove an entry whose call has not begun; returns whether there was one."""
        return any(remove_member(members, entry) for members in self._full)

    def split(self, block: Block) -> None:
        """Split a pending block, so that each element can have its own outcome."""
        if isinstance(block.call, BatchCall):
            block.call.take_apart(block, self._queue.split(block), self._scope)
        else:
            members = next(members for members in self._full if block in members)
            replace_member(members, block, self._queue.split(block))

    def stop(self) -> None:
        """Begin no more calls."""
        self._stopped = True
        self._full.clear()

    def cancel(self) -> None:
        """Cancel all calls at once; `close` waits until they have ended."""
        for task in self._running:
            task.cancel()

    async def close(self) -> None:
        """Cancel all calls and wait until they have ended."""
        await cancel_all(self._running)

    def contexts_of(self, batch: BatchCall, block: Block) -> list[InvocationContext]:
        """Return the contexts of a block during its call; this splits the block."""
        if block not in batch.contexts:
            self.split(block)
        return batch.contexts[block]

    def _launch(self) -> None:
        while self._full and not self._stopped:
            count = sum(map(count_elements, self._full[0]))
            if self._called_for + count > self._capacity:
                return
            members = self._full.popleft()
            if not members:
                continue
            self.calls += count
            self._called_for += count
            batch = BatchCall(members, self._scope, self, self._contexts)
            self._running.add(batch.task)
            batch.task.add_done_callback(self._running.discard)

    def unwanted(self, count: int) -> None:
        """Free the room of elements whose results are no longer wanted."""
        self._called_for -= count
        if self._full:
            self._launch()

    async def make(self, batch: BatchCall) -> None:
        """Make the call for a batch, and give each element its outcome."""
        clock = self._scope.clock
        started = clock.time()
        try:
            await self._turn.given()
            results = await self._invoke(batch)
        except asyncio.CancelledError as error:
            if self._is_cancelled(batch):
                if batch.wanted:  # otherwise `interrupt` cancelled it
                    self._completion.crash(error)
                raise
            results = [error] * len(batch)
        except BaseException as error:  # noqa: BLE001 - the error is the outcome of each element
            results = [error] * len(batch)
        self._latency.add(clock.time() - started)
        try:
            self._contexts.run(self._distribute, batch, results)  # where nothing sees what the call has set
        except BaseException as error:  # noqa: BLE001 - raised by a callback of the operator
            self._completion.crash(error)
        finally:
            batch.end()

    def _is_cancelled(self, batch: BatchCall) -> bool:
        """Return whether the operator has cancelled a batch, or the end of the program has.

        If its function has cancelled the task that it runs in, the batch has failed.
        """
        is_ending = self._stopped or not batch.wanted
        return batch.task.cancelling() > 0 and (is_ending or tasks_if_all_are_cancelled() is not None)

    async def _call_function(self, batch: BatchCall) -> Sequence[Any]:
        batch.drop_unwanted()
        contexts = Contexts(batch, self)
        results = one_for_each(await self._function.async_invoke_batch(batch.values(), contexts))
        if len(results) != len(batch):
            raise IncompleteBatch(len(batch), len(results))
        self._heed(results)
        return results

    def _heed(self, results: Sequence[Any]) -> None:
        """Let no call begin for as long as the service has asked for in place of a result."""
        hold = self._scope.hold
        if hold is not None:
            for result in results:
                if isinstance(result, BaseException) and (seconds := seconds_asked(result)) is not None:
                    hold(seconds)

    def _distribute(self, batch: BatchCall, results: Sequence[Any]) -> None:
        start = 0
        for member in batch.members:
            share = results[start : start + count_elements(member)] if len(batch.members) > 1 else results
            start += len(share)
            if isinstance(member, InvocationContext):
                self._settle(member, share[0])
            elif not self._complete_whole(batch, member, share):
                for context, result in zip(self.contexts_of(batch, member), share, strict=True):
                    self._settle(context, result)

    def _complete_whole(self, batch: BatchCall, block: Block, results: Sequence[Any]) -> bool:
        if block in batch.contexts:
            return False
        block.is_one_to_one = are_single(results)
        if not block.is_one_to_one and not are_plain(results):
            return False
        return self._completion.complete_block(block, results)

    def _settle(self, invocation: InvocationContext, result: Any) -> None:
        if not isinstance(result, BaseException):
            try:
                result = checked(result)
            except BaseException as error:  # noqa: BLE001 - the error of its outputs is the element's outcome
                result = error
        if isinstance(result, BaseException):
            self._completion.end(invocation.entry, invocation, result)
        else:
            self._completion.complete(invocation.entry, invocation, result)


class Contexts(Sequence[InvocationContext]):
    """The contexts of a batch, created when the function first uses one."""

    def __init__(self, batch: BatchCall, calls: BatchCalls) -> None:
        self._batch = batch
        self._calls = calls

    @cached_property
    def _contexts(self) -> list[InvocationContext]:
        found: list[InvocationContext] = []
        for member in self._batch.members:
            found += self._calls.contexts_of(self._batch, member) if isinstance(member, Block) else [member]
        if self._batch.spending is not None:
            for context in found:
                context.spending = self._batch.spending
        return found

    def __len__(self) -> int:
        return len(self._batch)

    def __iter__(self) -> Iterator[InvocationContext]:
        return iter(self._contexts)

    @overload
    def __getitem__(self, index: int) -> InvocationContext: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[InvocationContext]: ...

    def __getitem__(self, index: int | slice) -> InvocationContext | Sequence[InvocationContext]:
        return self._contexts[index]


def remove_member(members: list[Entry | Block], entry: Entry) -> bool:
    """Remove an entry from a batch; returns whether it was in the batch."""
    if entry not in members:
        return False
    members.remove(entry)
    return True


def replace_member(members: list[Entry | Block], block: Block, entries: Iterable[Entry]) -> None:
    """Replace a block in a batch by its entries."""
    place = members.index(block)
    members[place : place + 1] = entries


def count_elements(member: Block | Entry | InvocationContext) -> int:
    """Return how many elements a member of a batch stands for."""
    return len(member) if isinstance(member, Block) else 1
