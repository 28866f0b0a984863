"""What the steps of the simulated job do: each element is paid for by the service that honours idempotency keys."""

from __future__ import annotations

import asyncio
from typing import Any

from async_op import AsyncFunction, InvocationContext
from keygroups import ListState, ValueState
from tests.async_op.job.simulation.scenario import HALF_A_PAIR, as_row
from tests.async_op.job.simulation.world import World

COUNT = ValueState("count", default=0)
SEEN = ListState("seen")


class Poison(Exception):
    """A call has failed for good, and so has the job; the next run can make it."""


class Call(AsyncFunction[Any, Any]):
    """A call that takes a while, and sometimes fails at first."""

    step = "first"

    def __init__(self, world: World) -> None:
        self.world = world

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        world, draw = self.world, self.world.draw
        world.note("call", self.step, ctx.idempotency_key, ctx.attempt)
        await asyncio.sleep(draw.choice([0.0, 0.01, 0.1, 1.0]) * draw.random())
        if draw.random() < 0.05:
            raise OSError("try again")
        self.fail()
        paid = world.pay(ctx.idempotency_key, self.step, *self.names_of(as_row(value)))
        if draw.random() < 0.2:
            await asyncio.sleep(draw.random() / 10)  # what is killed here was paid for, and nothing says so
        if draw.random() < 0.05:
            raise OSError("the answer got lost")
        world.note("result", self.step, ctx.idempotency_key)
        return self.outputs(as_row(value), paid, ctx)

    def fail(self) -> None:
        """Fail for good, perhaps."""

    def names_of(self, row: Any) -> tuple[Any, ...]:
        """Return what names an element among those of its step."""
        return (row[0], row[1])

    def outputs(self, row: Any, paid: Any, ctx: InvocationContext) -> list[Any]:
        """Return what the service has answered, as outputs."""
        scenario = self.world.scenario
        if scenario.is_bad(row):
            if scenario.badness(row) == "output":
                return [HALF_A_PAIR]
            raise ValueError("of no use")
        self.set_timers(scenario.time_of(row), ctx)
        return [(*paid, row[2], number) for *_, number in scenario.outputs_of(row)]

    def set_timers(self, timestamp: int, ctx: InvocationContext) -> None:
        """Set no timers."""


class Counting(Call):
    """A call whose outputs say how many came before, by two states."""

    step = "second"
    states = (COUNT, SEEN)

    def fail(self) -> None:
        if self.world.has_poison():
            self.world.note("poison")
            raise Poison

    def names_of(self, row: Any) -> tuple[Any, ...]:
        return (row[0], row[1], row[3])

    def outputs(self, row: Any, paid: Any, ctx: InvocationContext) -> list[Any]:
        count, seen = ctx.state(COUNT), ctx.state(SEEN)
        count.update(count.value() + 1)
        seen.add(paid)
        self.set_timers(self.world.scenario.time_of(row[:3], row[3]), ctx)
        return [(ctx.key, count.value(), len(seen.get()), paid)]


class _Timed:
    """Pays again when a timer fires: there is one of each kind, both for the same time."""

    world: World
    step: str

    def set_timers(self, timestamp: int, ctx: InvocationContext) -> None:
        for event_time in (True, False):
            ctx.timers.register(timestamp, event_time=event_time)

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[Any]:
        kind, _, _ = ctx.idempotency_key.rpartition("/")[2].partition("-")
        self.world.note("timer", self.step, ctx.idempotency_key)
        await asyncio.sleep(self.world.draw.choice([0.0, 0.1]))
        self.world.pay(ctx.idempotency_key, self.step, "timer", kind, ctx.key, timestamp)
        return []


class TimedCall(_Timed, Call):
    """The first step, with timers."""


class TimedCounting(_Timed, Counting):
    """The second step, with timers."""


def functions_of(world: World) -> tuple[Call, Call]:
    """Return the functions of the two steps."""
    has_timers, has_keys = world.scenario.has_timers, world.scenario.keyed_first
    return (TimedCall if has_timers and has_keys else Call)(world), (TimedCounting if has_timers else Counting)(world)
