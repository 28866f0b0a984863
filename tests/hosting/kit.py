"""Operators for hosts of these tests, which a process of its own can import, and a task that feeds them."""

from __future__ import annotations

import asyncio
import ctypes
import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from async_op import AsyncFunction, InvocationContext
from async_op.elements import Element
from async_op.hosting import messages as say
from async_op.hosting.epoch import Epoch, Ran, run
from async_op.hosting.errors import HostUnreachable
from async_op.hosting.fed_subtask import CutPart
from async_op.hosting.feeder import Feeder, HostChannel, Waiting
from async_op.hosting.fencing import Fence, NewestManifest
from async_op.hosting.host_settings import HostSettings
from async_op.hosting.messages import Address
from async_op.hosting.process import host_process
from async_op.hosting.process.host_files import HostFiles
from async_op.hosting.process.host_process import Instructions
from async_op.hosting.process.launch import launch
from async_op.hosting.wire.sockets import connecting
from async_op.subtask.operator import ResidentOperator
from async_op.threads.wait_strategies import Arrival, WaitStrategy
from keygroups import ValueState

COUNT = ValueState("count", pa.int64(), default=0)
GENERATION = "run, operator, 1"
SECRET = b"the run's"
IMPATIENT = {"patience_seconds": 4.0, "lease_seconds": 8.0}


class Counting(AsyncFunction):
    """Counts per key; a row says how long its call takes, or until which file is there, and what else it does."""

    states = (COUNT,)

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        action = value["action"]
        if action == "block":
            time.sleep(value["seconds"])  # noqa: ASYNC251 - what a host must survive
        elif action == "hold the interpreter":
            ctypes.PyDLL(None).usleep(int(1e6 * value["seconds"]))
        elif action == "fail":
            raise ValueError(value["key"])
        elif action == "redirect":
            sys.stderr = sys.stdout = io.StringIO()
        elif action == "die":
            os.kill(os.getpid(), 9)
        elif action == "segfault":
            ctypes.string_at(0)
        elif action == "print":
            print("printed by the function")  # noqa: T201
        elif action == "exit":
            os._exit(3)
        elif action == "eat":
            return [bytearray(1 << 46)]
        elif action.startswith("/"):
            while not _is_there(action):
                await asyncio.sleep(0.01)
        else:
            await asyncio.sleep(value["seconds"])
        number = ctx.state(COUNT).value() + 1
        ctx.state(COUNT).update(number)
        return [(value["key"], number)]


@dataclass(frozen=True)
class Releasing:
    """Creates a file with the first wait, then waits as another strategy does: a call that waits for it outlasts it."""

    strategy: WaitStrategy
    path: Path

    def idle(self, idle_count: int, arrival: Arrival) -> int:
        self.path.touch()
        return self.strategy.idle(idle_count, arrival)


def _is_there(path: str) -> bool:
    return Path(path).exists()


def wait_for(path: str) -> None:
    """Block until a file is there; for the process of a host."""
    wait_until(partial(_is_there, path))


class FailingOpen(Counting):
    async def open(self, runtime: Any) -> None:
        raise ConnectionError("no service")


