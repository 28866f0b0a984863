"""What tests of jobs are made of: sources, functions and sinks that the test holds in its hand."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from async_op import AsyncFunction, InvocationContext, Job
from async_op.connectors import Sink, Source
from keygroups import ValueState

COUNT = ValueState("count", default=0)

_TINY_SECONDS = 1e-6


class Log(Source[Any]):
    """Partitions to which a test appends; positions are indexes."""

    def __init__(self, *partitions: Iterable[Any], bounded: bool = False) -> None:
        self.bounded = bounded
        self.logs: dict[Any, list[Any]] = {number: list(values) for number, values in enumerate(partitions)}
        self.grown = asyncio.Condition()
        self.read_from: list[tuple[Any, Any]] = []

    def partitions(self) -> list[Any]:
        return list(self.logs)

    async def append(self, partition: Any, *values: Any) -> None:
        async with self.grown:
            self.logs.setdefault(partition, []).extend(values)
            self.grown.notify_all()

    async def read(self, partition: Any, position: Any) -> AsyncIterator[Any]:
        self.read_from.append((partition, position))
        log, read = self.logs[partition], position or 0
        while True:
            for position, value in enumerate(log[read:], read + 1):
                yield value, value[1] if isinstance(value, tuple) else None, position
                read = position
            if self.bounded:
                return
            async with self.grown:
                while read == len(log):
                    await self.grown.wait()


class Epochs(Sink[Any]):
    """Keeps what it was given, epoch by epoch."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[Any]] = {}
        self.writes: list[int] = []
        self.opened = asyncio.Event()
        self.opened.set()
        self.changed = asyncio.Condition()

    async def write(self, values: Sequence[Any], epoch: int) -> None:
        self.writes.append(epoch)
        await self.opened.wait()
        assert epoch not in self.epochs or self.epochs[epoch] == list(values), "an epoch has changed"
        self.epochs[epoch] = list(values)
        async with self.changed:
            self.changed.notify_all()

    @property
    def values(self) -> list[Any]:
        return [value for epoch in sorted(self.epochs) for value in self.epochs[epoch]]

    async def have(self, count: int) -> None:
        """Wait until so many values have come."""
        async with asyncio.timeout(120), self.changed:
            await self.changed.wait_for(lambda: len(self.values) >= count)


class Counting(AsyncFunction[Any, Any]):
    """Counts the elements of each key; returns (key, count, idempotency key)."""

    states = (COUNT,)

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(ctx.key, count.value(), ctx.idempotency_key)]


class Gated(AsyncFunction[Any, Any]):
    """Returns its value once the test opens the gate."""

    def __init__(self) -> None:
        self.called: list[Any] = []
        self.gate = asyncio.Event()
        self.arrived = asyncio.Event()

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        self.called.append(value)
        self.arrived.set()
        await self.gate.wait()
        return [value]


async def same(value: Any) -> Any:
    """Return the value itself."""
    return value


class Watched:
    """A service that notes when calls begin, and how many are under way."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.begun: list[float] = []
        self.running = self.running_max = 0

    async def __call__(self, value: Any) -> Any:
        self.begun.append(asyncio.get_running_loop().time())
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            await self.wait()
            return self.answer(value)
        finally:
            self.running -= 1

    async def wait(self) -> None:
        """Take the time of a call."""
        await asyncio.sleep(self.seconds)

    def answer(self, value: Any) -> Any:
        return value

    def within(self, seconds: float) -> int:
        """Return the most calls that began within such a period."""
        return max(sum(0 <= began - first <= seconds + _TINY_SECONDS for began in self.begun) for first in self.begun)


AT_ITS_END = {"snapshot_interval": 3600.0}
"""For a job that cuts only once, at the end of its input, however long a busy machine takes until then."""


def new_job(source: Any, steps: Any, sink: Any, **options: Any) -> Job:
    """Return a job with a place of its own, which cuts often."""
    options = {"snapshots": f"memory://{uuid.uuid4().hex}", "job_id": "job", "snapshot_interval": 0.02} | options
    return Job(source, steps, sink, **options)


def put_back(snapshots: Path, versions: int) -> None:
    """Give up the newest versions of a job, as after a loss: no mark says what its sink has had."""
    manifests = sorted((snapshots / "job" / "manifests").iterdir())
    given_up = manifests[len(manifests) - versions :]
    for path in (*given_up, *(path for path in (snapshots / "job").iterdir() if path.is_file())):
        path.unlink()


@asynccontextmanager
async def running(job: Job) -> AsyncIterator[asyncio.Task[None]]:
    """Run a job beside a test; at the end it is stopped at a cut, unless it has ended."""
    task = asyncio.create_task(job.run())
    try:
        yield task
        if not task.done():
            job.stop(drain=False)
        await task
    finally:
        task.cancel()
        with suppress(BaseException):
            await task
