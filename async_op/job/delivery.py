"""Gives committed epochs to the sinks, one after the other, beside later cuts."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from async_op.connectors.sink import Sink
from async_op.in_flight.waiters import Waiters
from async_op.job.cancellation import connector
from async_op.job.errors import DeadLettersUnclaimed
from async_op.job.outputs import values_in
from async_op.threads.own_thread import on_own_thread
from snapshots import Snapshot

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
    close : callable
        Releases what the epoch holds.
    """

    number: int
    tables: Callable[[], Iterable[pa.Table]]
    mark: Callable[[], None]
    close: Callable[[], None]


class Delivery:
    """Delivers epochs in their order. Only the thread of the event loop may call it.

    Parameters
    ----------
    sink : Sink
        Gets the outputs.
    dead_letters : Sink or None
        Gets the dead letters of the epoch, before its outputs.

    Attributes
    ----------
    changed : Waiters
        Woken when an epoch has come or was delivered.
    """

    def __init__(self, sink: Sink[Any], dead_letters: Sink[Any] | None) -> None:
        self._sink = sink
        self._dead_letters = dead_letters
        self._waiting = deque[Epoch]()
        self.changed = Waiters(lambda: None)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, epoch: Epoch) -> None:
        """Have an epoch delivered after those before it."""
        self._waiting.append(epoch)
        self.changed.wake()

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
        if letters:
            if self._dead_letters is None:
                raise DeadLettersUnclaimed(epoch.number, len(letters))
            with connector(f"writing the dead letters of epoch {epoch.number} to {type(self._dead_letters).__name__}"):
                await self._dead_letters.write(letters, epoch.number)
        if outputs:
            with connector(f"writing epoch {epoch.number} to {type(self._sink).__name__}"):
                await self._sink.write(outputs, epoch.number)
        await on_own_thread(_mark, epoch)


def stored_epochs(snapshot: Snapshot) -> list[Epoch]:
    """Return the epochs of a snapshot that no sink is known to have had."""
    return [
        Epoch(
            number=stored.version,
            tables=lambda stored=stored: (pa.Table.from_batches([batch]) for batch in stored.batches()),  # type: ignore[misc]
            mark=stored.mark_delivered,
            close=lambda: None,
        )
        for stored in snapshot.undelivered()
    ]


def _mark(epoch: Epoch) -> None:
    try:
        epoch.mark()
    except OSError as error:
        _log.warning("epoch %d was delivered but not marked, a restart delivers it again: %s", epoch.number, error)
