"""Gathers elements for a batch function and makes one call for many."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Protocol, overload

from async_op.batch import Batch, count_elements
from async_op.blocks import Block
from async_op.cancellation import cancel_all
from async_op.clock import TimerHandle
from async_op.context import InvocationContext, Scope
from async_op.deadlines import Deadlines
from async_op.elements import Element, Entry
from async_op.errors import IncompleteBatch
from async_op.functions import AsyncBatchFunction
from async_op.in_flight import InFlight
from async_op.resilience import Limits
from async_op.statistics import LatencyHistogram
from async_op.workers import Outcomes, checked
from keygroups.errors import ConfigError

_SEQUENCES = frozenset({list, tuple})


class BatchOutcomes(Outcomes, Protocol):
    """What becomes of the calls for batches."""

    def complete_block(self, block: Block, outputs: Sequence[Sequence[Any]]) -> bool:
        """Take the outputs of a whole block, and tell whether that is possible without a look at each element."""
        ...


class Batches:
    """Elements that wait for company, and the calls that are made for them together.

    New elements are gathered in blocks, which cost next to nothing for each; entries join the same batches: those
    that are called for one by one per key, were restored, or are tried again. Only the thread of the event loop may
    call it.

    Parameters
    ----------
    function : AsyncBatchFunction
        What is called.
    scope : Scope
        What all invocations share.
    capacity : int
        How many elements may be called for at once; a larger batch would never fill.
    in_flight : InFlight
        Where new blocks go.
    deadlines : Deadlines
        Watches the time budgets of new blocks.
    latency : LatencyHistogram
        Gets the duration of each call.
    outcomes : BatchOutcomes
        Decides what becomes of each element.
    limits : Limits or None
        What a batch may have to wait for.

    Attributes
    ----------
    room : int
        How many more elements the next batch takes.
    calls : int
        How many elements have been called for.
    """

    __slots__ = (
        "_block",
        "_capacity",
        "_deadlines",
        "_full",
        "_function",
        "_in_flight",
        "_invoke",
        "_latency",
        "_outcomes",
        "_running",
        "_scope",
        "_size",
        "_stopped",
        "_timer",
        "_waiting",
        "_wanted",
        "calls",
        "room",
    )

    def __init__(
        self,
        function: AsyncBatchFunction,
        scope: Scope,
        capacity: int,
        in_flight: InFlight,
        deadlines: Deadlines,
        latency: LatencyHistogram,
        outcomes: BatchOutcomes,
        limits: Limits | None,
    ) -> None:
        if function.max_batch_size < 1 or function.max_batch_delay < 0:
            sizes = (function.max_batch_size, function.max_batch_delay)
            raise ConfigError("function", sizes, "max_batch_size is at least 1, max_batch_delay at least 0")
        self._function = function
        self._invoke = self._call_function if limits is None else limits.protect_batch(self._call_function)
        self._scope = scope
        self._in_flight = in_flight
        self._deadlines = deadlines
        self._latency = latency
        self._outcomes = outcomes
        self._capacity = capacity
        self._size = self.room = min(function.max_batch_size, capacity)
        self._waiting: list[Entry | Block] = []
        self._full = deque[list[Entry | Block]]()
        self._wanted = 0
        self._block: Block | None = None
        self._timer: TimerHandle | None = None
        self._running = set[asyncio.Task[None]]()
        self._stopped = False
        self.calls = 0

    def accept(self, value: Any, timestamp: int | None, element_id: str | None) -> None:
        """Take in a new element."""
        block = self._block or self._begin_block()
        block.elements.append((value, timestamp, element_id))
        if self._scope.timeout is not None:
            block.deadlines.append(self._scope.clock.time() + self._scope.timeout)
        self._in_flight.accepted += 1
        self.room -= 1
        if not self.room:
            self.flush()

    def take(self, source: Iterator[Element], room: int) -> bool:
        """Take in as many new elements as there is room for, here and elsewhere; tell whether there may be more."""
        room = min(room, self.room)
        elements: list[Element] = []
        try:
            elements.extend(islice(source, room))
        finally:
            if elements:  # also what came before an error
                self._accept_all(elements)
        return len(elements) == room

    def add(self, entry: Entry) -> None:
        """Let an entry join the next batch."""
        self._waiting.append(entry)
        self._start_timer()
        self.room -= 1
        if not self.room:
            self.flush()

    def remove(self, entry: Entry) -> bool:
        """Take back an entry that has not been called for, and tell whether there was one."""
        for members in (self._waiting, *self._full):
            if entry in members:
                members.remove(entry)
                self.room += members is self._waiting
                return True
        return False

    def end_block(self) -> None:
        """Let no more elements join the newest block, because something else follows it in the queue."""
        self._block = None

    def flush(self) -> None:
        """Make the call for those that wait, as soon as no more than `capacity` elements are called for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self._full.append(self._waiting)
        self._waiting, self._block, self.room = [], None, self._size
        self._launch()

    def split(self, block: Block) -> None:
        """Let each element of a pending block have its own fate."""
        entries = self._in_flight.queue.split(block)
        if isinstance(block.call, Batch):
            block.contexts = [block.call.context_of(entry, self._scope) for entry in entries]
            return
        members = next(members for members in (self._waiting, *self._full) if block in members)
        place = members.index(block)
        members[place : place + 1] = entries
        if block is self._block:
            self._block = None

    def stop(self) -> None:
        """Begin no more calls."""
        self._stopped = True
        self._full.clear()
        self._waiting.clear()
        self.flush()

    async def close(self) -> None:
        """Cancel all calls and wait until they have ended."""
        await cancel_all(self._running)

    def _accept_all(self, elements: list[Element]) -> None:
        block = self._block or self._begin_block()
        block.elements += elements
        if self._scope.timeout is not None:
            block.deadlines += [self._scope.clock.time() + self._scope.timeout] * len(elements)
        self._in_flight.accepted += len(elements)
        self.room -= len(elements)
        if not self.room:
            self.flush()

    def _begin_block(self) -> Block:
        block = self._block = Block(self._in_flight.accepted)
        self._in_flight.put_block(block)
        self._waiting.append(block)
        self._start_timer()
        if self._scope.timeout is not None:
            self._deadlines.arm(self._scope.clock.time() + self._scope.timeout)
        return block

    def _start_timer(self) -> None:
        if self._timer is None:
            due = self._scope.clock.time() + self._function.max_batch_delay
            self._timer = self._scope.clock.call_at(due, self.flush)

    def _launch(self) -> None:
        while self._full and not self._stopped:
            count = sum(map(count_elements, self._full[0]))
            if self._wanted + count > self._capacity:
                return
            members = self._full.popleft()
            if not members:
                continue
            self.calls += count
            self._wanted += count
            batch = Batch(members, self._scope, self._call, self._unwanted)
            self._running.add(batch.task)
            batch.task.add_done_callback(self._running.discard)

    def _unwanted(self, count: int) -> None:
        """Count elements that are not called for any more."""
        self._wanted -= count
        if self._full:
            self._launch()

    async def _call(self, batch: Batch) -> None:
        clock = self._scope.clock
        started = clock.time()
        try:
            results = await self._invoke(batch)
        except asyncio.CancelledError as error:
            if batch.task.cancelling():
                raise
            results = [error] * len(batch)
        except Exception as error:  # noqa: BLE001 - it is the failure of each element of the batch
            results = [error] * len(batch)
        self._latency.add(clock.time() - started)
        try:
            self._distribute(batch, results)
        except Exception as error:  # noqa: BLE001 - raised by the output
            self._outcomes.crash(error)
        finally:
            batch.end()

    async def _call_function(self, batch: Batch) -> Sequence[Any]:
        batch.drop_unwanted()
        results = await self._function.async_invoke_batch(batch.values(), Contexts(batch, self))
        return _one_for_each(len(batch), results)

    def _distribute(self, batch: Batch, results: Sequence[Any]) -> None:
        start = 0
        for member in batch.members:
            share = results[start : start + count_elements(member)] if len(batch.members) > 1 else results
            start += len(share)
            if isinstance(member, InvocationContext):
                self._settle(member, share[0])
            elif not self._complete_whole(member, share):
                for context, result in zip(self.contexts_of(member), share, strict=True):
                    self._settle(context, result)

    def _complete_whole(self, block: Block, results: Sequence[Any]) -> bool:
        if block.contexts is not None or not _SEQUENCES.issuperset(map(type, results)):
            return False
        return self._outcomes.complete_block(block, results)

    def contexts_of(self, block: Block) -> list[InvocationContext]:
        """Return the contexts of a block that is being called for; takes it apart."""
        if block.contexts is None:
            self.split(block)
        assert block.contexts is not None, "it is being called for"
        return block.contexts

    def _settle(self, invocation: InvocationContext, result: Any) -> None:
        if not isinstance(result, BaseException):
            try:
                result = checked(result)
            except Exception as error:  # noqa: BLE001 - raised by the outputs: it is the failure of the element
                result = error
        if isinstance(result, BaseException):
            self._outcomes.end(invocation.entry, invocation, result)
        else:
            self._outcomes.complete(invocation.entry, invocation, result)


class Contexts(Sequence[InvocationContext]):
    """The contexts of a batch, made when the function asks for one."""

    def __init__(self, batch: Batch, batches: Batches) -> None:
        self._batch = batch
        self._batches = batches

    @cached_property
    def _contexts(self) -> list[InvocationContext]:
        found: list[InvocationContext] = []
        for member in self._batch.members:
            found += self._batches.contexts_of(member) if isinstance(member, Block) else [member]
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


def _one_for_each(count: int, results: Iterable[Any]) -> Sequence[Any]:
    if not isinstance(results, list | tuple):
        results = list(results)
    if len(results) != count:
        raise IncompleteBatch(count, len(results))
    return results
