"""What a host is told about the operator that it keeps; the driver pickles it once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from async_op.elements import Element, Record, Watermark
from async_op.hosting.operator import ResidentOperator
from snapshots import SubtaskSnapshot


@dataclass(frozen=True, slots=True)
class CutPart:
    """What was taken in one step of the loop.

    Attributes
    ----------
    version : int
        That it belongs to, if it is committed.
    cut_id : str
        Names the cut.
    snapshot : SubtaskSnapshot
        State and queue.
    runs : list
        The outputs since the last cut, packed.
    next_timer, next_event_timer : int or None
        When the first timers that the operator keeps are to fire, by the clock and by the watermark.
    """

    version: int
    cut_id: str
    snapshot: SubtaskSnapshot
    runs: list[Any]
    next_timer: int | None = None
    next_event_timer: int | None = None


class Blueprint(Protocol):
    """Makes the operators of one generation, feeds them and writes their parts."""

    def operator(self, subtask_index: int, output: Callable[[Record | Watermark], object]) -> ResidentOperator:
        """Return the operator of a subtask, not opened."""
        ...

    def decoder(self, epoch: Any) -> Callable[[Any], Iterable[Element]]:
        """Return what makes elements of the rows of one epoch, one call for each feed, in their order."""
        ...

    def pack(self, outputs: list[Any]) -> Any:
        """Make one object of a run of outputs."""
        ...

    async def write(self, part: CutPart, target: Any) -> Any:
        """Write a part beside the calls, never a manifest (H4); returns the handle by which the driver commits it."""
        ...
