"""Gives committed epochs to the sinks, one after the other, beside later cuts."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from async_op.connectors.delivering import Refused, SinkAttempts
from async_op.connectors.errors import UnwritableValue
from async_op.connectors.sink import Sink
from async_op.in_flight.waiters import Waiters
from async_op.job.cancellation import connector
from async_op.job.errors import DeadLettersUnclaimed
from async_op.job.outputs import values_in
from async_op.threads.own_thread import on_own_thread
from snapshots import Snapshot
from snapshots.format.delivered import Delivered
from snapshots.format.sink_notes import RefusedOutput, SinkNotes

_T = TypeVar("_T")
_log = logging.getLogger(__package__)

UNDELIVERED_MAX = 2
"""With so many epochs that the sink has not had, the source pauses, and no timer fires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """A committed epoch with outputs.

    Attributes
    ----------
    number : int
        The version that added them.
    tables : callable
        Returns their rows, in pieces.
    mark : callable
        Stores the mark that the sink has had them.
    identity : Delivered
        What tells the epoch from one of the same number in another history.
    close : callable
        Releases what the epoch holds.
    """

    number: int
    tables: Callable[[], Iterable[pa.Table]]
    mark: Callable[[], None]
    identity: Delivered
    close: Callable[[], None]


class Delivery:
    """Delivers epochs in their order. Only the thread of the event loop may call it.

    Parameters
    ----------
    sink : Sink
        Gets the outputs.
    dead_letters : Sink or None
        Gets the dead letters of the epoch, among them outputs that the sink refuses.
    notes : SinkNotes
        What the job remembers of its sinks.

    Attributes
    ----------
    changed : Waiters
        Woken when an epoch has come or was delivered.
    refused : int
        How many outputs sinks have refused in this run.
    """

    def __init__(self, sink: Sink[Any], dead_letters: Sink[Any] | None, notes: SinkNotes) -> None:
        self._sink = sink
        self._dead_letters = dead_letters
        self._notes = notes
        self._hurry = asyncio.Event()
        self.refused = 0
        self._waiting = deque[Epoch]()
        self.changed = Waiters(lambda: None)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, epoch: Epoch) -> None:
        """Have an epoch delivered after those before it."""
        self._waiting.append(epoch)
        self.changed.wake()

    async def open(self, sink: Sink[Any]) -> None:
        """Open one of the two sinks, and tell it whether it has epochs of this job."""
        sink.was_written = await on_own_thread(self._notes.was_written, self._role(sink), repr(sink))
        with connector(f"opening {type(sink).__name__}"):
            await self._tried(sink, None, sink.open)

    def hurry(self) -> None:
        """Wait no longer between attempts: the next one is the last."""
        self._hurry.set()

    async def run(self) -> None:
        """Deliver epochs for ever."""
        while True:
            await self.changed.wait_until(lambda: bool(self._waiting))
            await self._deliver(self._waiting[0])
            await on_own_thread(self._waiting.popleft().close)
            self.changed.wake()

    async def all_delivered(self) -> None:
        """Wait until no epoch waits."""
        await self.changed.wait_until(lambda: not self._waiting)

    def close(self) -> None:
        """Release what the epochs hold that were not delivered."""
        while self._waiting:
            self._waiting.popleft().close()

    async def _deliver(self, epoch: Epoch) -> None:
        outputs, letters = await on_own_thread(lambda: values_in(epoch.tables()))
        if letters and self._dead_letters is None:
            raise DeadLettersUnclaimed(epoch.number, len(letters))
        if outputs:
            letters += await self._write_outputs(epoch, outputs)
        if letters and self._dead_letters is not None:
            await self._write(self._dead_letters, epoch, letters, {})
        await on_own_thread(_mark, epoch)

    async def _write_outputs(self, epoch: Epoch, outputs: list[Any]) -> list[Any]:
        """Write outputs; returns the dead letters of what was refused.

        Dead letters are written afterwards, in one call for the epoch: what a sink refuses is known once it has taken
        the rest. A crash in between loses none of them, because refused outputs are noted before the rest is written.
        """
        noted = {}
        if self._sink.on_error == "dead_letter":
            noted = await on_own_thread(self._notes.refused, epoch.identity)
        refused = await self._write(self._sink, epoch, outputs, noted)
        return refused.letters(outputs) if self._sink.on_error == "dead_letter" else []

    async def _write(
        self, sink: Sink[Any], epoch: Epoch, values: list[Any], noted: dict[int, RefusedOutput]
    ) -> Refused:
        refused = Refused(sink, epoch.number, noted)
        while rest := refused.left(values):
            doing = f"writing epoch {epoch.number} to {type(sink).__name__}"
            try:
                with connector(doing):
                    await self._tried(sink, epoch.number, lambda: sink.write(rest, epoch.number))
                break
            except UnwritableValue as error:
                if sink.on_error == "fail":
                    raise
                failure = error
            with connector(doing):
                found = await self._tried(sink, epoch.number, lambda: sink.refused(rest))
            refused.add(found, failure)
            if sink.on_error == "dead_letter":
                await on_own_thread(self._notes.note_refused, epoch.identity, refused.outputs)
        self.refused += len(refused.outputs)
        if len(refused.outputs) < len(values):
            await on_own_thread(_note_written, self._notes, self._role(sink), sink)
        return refused

    async def _tried(self, sink: Sink[Any], epoch: int | None, work: Callable[[], Awaitable[_T]]) -> _T:
        """Return what the work returns, at the first attempt that succeeds."""
        attempts = SinkAttempts(sink, epoch)
        while True:
            try:
                return await work()
            except Exception as error:  # noqa: BLE001 - raised unless it may pass
                delay = attempts.delay_after(error, is_last=self._hurry.is_set())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), delay)

    def _role(self, sink: Sink[Any]) -> str:
        return "outputs" if sink is self._sink else "dead_letters"


def stored_epochs(snapshot: Snapshot) -> list[Epoch]:
    """Return the epochs of a snapshot that no sink is known to have had."""
    return [
        Epoch(
            number=stored.version,
            tables=lambda stored=stored: (pa.Table.from_batches([batch]) for batch in stored.batches()),  # type: ignore[misc]
            mark=stored.mark_delivered,
            identity=stored.identity,
            close=lambda: None,
        )
        for stored in snapshot.undelivered()
    ]


def _mark(epoch: Epoch) -> None:
    try:
        epoch.mark()
    except OSError as error:
        _log.warning("epoch %d was delivered but not marked, a restart delivers it again: %s", epoch.number, error)


def _note_written(notes: SinkNotes, role: str, sink: Sink[Any]) -> None:
    try:
        notes.note_written(role, repr(sink))
    except OSError as error:
        _log.warning("that %r has epochs of this job could not be noted: %s", sink, error)
