"""Collects elements for a batch function until a batch is full or has waited long enough."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from async_op.calls.batch_calls import BatchCalls, remove_member, replace_member
from async_op.calls.completion import Completion
from async_op.calls.value_checks import Vet
from async_op.clock import TimerHandle
from async_op.elements import Element, ElementId
from async_op.functions.base import AsyncBatchFunction
from async_op.functions.context import Scope
from async_op.in_flight.entries import Block, Entry, new_entry
from async_op.in_flight.in_flight import InFlight
from async_op.timers.deadlines import Deadlines
from keygroups.arguments import seconds_of


class Batching:
    """Collects elements into batches and has the calls for full batches made.

    New elements are collected in blocks, at almost no cost per element. Entries join the same batches: elements with
    keys, restored elements and retries. Only the thread of the event loop may call it.

    Parameters
    ----------
    function : AsyncBatchFunction
        Sets the size of a batch and how long it waits.
    scope : Scope
        What all invocations share.
    capacity : int
        The operator's capacity; a larger batch would never fill.
    in_flight : InFlight
        Takes new blocks.
    deadlines : Deadlines
        Watches the timeouts of new blocks.
    calls : BatchCalls
        Makes the calls.
    vet : Vet or None
        Refuses values; None takes all.
    completion : Completion
        Takes the entry of a value that is refused.

    Attributes
    ----------
    room : int
        How many more elements the next batch takes.
    """

    __slots__ = (
        "_block",
        "_calls",
        "_completion",
        "_deadlines",
        "_function",
        "_in_flight",
        "_scope",
        "_size",
        "_timer",
        "_vet",
        "_waiting",
        "room",
    )

    def __init__(
        self,
        function: AsyncBatchFunction,
        scope: Scope,
        capacity: int,
        in_flight: InFlight,
        deadlines: Deadlines,
        calls: BatchCalls,
        vet: Vet | None,
        completion: Completion,
    ) -> None:
        self._vet = vet
        self._completion = completion
        self._function = function
        self._scope = scope
        self._in_flight = in_flight
        self._deadlines = deadlines
        self._calls = calls
        self._size = self.room = min(function.max_batch_size, capacity)
        self._waiting: list[Entry | Block] = []
        self._block: Block | None = None
        self._timer: TimerHandle | None = None

    def accept(self, value: Any, timestamp: int | None, element_id: ElementId | None) -> None:
        """Accept a new element."""
        error = None if self._vet is None else self._vet.error_of(value)
        if error is not None:
            self._drop((value, timestamp, element_id), error)
        else:
            self._accept(value, timestamp, element_id)

    def _accept(self, value: Any, timestamp: int | None, element_id: ElementId | None) -> None:
        block = self._block or self._begin_block()
        block.elements.append((value, timestamp, element_id))
        if self._scope.timeout is not None:
            block.deadlines.append(self._scope.clock.time() + self._scope.timeout)
        self._in_flight.grow(1)
        self.room -= 1
        if not self.room:
            self.flush()

    def take(self, source: Iterator[Element], room: int) -> bool:
        """Accept as many elements as `room` and the next batch allow; returns whether the source may have more."""
        room = min(room, self.room)
        elements: list[Element] = []
        try:
            elements.extend(islice(source, room))
        finally:
            if elements:  # even if the source then raised an error
                self._accept_all(elements)
        return len(elements) == room

    def add(self, entry: Entry) -> None:
        """Add an entry to the next batch."""
        self._waiting.append(entry)
        self._start_timer()
        self.room -= 1
        if not self.room:
            self.flush()

    def remove(self, entry: Entry) -> bool:
        """Remove an entry whose call has not begun; returns whether there was one."""
        if remove_member(self._waiting, entry):
            self.room += 1
            return True
        return self._calls.remove(entry)

    def end_block(self) -> None:
        """Close the newest block to further elements, because something else follows it in the queue."""
        self._block = None

    def flush(self) -> None:
        """Make the call for the waiting elements now, even if the batch is not full."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        members, self._waiting, self._block, self.room = self._waiting, [], None, self._size
        self._calls.add(members)

    def split(self, block: Block) -> None:
        """Let each element of a pending block have its own fate."""
        if block not in self._waiting:
            self._calls.split(block)
            return
        replace_member(self._waiting, block, self._in_flight.queue.split(block))
        if block is self._block:
            self._block = None

    def stop(self) -> None:
        """Begin no more calls."""
        self._waiting.clear()
        self._calls.stop()
        self.flush()

    @property
    def calls(self) -> int:
        """How many elements have been passed to the function."""
        return self._calls.calls

    def cancel(self) -> None:
        """Cancel all calls at once; `close` waits until they have ended."""
        self._calls.cancel()

    async def close(self) -> None:
        """Cancel all calls and wait until they have ended."""
        await self._calls.close()

    def _drop(self, element: Element, error: Exception) -> None:
        self.end_block()
        entry = new_entry(*element, self._in_flight.accepted)
        self._in_flight.put((entry,))
        self._completion.refuse(entry, error)

    def _accept_all(self, elements: list[Element]) -> None:
        refused = {} if self._vet is None else self._vet.errors_among([value for value, _, _ in elements])
        if refused:
            for index, element in enumerate(elements):
                if index in refused:
                    self._drop(element, refused[index])
                else:
                    self._accept(*element)
            return
        block = self._block or self._begin_block()
        block.elements += elements
        if self._scope.timeout is not None:
            block.deadlines += [self._scope.clock.time() + self._scope.timeout] * len(elements)
        self._in_flight.grow(len(elements))
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
            due = self._scope.clock.time() + seconds_of(self._function.max_batch_delay)
            self._timer = self._scope.clock.call_at(due, self.flush)
