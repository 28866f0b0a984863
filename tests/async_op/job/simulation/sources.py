"""What the simulated job reads: partitions of the test's own, an iterable, or files; each notices a replaced input."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, TypeVar

from fsspec.implementations.memory import MemoryFileSystem

from async_op.connectors import FileSource, InputReplaced, Reached, Source, Undecodable
from async_op.threads.own_thread import on_own_thread
from tests.async_op.job.simulation.scenario import Row, Scenario
from tests.async_op.job.simulation.world import World

_T = TypeVar("_T")


def source_of(world: World) -> Any:
    """Return a source for one run."""
    match world.scenario.source:
        case "log":
            return Log(world)
        case "files":
            return _files(world)
    rows = [row for partition in world.input.values() for row in partition]
    return world.draw.choice([list, iter, _stream])(rows)


def garbage(row: Row) -> str:
    """Return the record of an element that cannot be decoded: it lacks its end."""
    return json.dumps(row)[:-1]


def row_in(record: Any) -> Row:
    """Return the row that was to be in a record, from its dead letter."""
    text = record.decode() if isinstance(record, bytes) else record
    name, place, key = json.loads(f"{text.strip()}]")
    return name, place, key


class Log(Source[Any]):
    """Partitions with positions, which knows what it has read."""

    bounded = True
    on_error = "dead_letter"

    def __init__(self, world: World) -> None:
        self.world = world
        self.scenario: Scenario = world.scenario

    async def restore(self, known: Mapping[Any, Reached]) -> None:
        for partition, (position, content) in ((name, (one.position, one.content)) for name, one in known.items()):
            if position:
                self.world.check(content is not None, f"the content of {partition} was lost")
                self._check(partition, position, *content)

    def _check(self, partition: str, position: int, count: int, digest: int) -> None:
        rows = self.world.input[partition]
        if len(rows) < max(position, count) or _digest(rows[:count]) != digest:
            raise InputReplaced(partition, position, "it has other rows now", "use another name")

    def partitions(self) -> list[str]:
        return list(self.world.input)

    async def read(self, partition: Any, position: Any) -> AsyncIterator[Any]:
        draw, rows, first = self.world.draw, self.world.input[partition], position or 0
        yield self._reached(rows, first, first or min(3, len(rows)))
        for place, row in enumerate(rows[first:], first + 1):
            if draw.random() < 0.3:
                await asyncio.sleep(draw.random() / 5)
            item = (row, 1000 * place, place)
            if not self.scenario.is_record(row):
                item = Undecodable(garbage(row), place, ValueError("it is cut off"))
            yield [item] if draw.random() < 0.5 else item
            if draw.random() < 0.3:
                yield self._reached(rows, place, place)

    def _reached(self, rows: list[Row], position: int, count: int) -> Reached:
        return Reached(position, [count, _digest(rows[:count])])


def _digest(rows: Iterable[Row]) -> int:
    return zlib.crc32(repr(list(rows)).encode())


async def _stream(rows: list[Row]) -> AsyncIterator[Row]:
    for row in rows:
        yield row


# Files, in the memory of this process.


def _files(world: World) -> FileSource:
    folder = f"/input-{world.scenario.seed}"
    for number, (partition, rows) in enumerate(world.input.items()):
        lines = [_line(world.scenario, row) for row in rows]
        path = f"{folder}/{partition}.jsonl"
        MemoryFileSystem().pipe_file(path, "".join(lines).encode())
        # The time of a change, of which a restored file has the old one again.
        is_other = rows is not world.scenario.input[partition]
        MemoryFileSystem.store[path].created = dt.datetime(2026, 1, 1 + number, is_other, tzinfo=dt.UTC)
    return FileSource(f"memory:/{folder}/*.jsonl", "json", timestamp="at", on_error="dead_letter")


def _line(scenario: Scenario, row: Row) -> str:
    text = json.dumps({"row": row, "at": 1000 * row[1]}) if scenario.is_record(row) else garbage(row)
    return text + "\n"


class OnTheLoop:
    """Stands for the threads of a connector: work takes effect after some virtual time."""

    def __init__(self, name: str, count: int) -> None:
        """Take the arguments of threads."""

    async def run(self, work: Callable[[], _T]) -> _T:
        return await on_own_thread(work)

    def submit(self, work: Callable[[], object]) -> None:
        work()

    async def close(self) -> None:
        """Nothing is left."""


def read_so_far(world: World) -> list[str]:
    """Return the partitions of the input of which the newest snapshot has read something."""
    snapshot = world.store.load() if world.store.newest_version() else None
    if snapshot is None or "source" not in snapshot.step_names:
        return []
    count = snapshot.parallelism
    shares = [snapshot.restore(index, count, step="source").operator_state("positions") for index in range(count)]
    found = [partition for share in shares for partition, position in share if position]
    if world.scenario.source == "list":
        return [next(name for name, rows in world.input.items() if rows)] if found else []
    return sorted(str(name).rpartition("/")[2].removesuffix(".jsonl") for name in found)
