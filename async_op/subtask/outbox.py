"""The outputs that have left an operator since its last cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from async_op.elements import Record, Watermark
from async_op.in_flight.in_flight import ValueOutput
from async_op.in_flight.waiters import Waiters

RUN = 1024
"""How many outputs are packed at a time: packing one by one is slow, and packing all at the cut delays the calls."""


class Outbox(ValueOutput):
    """Gathers outputs as packed runs. Only the thread of the event loop may call it.

    Parameters
    ----------
    pack : callable
        Returns a list of outputs as one object.
    limit : int
        With this many outputs it is full between two epochs. In an epoch it never is: the cut takes all outputs soon.

    Attributes
    ----------
    watermarks : int
        How many watermarks have left since the operator was opened; only their number is kept.
    outputs : int
        How many outputs have left since the operator was opened.
    is_bounded : bool
        Whether the limit holds.
    """

    def __init__(self, pack: Callable[[list[Any]], Any], limit: int) -> None:
        self.watermarks = self.outputs = 0
        self.is_bounded = True
        self._changed = Waiters()
        self._senders: list[Callable[[], object]] = []
        self._pack = pack
        self._limit = limit
        self._runs: list[Any] = []
        self._run: list[Any] = []
        self._taken = 0

    def __len__(self) -> int:
        """Return the number of outputs that have not been taken."""
        return self.outputs - self._taken

    @property
    def has_room(self) -> bool:
        """Whether the operator may go on to make outputs."""
        return not self.is_bounded or len(self) < self._limit

    def on_change(self, sender: Callable[[], object]) -> None:
        """Have something called whenever `has_room` may have changed."""
        self._senders.append(sender)

    async def room(self) -> None:
        """Wait until the operator may go on."""
        await self._changed.wait_until(lambda: self.has_room)

    def bound(self, is_bounded: bool) -> None:
        """Let the limit hold, or not."""
        self.is_bounded = is_bounded
        self._tell()

    def __call__(self, output: Record | Watermark) -> None:
        """Add an output or a watermark that leaves the operator."""
        if isinstance(output, Watermark):
            self.watermarks += 1
        else:
            super().__call__(output)

    def extend(self, values: Iterable[Any], /) -> None:
        """Add outputs that leave the operator together."""
        run = self._run
        before = len(run)
        run += values
        self.outputs += len(run) - before
        while len(self._run) >= RUN:
            self._end_run()
        if self.is_bounded and self.outputs - self._taken >= self._limit:
            self._tell()

    def take(self) -> list[Any]:
        """Return all outputs as packed runs, and forget them."""
        if self._run:
            self._end_run()
        runs, self._runs = self._runs, []
        self._taken = self.outputs
        return runs

    def _tell(self) -> None:
        for sender in self._senders:
            sender()
        self._changed.wake()

    def _end_run(self) -> None:
        run, self._run = self._run[:RUN], self._run[RUN:]
        self._runs.append(self._pack(run))
