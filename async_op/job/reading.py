"""Reads the partitions of the source, finds new ones, and hands their elements to the first step."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import repeat
from typing import Any

from async_op.cancellation import closed_after
from async_op.clock import Clock
from async_op.connectors.conformance import misbehaved
from async_op.connectors.retrying import Attempts, retried
from async_op.connectors.source import PartitionId, Reached, Source, Undecodable, pause_between_looks
from async_op.dead_letters import DeadLetter, is_told
from async_op.in_flight.idempotency_keys import Identity, partition_text
from async_op.in_flight.waiters import Waiters
from async_op.job.channels import Outlet
from async_op.job.outputs import Collector
from async_op.job.positions import Partition, Positions, is_fixed, own_position
from async_op.job.source_items import Items, NoItem, sorted_out
from async_op.job.step import SOURCE
from async_op.job.task_group import TaskGroup
from async_op.job.waiting import connector
from async_op.statistics import Stopwatch
from async_op.threads.read_ahead import generator_closed_after, read_ahead
from keygroups.errors import ConfigError
from keygroups.representation import counted
from keygroups.safe_text import add_note, text_of
from keygroups.state.detached import own_copy

_log = logging.getLogger(__package__)

_IDLE_SUBTASKS = (
    "%d of %d subtasks of %s get no input: the source has %s, and without a key elements stay on the "
    "subtask of their partition; set parallelism=%d and a larger capacity=, or give step %s a key_by= that spreads the "
    "elements"
)

_SAME_POSITION = (
    "its read() gave two elements of partition {!r} the same position; give each element the position after it, which "
    "snapshots and idempotency keys are made of"
)

_READ_AHEAD = 16
"""How many items, or lists of items, a thread fetches before they are taken."""

_BOUNDED_READERS = 64
"""How many partitions of a bounded source are read at the same time; each may hold a file open."""


class Reading:
    """Reads the source. Only the thread of the event loop may call it.

    Parameters
    ----------
    source : Source
        The source, already open.
    positions : Positions
        How far it has been read.
    clock : Clock
        The source of time.
    tasks : TaskGroup
        Runs coroutines whose failure fails the job.
    news : Waiters
        Woken when the source has ended.
    identity : Identity
        What the idempotency keys of dead letters of the source have in common.
    collector : Collector
        Takes dead letters, and says whether the epoch has room for them.
    forwarded : sequence of str
        The names of the steps before the first key: each of their subtasks gets only partitions of its own.

    Attributes
    ----------
    records : int
        How many elements have been handed on in this run.
    moves : int
        How often a position has changed without an element.
    paused : Stopwatch
        Runs during pauses.
    undecodable : int
        How many records could not be decoded in this run.
    """

    def __init__(
        self,
        source: Source[Any],
        positions: Positions,
        clock: Clock,
        tasks: TaskGroup,
        news: Waiters,
        identity: Identity,
        collector: Collector,
        forwarded: Sequence[str] = (),
    ) -> None:
        self._source = source
        self._positions = positions
        self._clock = clock
        self._tasks = tasks
        self._entrances: Sequence[Outlet] = ()
        self._is_paused = False
        self.paused = Stopwatch(clock)
        self._has_looked = self._is_over = False
        self._slots = asyncio.Semaphore(_BOUNDED_READERS)
        self._gate = Waiters()
        self._news = news
        self._forwarded = forwarded
        self._partitions = 0
        self._unfinished = 0
        """How many partitions are being read. To count them whenever one ends would take the square of their number."""
        self._has_warned = False
        self._identity = identity
        self._collector = collector
        self.records = self.moves = self.undecodable = self._counted = 0

    @property
    def has_ended(self) -> bool:
        """Whether a bounded source has been read to its end."""
        return self._is_over and not self._unfinished

    def connect(self, entrances: Sequence[Outlet]) -> None:
        """Hand elements to a chain from now on; none until the first call, and none to an empty list."""
        self._entrances = entrances
        self._notice_idle_subtasks()
        self.advance()
        self._gate.wake()

    def pause(self, is_paused: bool) -> None:
        """Hand on no elements, or go on."""
        if is_paused is not self._is_paused:
            (self.paused.start if is_paused else self.paused.stop)()
        self._is_paused = is_paused
        self._gate.wake()

    def advance(self) -> None:
        """Send the watermarks of the source's subtasks, or that they are idle."""
        if not self._has_looked:
            return  # those that are about to be read would look idle
        marks = self._positions.watermarks(self._clock.time(), is_bounded=self._source.bounded)
        for entrance, (mark, is_idle) in zip(self._entrances, marks, strict=False):
            if mark is not None:
                entrance.put_watermark(mark)
            entrance.set_idle(is_idle)

    def count(self) -> int:
        """Return how many elements have been handed on since the last time."""
        newest, self._counted = self.records - self._counted, self.records
        return newest

    async def look(self) -> None:
        """Find partitions and have them read; an unbounded source is asked again and again."""
        while True:
            ids, took = await self._ids()
            for partition in self._positions.found(ids, self._clock.time()):
                self._unfinished += 1
                self._tasks.spawn(self._read(partition))
            self._has_looked, self._partitions = True, len(ids)
            self._notice_idle_subtasks()
            if self._source.bounded:
                self._is_over = True
                self._news.wake()
                return
            await asyncio.sleep(pause_between_looks(self._source.look_interval, took))

    def _notice_idle_subtasks(self) -> None:
        """Warn once if the source has too few partitions for all subtasks, which looks like a slow job otherwise."""
        count, subtasks = self._partitions, len(self._entrances)
        if self._forwarded and 0 < count < subtasks and not self._has_warned:
            self._has_warned = True
            steps = ("step " if len(self._forwarded) == 1 else "the steps ") + ", ".join(self._forwarded)
            partitions, first = counted(count, "partition"), self._forwarded[0]
            _log.warning(_IDLE_SUBTASKS, subtasks - count, subtasks, steps, partitions, count, first)

    async def _ids(self) -> tuple[list[PartitionId], float]:
        """Return the ids of all partitions, and how many seconds the attempt took that has found them."""

        async def timed() -> tuple[list[PartitionId], float]:
            begun = self._clock.time()
            return await listed(self._source), self._clock.time() - begun

        what = f"looking for partitions of {type(self._source).__name__}"
        with connector(what):
            return await retried(self._source.retry, what, timed)

    async def _read(self, partition: Partition) -> None:
        if not self._source.bounded:
            await self._read_all(partition)
            return
        async with self._slots:
            await self._read_all(partition)

    async def _read_all(self, partition: Partition) -> None:
        what = f"reading partition {partition.id!r} of {type(self._source).__name__}"
        with connector(what):
            name: object = self._source.full_name(partition.id)
            if not isinstance(name, str):
                raise misbehaved(self._source, "full_name()", name, "return text")
            partition.text = partition_text(name)
            async with aclosing(self._pieces(partition, what)) as pieces:
                async for run in pieces:
                    await self._hand_on(partition, run)
        partition.has_ended = True
        self._unfinished -= 1
        self._news.wake()

    async def _pieces(self, partition: Partition, what: str) -> AsyncGenerator[list[Any], None]:
        """Yield what the source yields; after a transient error it is read again from where the partition is."""
        attempts = Attempts(self._source.retry, what)
        while True:
            try:
                reader, is_blocking = self._reader(partition)
                async with closed_after(reader) as found:
                    async for piece in found:
                        yield piece if is_blocking else [piece]
                        attempts.succeeded()
                break
            except Exception as error:  # noqa: BLE001 - raised there, if it is final
                delay = attempts.delay_after(error)
            await asyncio.sleep(delay)

    def _reader(self, partition: Partition) -> tuple[AsyncIterator[Any], bool]:
        """Return an iterator of what a source yields, and whether it comes in runs from a thread."""
        items: Any = self._source.read(partition.id, own_copy(partition.position))
        if isinstance(items, AsyncIterator):
            return items, False
        if isinstance(items, str | bytes) or not isinstance(items, Iterable):
            raise misbehaved(self._source, "read()", items, "return an iterator, or write it with `yield`")
        return read_ahead(_with_own_positions(items), _READ_AHEAD), True

    async def _hand_on(self, partition: Partition, pieces: list[Any]) -> None:
        """Hand on what a partition has yielded in a row; its position advances with each element."""
        try:
            for piece in sorted_out(pieces):
                if isinstance(piece, Items):
                    await self._hand_on_items(partition, piece)
                elif isinstance(piece, Reached):
                    self.moves += self._positions.reached(partition, piece.position, piece.content)
                else:
                    await self._gate.wait_until(self._may_hand_on)
                    self._judge(partition, piece)
                    await self._room_for_letters()
        except NoItem as error:
            hint = "yield (value, timestamp, position), or a list of such"
            raise misbehaved(self._source, "read()", error.found, hint) from None

    async def _hand_on_items(self, partition: Partition, items: Items) -> None:
        partition.is_waiting, done, count = True, 0, len(items.values)
        while done < count:
            await self._gate.wait_until(self._may_hand_on)
            entrance = self._entrances[partition.subtask]
            if not entrance.has_room:
                await entrance.room()
                continue  # meanwhile, another chain may have come, or a pause
            some = items.part(done, done + entrance.free)
            timestamps = repeat(None) if some.timestamps is None else some.timestamps
            position = own_position(some.positions[-1])  # first, because it refuses arrays, which cannot be compared
            if partition.repeats(some.positions):
                raise ConfigError("source", self._source, _SAME_POSITION.format(partition.id))
            ids = partition.element_ids(some.positions)
            entrance.put_run(zip(some.values, timestamps, ids, strict=False), len(some.values))
            self._positions.passed(partition, some.newest(), position, self._clock.time())
            self.records += len(some.values)
            done += len(some.values)
            partition.is_waiting = done < count
            await asyncio.sleep(0)

    def _judge(self, partition: Partition, item: Undecodable) -> None:
        """Handle a record that cannot be decoded by the source's `on_error`; its position advances in the same turn."""
        if self._source.on_error == "fail":
            place = f"in partition {partition.id!r}, before position {item.position!r}"
            add_note(item.error, f"{self._source!r} yielded it {place}")
            raise item.error
        if self._source.on_error == "dead_letter":
            key = self._identity.key_of(partition.element_id(item.position))
            letter = DeadLetter(
                value=item.raw, timestamp=None, key=None, idempotency_key=key, attempts=0, error=item.error
            )
            self._collector.take_letter(letter, SOURCE)
        self.moves += 1
        self._positions.reached(partition, item.position, item.content)
        self.undecodable += 1
        if is_told(self.undecodable):
            so_far = counted(self.undecodable, "record")
            _log.warning("%s could not be decoded so far, the newest: %s", so_far, text_of(item.error))

    async def _room_for_letters(self) -> None:
        """Dead letters pass by the steps, so no step holds up the source when the epoch is full of them."""
        if not self._collector.has_room:
            await self._collector.room()

    def _may_hand_on(self) -> bool:
        return bool(self._entrances) and not self._is_paused


def _with_own_positions(pieces: Iterable[Any]) -> Iterator[Any]:
    """Yield what a blocking reader yields, with copies of its positions: the reader continues while its items wait.

    Nothing is copied after the first position that cannot change, because the positions of a source have one type.
    """
    with generator_closed_after(pieces) as reading:
        for piece in reading:
            items = piece if isinstance(piece, list) else [piece]
            own = [_with_own_position(item) for item in items]
            if any(type(item) is tuple and is_fixed(item[-1]) for item in own):
                yield piece
                yield from reading
                return
            yield own if isinstance(piece, list) else own[0]


def _with_own_position(item: Any) -> Any:
    if type(item) is tuple and item:
        return (*item[:-1], own_position(item[-1]))
    if isinstance(item, Undecodable | Reached):
        return replace(item, position=own_position(item.position), content=own_copy(item.content))
    return item


async def listed(source: Source[Any]) -> list[PartitionId]:
    """Return the ids of all partitions of a source, at one attempt; raises `ConfigError` if it gives something else."""
    ids: Any = source.partitions()
    if inspect.isawaitable(ids):
        ids = await ids
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise misbehaved(source, "partitions()", ids, "return a list of the ids of its partitions")
    return list(ids)
