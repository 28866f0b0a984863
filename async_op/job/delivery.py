"""Gives committed epochs to the sinks, one after the other, beside later cuts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from async_op.connectors.errors import ConnectorInterrupted
from async_op.connectors.sink import Sink
from async_op.epochs.coordinator import Coordinator
from async_op.epochs.delivery import Ask, Letters, Note, Pause, RefusedOutputs, SinkDelivery, Steps, Values
from async_op.epochs.position import SinkEpochs
from async_op.in_flight.waiters import Waiters
from async_op.job.errors import ConnectorCancelled, DeadLettersUnclaimed
from async_op.job.outputs import values_in
from async_op.job.waiting import connector, told_if_long
from async_op.threads.own_thread import on_own_thread
from snapshots import Snapshot
from snapshots.format.delivered import Delivered
from snapshots.restore.outputs import StoredOutputs

UNDELIVERED_MAX = 2
"""With so many epochs that the sink has not had, the source pauses, and no timer fires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedEpoch:
    """A committed epoch with outputs.

    Attributes
    ----------
    identity : Delivered
        Its number, which is the version that added the outputs, and what tells it from one of another history.
    tables : callable
        Returns the rows of its outputs, in pieces.
    close : callable
        Releases what the epoch holds.
    """

    identity: Delivered
    tables: Callable[[], Iterable[pa.Table]]
    close: Callable[[], None]


class JobDelivery(SinkDelivery):
    """Delivers epochs in their order. Only the thread of the event loop may call it.

    Dead letters are written after the outputs, in one call for the epoch: what a sink refuses is known once it has
    taken the rest. A crash in between loses none of them, because refused outputs are noted before the rest is written.
    """

    letters_come_first = False

    def __init__(
        self,
        coordinator: Coordinator,
        lineage: str,
        sink: Sink[Any],
        dead_letters: Sink[Any] | None,
        epochs: SinkEpochs,
    ) -> None:
        super().__init__(coordinator, lineage, sink, dead_letters, epochs)
        self._hurry = asyncio.Event()
        self._waiting = deque[CommittedEpoch]()
        self.changed = Waiters()
        """Woken when an epoch has come or was delivered."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, epoch: CommittedEpoch) -> None:
        """Have an epoch delivered after those before it."""
        self._waiting.append(epoch)
        self.changed.wake()

    async def open(self, sink: Sink[Any], opening: Callable[[], Awaitable[None]]) -> None:
        """Open one of the two sinks, and tell it whether it has epochs of this job."""
        await self._done(self.opened(sink, opening))

    def hurry(self) -> None:
        """Wait no longer between attempts: the next one is the last."""
        self._hurry.set()

    @property
    def is_hurried(self) -> bool:
        """Whether the next attempt is the last."""
        return self._hurry.is_set()

    async def run(self) -> None:
        """Deliver epochs for ever."""
        while True:
            await self.changed.wait_until(lambda: bool(self._waiting))
            await self._done(self._deliver(self._waiting[0]))
            await on_own_thread(self._waiting.popleft().close)
            self.changed.wake()

    async def all_delivered(self) -> None:
        """Wait until no epoch waits."""
        await self.changed.wait_until(lambda: not self._waiting)

    def close(self) -> None:
        """Release what the epochs hold that were not delivered."""
        while self._waiting:
            self._waiting.popleft().close()

    def _deliver(self, epoch: CommittedEpoch) -> Steps[None]:
        outputs, letters = yield Note(lambda: values_in(epoch.tables()))
        if letters and self._dead_letters is None:
            raise DeadLettersUnclaimed(epoch.identity.epoch, len(letters))
        if outputs:
            content = Values(outputs, lambda: values_in(epoch.tables())[0])
            letters += yield from self._write_outputs(epoch.identity, content)
        if letters and self._dead_letters is not None:
            yield from self.written(self._dead_letters, epoch.identity, Letters(letters))
        yield from self.marked(epoch.identity)

    def _write_outputs(self, epoch: Delivered, outputs: Values) -> Steps[list[Any]]:
        """Write outputs; returns the dead letters of what was refused."""
        if self._sink.on_error != "dead_letter":
            yield from self.written(self._sink, epoch, outputs)
            return []
        noted = yield Note(lambda: self._notes.refused(epoch))
        refused = yield from self.written(self._sink, epoch, outputs, noted)
        return refused.letters(outputs)

    def _keep(self, refused: RefusedOutputs, content: Values) -> Steps[None]:
        yield Note(lambda: self._notes.note_refused(refused.epoch, refused.outputs))

    async def _done(self, steps: Steps[None]) -> None:
        """Take steps to their end."""
        resume, given = steps.send, None
        with suppress(StopIteration):
            while True:
                step = resume(given)
                try:
                    resume, given = steps.send, await self._take(step)
                except (ConnectorCancelled, ConnectorInterrupted):
                    raise  # another attempt cannot help
                except Exception as error:  # noqa: BLE001 - raised where the step was asked for
                    resume, given = steps.throw, error

    async def _take(self, step: Ask | Note | Pause) -> Any:
        if isinstance(step, Note):
            return await on_own_thread(step.work)
        if isinstance(step, Ask):
            with told_if_long(step.doing), connector(step.doing):
                return await step.work()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), step.seconds)
        return None


def tables_in(stored: StoredOutputs) -> Iterator[pa.Table]:
    """Yield stored outputs, in pieces; blocks."""
    return (pa.Table.from_batches([batch]) for batch in stored.batches())


def stored_epochs(snapshot: Snapshot) -> list[CommittedEpoch]:
    """Return the epochs of a snapshot that no sink is known to have had."""
    return [
        CommittedEpoch(
            identity=stored.identity,
            tables=partial(tables_in, stored),
            close=lambda: None,
        )
        for stored in snapshot.undelivered()
    ]