class BlockingOpen(Counting):
    """Blocks its event loop until a file is there."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def open(self, runtime: Any) -> None:
        wait_for(self.path)


def tell_soon() -> None:
    """Have a host tell soon that its function is being opened."""
    host_process._TOLD_SECONDS = 0.1


class InterruptedOpen(Counting):
    raised: type[BaseException] = SystemExit

    async def open(self, runtime: Any) -> None:
        raise self.raised


class CancelledOpen(InterruptedOpen):
    raised = asyncio.CancelledError


class Straying(Counting):
    """Leaves a task behind that raises what ends an event loop."""

    async def open(self, runtime: Any) -> None:
        self.stray = asyncio.create_task(self.wander())
        # Else asyncio tells of the error when garbage is collected, in the middle of another test.
        self.stray.add_done_callback(asyncio.Task.exception)

    async def wander(self) -> None:
        raise SystemExit


class FailingClose(Counting):
    async def close(self) -> None:
        raise TimeoutError("no answer")


class StuckClose(Counting):
    async def close(self) -> None:
        await asyncio.sleep(3600)


@dataclass(frozen=True)
class OperatorFactory:
    """What is fed are record batches; parts are what was cut, as values, or written as a snapshot."""

    function: Callable[[], AsyncFunction] = Counting
    capacity: int = 100

    def operator(self, subtask_index: int, output: Callable[[Any], object]) -> ResidentOperator:
        return ResidentOperator(
            self.function(), output, key_by=lambda row: row["key"], capacity=self.capacity, max_parallelism=8
        )

    def decoder(self, epoch: Any) -> Callable[[Any], Iterable[Element]]:
        numbers = count()
        return lambda rows: ((row, None, f"{epoch}-{next(numbers)}") for row in rows.to_pylist())

    def bytes_of(self, rows: Any) -> int:
        return int(rows.nbytes)

    def pack(self, outputs: list[Any]) -> Any:
        return outputs

    async def write(self, part: CutPart, target: Any) -> Any:
        outputs = [output for run in part.runs for output in run]
        if target is None:
            return part.cut_id, outputs, [element.value["key"] for element in part.snapshot.in_flight]
        return await asyncio.to_thread(target.write_subtask, part.snapshot, None), outputs


def rows(*keys: str, seconds: float = 0.0, action: str = "sleep") -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"key": key, "seconds": seconds, "action": action} for key in keys])


def hello(version: int = 0, attempt: int = 1, *, cut_id: str | None = None, timeout: float | None = None) -> say.Hello:
    named = NewestManifest(f"manifest {version}" if version else None, cut_id)
    return say.Hello(GENERATION, Fence(version, attempt), named, f"job {attempt}", version, say.EpochEnd(timeout))


def settings(**changes: Any) -> HostSettings:
    return replace(HostSettings(generation=GENERATION, subtask_index=0), **changes)


def driven(waiting: Waiting[Any]) -> Any:
    """Run a feeder's generator to its end."""
    while True:
        try:
            next(waiting)
        except StopIteration as end:
            return end.value


def epoch(channel: HostChannel, greeting: say.Hello, batches: Iterable[pa.RecordBatch] = ()) -> Any:
    """Feed a host for one epoch; returns the cut's id, the outputs and the keys in flight."""
    feeder = Feeder(channel)
    try:
        assert driven(feeder.hello(greeting)) is None
        driven(feeder.feed(batches))
        driven(feeder.settle())
        part: say.Part = driven(feeder.cut(say.Cut(greeting.fence.version + 1)))
        return part.handle
    finally:
        feeder.close()


def ask(channel: HostChannel, message: say.Message) -> say.Reply:
    """Send a message and return the reply, which must come within a bounded time."""
    replies: list[say.Reply] = []
    channel.send(message)

    def has_come() -> bool:
        reply = channel.receive()
        replies.extend([] if reply is None else [reply])
        return bool(replies)

    wait_until(has_come)
    return replies[0]


@dataclass
class Machine:
    """A folder in which hosts are started."""

    folder: Path
    instructions: Callable[..., Instructions]

    def start(self, **changes: Any) -> Address:
        address: Address = driven(launch(self.instructions(**changes)))
        return address

    def ways(self, known: Sequence[Address] = ()) -> OneWay:
        return OneWay(self, list(known))


@dataclass
class OneWay:
    """How a task of these tests gets at hosts: it starts none in itself."""

    machine: Machine
    addresses: list[Address]

    def known(self) -> Sequence[Address]:
        return self.addresses

    def connect(self, address: Address) -> Waiting[HostChannel]:
        return connecting(address, SECRET)

    def give_up(self, address: Address) -> None:
        """A new host waits for the lock of the old one, and kills it if it hangs."""

    def start(self) -> Waiting[Address]:
        try:
            return (yield from launch(self.machine.instructions()))
        except HostUnreachable as error:
            raise AssertionError(f"a host can be started, but {error}") from error

    def in_task(self) -> Waiting[HostChannel]:
        raise AssertionError("there is no other attempt, and a host that has started answers")
        yield


def task(ways: OneWay, greeting: say.Hello, batches: Iterable[pa.RecordBatch] = ()) -> tuple[Any, Address | None]:
    """Run an epoch as a task does."""
    epoch = Epoch(hello=greeting, cut=say.Cut(greeting.fence.version + 1), batches=batches)
    ran: Ran = driven(run(ways, epoch))
    return ran.part.handle, ran.address


def pid_of(place: HostFiles) -> int | None:
    """Return the process that has a place, as the kernel's table of locks tells."""
    try:
        inode = place.lock.stat().st_ino
    except FileNotFoundError:
        return None
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].split(":")[-1] == str(inode):
            return int(fields[4])
    return None


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never happens"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it ended before, or while, its state was read
        return False
    return state != "Z"


def pid(machine: Machine) -> int:
    found = pid_of(machine.instructions().place)
    assert found is not None
    return found


def left(machine: Machine) -> list[str]:
    return [path.name for path in machine.folder.rglob("*")]
