"""`BatchCall`: one call for many elements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from operator import itemgetter
from typing import Any

from async_op.calls.isolation import CallContexts, values_of_their_own
from async_op.context import InvocationContext, Scope
from async_op.in_flight.entries import Block, Entry
from async_op.spending import Spending

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

    __slots__ = ("_tell_unwanted", "contexts", "members", "spending", "task", "wanted")

    def __init__(
        self,
        waiting: Iterable[Entry | Block],
        scope: Scope,
        call: Callable[[BatchCall], Coroutine[Any, Any, None]],
        unwanted: Callable[[int], None],
        contexts: CallContexts,
    ) -> None:
        self._tell_unwanted = unwanted
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
        self.task: asyncio.Task[None] = contexts.start(call(self), "keygroups batch")

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
        self._tell_unwanted(1)

    def end(self) -> None:
        """Mark the call as ended."""
        self._tell_unwanted(self.wanted)

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


def count_elements(member: Block | Entry | InvocationContext) -> int:
    """Return how many elements a member of a batch stands for."""
    return len(member) if isinstance(member, Block) else 1
