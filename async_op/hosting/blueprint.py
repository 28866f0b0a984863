"""How a host makes and uses its operator; the driver pickles a blueprint once for each generation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from async_op.elements import Element, Record, Watermark
from async_op.subtask.operator import ResidentOperator
from async_op.subtask.subtask import CutPart


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
