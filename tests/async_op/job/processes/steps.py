"""Functions that children can import, and a program with a job of two processes."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from async_op import AsyncFunction, InvocationContext, Job, Step
from async_op.connectors import Sink, Source
from keygroups import ValueState

COUNT = ValueState("count", default=0)


async def plus_one(value: int) -> int:
    return value + 1


async def same(value: Any) -> Any:
    return value


def by_length(value: str) -> int:
    return len(value)


def by_type(value: Any) -> str:
    return type(value).__name__


def by_seven(value: int) -> int:
    return value % 7


def by_five(value: int) -> int:
    return value % 5


class Counted(AsyncFunction[int, Any]):
    """Returns the key, how many elements it has had, the idempotency key, and the value."""

    states = (COUNT,)

    async def async_invoke(self, value: int, ctx: InvocationContext) -> list[Any]:
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(ctx.key, count.value(), ctx.idempotency_key, value)]


@dataclass
class Ending(AsyncFunction[int, Any]):
    """Ends its process at an element, unless a file says that it may go on."""

    how: str
    mended: Path
    at: int = 50

    async def async_invoke(self, value: int, ctx: InvocationContext) -> list[Any]:
        if value == self.at and not self.mended.exists():
            match self.how:
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "fault":
                    faulthandler._sigsegv()  # type: ignore[attr-defined]
                case "exit":
                    os._exit(3)
                case "stop":
                    os.kill(os.getpid(), signal.SIGSTOP)
                case "raise":
                    raise ValueError("of no use")
        return [value]


class Logging(AsyncFunction[int, Any]):
    """Logs its elements, as information and for debugging."""

    async def async_invoke(self, value: int, ctx: InvocationContext) -> list[Any]:
        log = logging.getLogger("tests.steps")
        log.info("element %d", value)
        log.debug("detail %d", value)
        return []


class Interrupted(AsyncFunction[int, Any]):
    """Raises something at its end that is no `Exception`."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    async def async_invoke(self, value: int, ctx: InvocationContext) -> list[Any]:
        return [value]

    async def close(self) -> None:
        raise self.error


class WithProgram(AsyncFunction[int, Any]):
    """Starts a program for each element, and terminates it."""

    async def async_invoke(self, value: int, ctx: InvocationContext) -> list[Any]:
        program = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(1000)")
        program.terminate()
        return [await program.wait()]


@dataclass
class WithFork(AsyncFunction[int, Any]):
    """Forks a process that outlives its own one, and then may end its own."""

    pids: Path
    is_killed: bool

    async def async_invoke(self, value: int, ctx: InvocationContext) -> list[Any]:
        if value == 0:
            left = os.fork()
            if not left:
                time.sleep(60)  # noqa: ASYNC251 - no event loop runs in the fork
                self.pids.with_suffix(".ended").touch()
                os._exit(0)
            self.pids.write_text(str(left))
            if self.is_killed:
                os.kill(os.getpid(), signal.SIGKILL)
        return [value]


class Said(AsyncFunction[int, Any]):
    """Returns what its process has of the parent, and prints."""

    async def async_invoke(self, value: int, ctx: InvocationContext) -> list[Any]:
        print("printed by a child", end="")  # noqa: T201
        return [(os.getppid(), os.environ.get("SAID"), str(Path.cwd()))]


class Hanging(AsyncFunction[int, Any]):
    """Says which process it is in, then waits: on its loop, or so that nothing else can happen there."""

    def __init__(self, folder: Path, *, blocks: bool) -> None:
        self.folder = folder
        self.blocks = blocks

    async def async_invoke(self, value: int, ctx: InvocationContext) -> list[Any]:
        (self.folder / f"{os.getpid()}").touch()
        if self.blocks:
            time.sleep(1000)  # noqa: ASYNC251 - as a function does that should not
        await asyncio.Event().wait()
        return [value]


class Endless(Source[int]):
    """Yields numbers until it is stopped."""

    bounded = False

    def partitions(self) -> list[int]:
        return [0, 1]

    async def read(self, partition: Any, position: Any) -> AsyncIterator[Any]:
        place = position or 0
        while True:
            for _ in range(50):
                yield 2 * place + partition, None, place + 1
                place += 1
            await asyncio.sleep(0.001)


class Kept(Sink[Any]):
    """Keeps what it was given, epoch by epoch."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[Any]] = {}

    async def write(self, values: Any, epoch: int) -> None:
        assert self.epochs.setdefault(epoch, list(values)) == list(values)

    @property
    def values(self) -> list[Any]:
        return [value for epoch in sorted(self.epochs) for value in self.epochs[epoch]]


def steps() -> list[Step]:
    """Two steps whose elements go from process to process."""
    return [Step(plus_one, "first", key_by=by_five), Step(Counted(), "second", key_by=by_seven)]


if __name__ == "__main__":
    folder, how = Path(sys.argv[1]), sys.argv[2]
    step = Step(Hanging(folder, blocks=how == "blocks"), "hanging", key_by=by_seven)
    job = Job(Endless(), step, Kept(), snapshots=folder / "snapshots", job_id="job", processes=2)
    job.run_sync()
