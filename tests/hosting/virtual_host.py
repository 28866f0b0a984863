"""A host in this loop, on virtual time, and a task that feeds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from types import SimpleNamespace
from typing import Any

from async_op import AsyncFunction, InvocationContext
from async_op.elements import Element
from async_op.hosting import messages as say
from async_op.hosting.fed_subtask import CutPart
from async_op.hosting.fencing import Fence, NewestManifest
from async_op.hosting.host import Host
from async_op.hosting.host_settings import HostSettings
from async_op.subtask.operator import ResidentOperator
from async_op.testing import VirtualLoop
from keygroups import ValueState
from snapshots import InFlightElement
from snapshots.format.in_flight_elements import RestoredQueue
from tests.simulation.abandon import run_alone

GENERATION = "run"
SEEN = ValueState("seen", default=0)
ROW_BYTES = 10


@dataclass
class Calls(AsyncFunction):
    """Waits for as long as a value says, in seconds; a negative one fails after that."""

    made: list[float] = field(default_factory=list)
    states = (SEEN,)

    async def async_invoke(self, value: float, ctx: InvocationContext) -> list[float]:
        self.made.append(value)
        await asyncio.sleep(abs(value))
        if value < 0:
            raise ValueError(value)
        ctx.state(SEEN).update(ctx.state(SEEN).value() + 1)
        return [value]


class Ticking(Calls):
    """Arms a timer that arms itself again, every second."""

    async def async_invoke(self, value: float, ctx: InvocationContext) -> list[float]:
        ctx.timers.register(ctx.timers.processing_time + 1000)
        return []

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[int]:
        ctx.timers.register(timestamp + 1000)
        return [timestamp]


class Alarmed(Calls):
    """Arms a timer of event time for each value."""

    async def async_invoke(self, value: float, ctx: InvocationContext) -> list[float]:
        await asyncio.sleep(abs(value))
        ctx.timers.register(int(value), event_time=True)
        return [value]

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[str]:
        return [f"timer {timestamp}"]


@dataclass
class Kit:
    """Makes one operator; parts are what was cut."""

    function: Calls = field(default_factory=Calls)
    options: dict[str, Any] = field(default_factory=dict)
    write_seconds: float = 0.0

    def operator(self, subtask_index: int, output: Callable[[Any], object]) -> ResidentOperator:
        options = {"key_by": abs, "max_parallelism": 4} | self.options
        return ResidentOperator(self.function, output, **options)

    def decoder(self, epoch: Any) -> Callable[[Any], Iterable[Element]]:
        numbers = count()
        return lambda rows: [(row, None, f"{epoch}-{next(numbers)}") for row in rows]

    def bytes_of(self, rows: Any) -> int:
        return ROW_BYTES * len(rows)

    def pack(self, outputs: list[Any]) -> list[Any]:
        return outputs

    async def write(self, part: CutPart, target: Any) -> Any:
        await asyncio.sleep(self.write_seconds)
        if isinstance(target, Exception):
            raise target
        return part


@dataclass
class Run:
    """A host, and a task that feeds it."""

    host: Host
    version: int = 0
    cut_id: str | None = None
    feeder: str = "a task"

    def greeting(self, timeout: float | None = None) -> say.Hello:
        named = NewestManifest(f"m{self.version}" if self.version else None, self.cut_id)
        return say.Hello(GENERATION, Fence(self.version, 1), named, "job", self.version, say.EpochEnd(timeout))

    async def hello(self, timeout: float | None = None, **changes: Any) -> say.Reply:
        return await self.host.answer(self.feeder, replace(self.greeting(timeout), **changes))

    async def feed(self, *values: float) -> say.Reply:
        return await self.host.answer(self.feeder, say.Feed(values))

    async def settle(self) -> None:
        assert await self.host.answer(self.feeder, say.Settle()) == say.Done()

    async def cut(self) -> CutPart:
        reply = await self.host.answer(self.feeder, say.Cut(self.version + 1))
        assert isinstance(reply, say.Part), reply
        self.version += 1
        self.cut_id = reply.handle.cut_id
        self.metrics = reply.metrics
        part: CutPart = reply.handle
        return part

    async def epoch(self, *values: float, timeout: float | None = None) -> CutPart:
        assert await self.hello(timeout) == say.Done()
        await self.feed(*values)
        await self.settle()
        return await self.cut()

    async def status(self) -> say.Status:
        status = await self.host.answer("the driver", say.Poll())
        assert isinstance(status, say.Status)
        return status


def outputs(part: CutPart) -> list[Any]:
    return [output for run in part.runs for output in run]


def hosted(
    test: Callable[[Run], Coroutine[Any, Any, None]], kit: Kit | None = None, *, renews: bool = True, **settings: Any
) -> None:
    """Run a test beside a host, on virtual time; unless the driver renews it, its lease is the test's matter."""

    async def live() -> None:
        host = Host(kit or Kit(), HostSettings(generation=GENERATION, subtask_index=0, **settings))
        await host.open()
        renewing = asyncio.create_task(renew(host))
        try:
            await test(Run(host))
        finally:
            renewing.cancel()
            await host.close()

    async def renew(host: Host) -> None:
        while renews:
            await host.answer("the driver", say.Renew(GENERATION))
            await asyncio.sleep(20.0)

    run_alone(VirtualLoop(), live())


def restored(*elements: InFlightElement) -> Any:
    class Share:
        snapshot_id = "m1"
        folder = SimpleNamespace(uri="memory://hosts")
        manifest = SimpleNamespace(operator_states=(), version=1, lineage="a-lineage")

        def check_fits(self, *_: object) -> None:
            pass

        def states(self, descriptors: Iterable[Any], now: int | None = None) -> Any:
            return {one.name: {} for one in descriptors}

        def queue(self) -> RestoredQueue:
            return RestoredQueue(elements, None)

    return Share()


def stored(value: float, **fields: Any) -> InFlightElement:
    return InFlightElement(0, 0, value=value, key=abs(value), key_group=0, element_id=f"{value}", **fields)
