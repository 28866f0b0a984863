"""Runs of elements that share one call and, as long as they share its fate, one place in the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from async_op.elements import Call, Element, Entry, add_entries

if TYPE_CHECKING:
    from async_op.context import InvocationContext
    from async_op.queues import Segment


class Block:
    """Elements that were accepted one after the other. They are pending while `outputs` is None.

    `elements` are (value, timestamp, element id), `deadlines` belong to them if there is a timeout.

    A block becomes entries, one for each element, once one of them has a fate of its own: a failure, a timeout, or a
    function that looks at its context. `call` is what runs it; `contexts` are those of the entries if it was split
    during the call.
    """

    __slots__ = (
        "call",
        "contexts",
        "deadlines",
        "elements",
        "entries",
        "outputs",
        "segment",
        "sequence",
    )

    expired = False

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.elements: list[Element] = []
        self.deadlines: list[float] = []
        self.outputs: Sequence[Sequence[Any]] | None = None
        self.segment: Segment | None = None
        self.call: Call | None = None
        self.entries: list[Entry] | None = None
        self.contexts: list[InvocationContext] | None = None

    def __len__(self) -> int:
        return len(self.elements)

    @property
    def deadline(self) -> float | None:
        """When the first of its elements expires."""
        return self.deadlines[0] if self.deadlines else None

    def split(self) -> list[Entry]:
        """Become entries."""
        assert self.entries is None, "a block is split once"
        self.entries = self.to_entries()
        return self.entries

    def to_entries(self) -> list[Entry]:
        """Return the elements as new entries, for a look at them."""
        entries: list[Entry] = []
        add_entries(entries, self.elements, self.sequence)
        for entry, deadline in zip(entries, self.deadlines, strict=False):  # there is none without a timeout
            entry.deadline = deadline
        for entry, outputs in zip(entries, self.outputs or (), strict=False):
            entry.outputs = outputs
        return entries
