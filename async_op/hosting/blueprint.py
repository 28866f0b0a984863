"""How a host makes and uses its operator; the driver pickles a blueprint once for each generation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from async_op.elements import Element, Record, Watermark
from async_op.hosting.operator import ResidentOperator
from snapshots import SubtaskSnapshot


@dataclass(frozen=True, slots=True)
class CutPart:
    """What a cut takes in one step of the event loop.

    Attributes
    ----------
    version : int
        The version that it belongs to once it is committed.
    cut_id : str
        The id of the cut, which the manifest will name.
    snapshot : SubtaskSnapshot
        The state and the elements in flight.
    runs : list
        The outputs since the last cut, in packed runs.
    next_timer, next_event_timer : int or None
        When the operator's first timers are to fire, by the clock and by the watermark; None without timers.
    """

    version: int
    cut_id: str
    snapshot: SubtaskSnapshot
    runs: list[Any]
    next_timer: int | None = None
    next_event_timer: int | None = None


class Blueprint(Protocol):
    """Makes the operators of one generation, decodes their input, and writes their parts."""

    def operator(self, subtask_index: int, output: Callable[[Record | Watermark], object]) -> ResidentOperator:
        """Return the operator of a subtask, not opened yet; it calls `output` with what leaves it."""
        ...

    def decoder(self, epoch: Any) -> Callable[[Any], Iterable[Element]]:
        """Return what makes elements of rows in one epoch: called once for each feed, in their order."""
        ...

    def bytes_of(self, rows: Any) -> int:
        """Return the size of rows as they are fed."""
        ...

    def pack(self, outputs: list[Any]) -> Any:
        """Return a run of outputs as one object."""
        ...

    async def write(self, part: CutPart, target: Any) -> Any:
        """Write a part while calls go on, never a manifest (H4); returns the handle by which the driver commits it."""
        ...
