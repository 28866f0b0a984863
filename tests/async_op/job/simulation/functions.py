"""What the steps of the simulated job do: each element is paid for by the service that honours idempotency keys."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from async_op import AsyncBatchFunction, AsyncFunction, InvocationContext
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
        self.begin(ctx)
        outputs = await self.answer(value, ctx)
        self.end(ctx)
        return outputs

    def begin(self, ctx: InvocationContext) -> None:
        """Note the beginning of a call, in the turn in which the operator counts it."""
        self.world.note("call", self.step, ctx.idempotency_key, ctx.attempt)

    def end(self, ctx: InvocationContext) -> None:
        """Note that a call returns outputs."""
        self.world.note("result", self.step, ctx.idempotency_key)

    async def answer(self, value: Any, ctx: InvocationContext) -> list[Any]:
        """Return the outputs for an element, after the service has been paid."""
        world, draw = self.world, self.world.draw
        await asyncio.sleep(draw.choice([0.0, 0.01, 0.1, 1.0]) * draw.random())
        if draw.random() < 0.05:
            raise OSError("try again")
        self.fail()
        paid = world.pay(ctx.idempotency_key, self.step, *self.names_of(as_row(value)))
        if draw.random() < 0.2:
            await asyncio.sleep(draw.random() / 10)  # what is killed here was paid for, and nothing says so
        if draw.random() < 0.05:
            raise OSError("the answer got lost")
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


class _Batched(Call, AsyncBatchFunction[Any, Any]):
    """Makes the calls of a batch together: what fails fails its element, and sometimes the whole batch does."""

    max_batch_size = 3
    max_batch_delay = 0.05

    async def async_invoke_batch(self, values: list[Any], ctxs: Sequence[InvocationContext]) -> list[Any]:
        self.world.note("batch", len(values))
        for ctx in ctxs:
            self.begin(ctx)
        if self.world.draw.random() < 0.05:
            raise OSError("the service is busy")
        answers = [self.answer(value, ctx) for value, ctx in zip(values, ctxs, strict=True)]
        results = await asyncio.gather(*answers, return_exceptions=True)
        for ctx, result in zip(ctxs, results, strict=True):
            if not isinstance(result, Exception):
                self.end(ctx)
        return results


class BatchedCall(_Batched):
    """The first step, in batches."""


class BatchedTimedCall(_Batched, TimedCall):
    """The first step, with timers and in batches."""


class BatchedCounting(_Batched, Counting):
    """The second step, in batches."""


class BatchedTimedCounting(_Batched, TimedCounting):
    """The second step, with timers and in batches."""


def functions_of(world: World) -> tuple[Call, Call]:
    """Return the functions of the two steps."""
    has_timers, has_keys = world.scenario.has_timers, world.scenario.keyed_first
    firsts = {False: (Call, BatchedCall), True: (TimedCall, BatchedTimedCall)}
    seconds = {False: (Counting, BatchedCounting), True: (TimedCounting, BatchedTimedCounting)}
    first_is_batched, second_is_batched = world.scenario.batched
    first = firsts[has_timers and has_keys][first_is_batched]
    return first(world), seconds[has_timers][second_is_batched](world)
