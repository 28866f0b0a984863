"""The outputs that have left an operator since its last cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from async_op.elements import Record, Watermark

RUN = 1024
"""How many outputs are packed at a time: packing one by one is slow, and packing all at the cut delays the calls."""


class Outbox:
    """Gathers outputs as packed runs. Only the thread of the event loop may call it.

    Parameters
    ----------
    pack : callable
        Returns a list of outputs as one object.

    Attributes
    ----------
    watermarks : int
        How many watermarks have left since the operator was opened; only their number is kept.
    outputs : int
        How many outputs have left since the operator was opened.
    """

    def __init__(self, pack: Callable[[list[Any]], Any]) -> None:
        self.watermarks = self.outputs = 0
        self._pack = pack
        self._runs: list[Any] = []
        self._run: list[Any] = []
        self._taken = 0

    def __len__(self) -> int:
        """Return the number of outputs that have not been taken."""
        return self.outputs - self._taken

    def put(self, element: Record | Watermark) -> None:
        """Add an element that leaves the operator."""
        if not isinstance(element, Record):
            self.watermarks += 1
            return
        self.outputs += 1
        self._run.append(element.value)
        if len(self._run) >= RUN:
            self._end_run()

    def take(self) -> list[Any]:
        """Return all outputs as packed runs, and forget them."""
        if self._run:
            self._end_run()
        runs, self._runs = self._runs, []
        self._taken = self.outputs
        return runs

    def _end_run(self) -> None:
        run, self._run = self._run, []
        self._runs.append(self._pack(run))
