"""One call for many elements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from operator import itemgetter
from typing import Any

from async_op.blocks import Block
from async_op.context import InvocationContext, Scope
from async_op.elements import Entry

_value_of = itemgetter(0)


class Batch:
    """One call for many elements, in a task of its own.

    Attributes
    ----------
    members : list of (Block or InvocationContext)
        Blocks, and the contexts of entries, in the order of the call's values.
    task : asyncio.Task
        Makes the call.
    """

    __slots__ = ("_tell_unwanted", "_wanted", "members", "task")

    def __init__(
        self,
        waiting: Iterable[Entry | Block],
        scope: Scope,
        call: Callable[[Batch], Coroutine[Any, Any, None]],
        unwanted: Callable[[int], None],
    ) -> None:
        self._tell_unwanted = unwanted
        self.members: list[Block | InvocationContext] = []
        for member in waiting:
            if isinstance(member, Block):
                member.call = self
                self.members.append(member)
            else:
                self.members.append(self.context_of(member, scope))
        self._wanted = len(self)
        # Not by a task factory: an eager one would run it before anybody knows about it.
        self.task = asyncio.Task(call(self), loop=asyncio.get_running_loop(), name="keygroups batch")

    def __len__(self) -> int:
        return sum(map(count_elements, self.members))

    def context_of(self, entry: Entry, scope: Scope) -> InvocationContext:
        """Begin an invocation of this call for an entry."""
        entry.call = self
        entry.invocation = context = InvocationContext()
        context.entry, context.scope, context.transaction = entry, scope, None
        return context

    def interrupt(self) -> None:
        """Count an element whose result is not wanted any more, and cancel the call if none is."""
        self._wanted -= 1
        if not self._wanted:
            self.task.cancel()
        self._tell_unwanted(1)

    def end(self) -> None:
        """Tell that the call has ended."""
        self._tell_unwanted(self._wanted)

    def values(self) -> list[Any]:
        """Return the values of all members."""
        found: list[Any] = []
        for member in self.members:
            found += map(_value_of, member.elements) if isinstance(member, Block) else [member.entry.value]
        return found


def count_elements(member: Block | Entry | InvocationContext) -> int:
    """Return how many elements a member of a batch is."""
    return len(member) if isinstance(member, Block) else 1
