"""The service that the simulated operators call, as each kind of function. It tells the ledger what it sees."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pyarrow as pa

from async_op import (
    AsyncBatchFunction,
    AsyncFunction,
    AsyncTimeoutError,
    BlockingFunction,
    CallbackFunction,
    InvocationContext,
    ResultFuture,
    RetryAfter,
)
from async_op.calls.adapters import HandedOverContext
from keygroups import AggregatingState, ListState, MapState, ReducingState, ValueState
from tests.simulation.ledger import Call, Ledger
from tests.simulation.scenario import FOREVER, Plan

HISTORY = ValueState("history", default=())
TOTAL = ValueState("total", pa.int64(), default=0)
LISTED = ListState("listed", pa.int64())
PLACES = MapState("places", pa.map_(pa.string(), pa.int64()))
SUM = ReducingState("sum", lambda one, other: one + other, pa.int64())
COUNT = AggregatingState("count", lambda: [0], lambda held, number: [held[0] + number], lambda held: held[0])
STATES = (HISTORY, TOTAL, LISTED, PLACES, SUM, COUNT)

_NEVER_SEEN = -1_000_000


class ServiceError(Exception):
    """The service has failed."""


class Service:
    """What every kind of function does."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.scenario = ledger.scenario
        self.states = STATES if self.scenario.stateful else ()

    async def call(self, value: Any, ctx: InvocationContext) -> list[Any]:
        """Make one call as planned."""
        with self.ledger.limits[self.ledger.owners[value[0]]].call():
            return await self.go_on(self.ledger.call_begins(value[0], ctx), ctx)

    async def go_on(self, call: Call, ctx: InvocationContext) -> list[Any]:
        """Make a call that has begun."""
        try:
            outputs = await self._call(call, ctx)
        except BaseException as error:
            is_planned = isinstance(error, ServiceError | RetryAfter | asyncio.CancelledError)
            is_over = self.ledger.stopping or is_given_up(ctx)
            self.ledger.check(is_planned or is_over, f"{call.index} has failed: {error!r}")
            self.ledger.call_ends(call, error)
            raise
        self.ledger.call_ends(call, outputs)
        return outputs

    async def _call(self, call: Call, ctx: InvocationContext) -> list[Any]:
        plan = self.scenario.plan(call.index, call.number)
        if self.scenario.stateful and plan.outputs % 2:
            # Written before the wait: nobody may ever see it.
            ctx.state(TOTAL).update(_NEVER_SEEN)
            ctx.state(LISTED).add(_NEVER_SEEN)
            ctx.state(PLACES).put("never seen", _NEVER_SEEN)
            for state in (SUM, COUNT):
                ctx.state(state).add(_NEVER_SEEN)
            before = ctx.state(HISTORY).value()
            await self._wait(plan)
            if call.counts:
                assert ctx.state(HISTORY).value() == before, "another call of the key has written meanwhile"
        else:
            await self._wait(plan)
        if plan.ending == "error":
            raise ServiceError(call.index)
        if plan.ending == "after":
            raise RetryAfter(1.5)
        if not call.counts:
            return ["too late"]
        if plan.ending == "retry":
            return self._results(call, ctx, "retry", 1)
        return self._results(call, ctx, "ok", plan.outputs)

    async def fall_back(self, value: Any, ctx: InvocationContext) -> list[Any]:
        """Answer for an element whose time is over."""
        call = self.ledger.timeout_begins(value[0], ctx)
        draw = self.scenario.random("fallback", value[0])
        if draw.random() < 0.3:
            await asyncio.sleep(draw.random())
        # Where an error fails the operator, the run would never end: an element restored has no time left.
        if not self.scenario.fallback and (self.scenario.on_error != "fail" or self.ledger.timeouts[value[0]] < 3):
            error = AsyncTimeoutError(value, ctx.timeout)
            self.ledger.call_ends(call, error)
            raise error
        outputs = self._results(call, ctx, "late", draw.choice((0, 1, 2)))
        self.ledger.call_ends(call, outputs)
        return outputs

    def _results(self, call: Call, ctx: InvocationContext, ending: str, count: int) -> list[Any]:
        place = None
        if self.scenario.stateful:
            history = (*ctx.state(HISTORY).value(), call.index)
            ctx.state(HISTORY).update(history)
            place = len(history)
            total = ctx.state(TOTAL)
            # What this call wrote before its wait is replaced by what it makes of the history.
            total.update(sum(index + 1 for index in history))
            self._write_entries(call.index, place, ctx)
        return [(call.index, number, ending, place) for number in range(count)]

    def _write_entries(self, index: int, place: int, ctx: InvocationContext) -> None:
        """Write the states of the other kinds, and take back what this call wrote before its wait."""
        listed, places = ctx.state(LISTED), ctx.state(PLACES)
        if places.contains("never seen"):
            places.remove("never seen")
            listed.update(listed.get()[:-1])
            for state in (SUM, COUNT):
                ctx.state(state).add(-_NEVER_SEEN)
        listed.add(index)
        places.put(str(index), place)
        ctx.state(SUM).add(index + 1)
        ctx.state(COUNT).add(1)

    async def _wait(self, plan: Plan) -> None:
        if plan.delay < 0:
            return
        if self.ledger.threads is not None:
            self.ledger.threads.sleep(plan.delay)
            return
        if not plan.stubborn or plan.delay >= FOREVER:
            await asyncio.sleep(plan.delay)
            return
        sleeping = asyncio.ensure_future(asyncio.sleep(plan.delay))
        while not sleeping.done():
            try:
                await asyncio.shield(sleeping)
            except asyncio.CancelledError:
                continue


class CoroutineService(Service, AsyncFunction):
    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        return await self.call(value, ctx)

    async def timeout(self, value: Any, ctx: InvocationContext) -> list[Any]:
        return await self.fall_back(value, ctx)


class CallbackService(Service, CallbackFunction):
    """Completes its futures from tasks that the operator knows nothing of; sometimes twice."""

    def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        task = asyncio.get_running_loop().create_task(self._complete(value, result_future))
        self.ledger.foreign.add(task)
        task.add_done_callback(self.ledger.foreign.discard)

    async def _complete(self, value: Any, result_future: ResultFuture) -> None:
        try:
            outputs = await self.call(value, result_future.ctx)
        except Exception as error:  # noqa: BLE001 - as a client library would
            result_future.complete_exceptionally(error)
        else:
            result_future.complete(outputs)
            if len(outputs) > 1:
                result_future.complete(["twice"])

    async def timeout(self, value: Any, ctx: InvocationContext) -> list[Any]:
        return await self.fall_back(value, ctx)


class BlockingService(Service, BlockingFunction):
    """Sleeps on threads, of which there may be too few."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        # A call that waits for a thread begins later than the limits of rate think.
        self.max_threads = 1000 if self.scenario.resilience else self.scenario.random("threads").choice((1, 2, 1000))

    def invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        return [] if is_given_up(ctx) else returned(self.call(value, ctx))

    async def timeout(self, value: Any, ctx: InvocationContext) -> list[Any]:
        return await self.fall_back(value, ctx)


class ThreadedCallbackService(CallbackService):
    """Completes its futures from threads."""

    def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        threads = self.ledger.threads
        assert threads is not None, "the scenario is threaded"
        threads.start(lambda: returned(self._complete(value, result_future)))

    async def _complete(self, value: Any, result_future: ResultFuture) -> None:
        if not is_given_up(result_future.ctx):
            await super()._complete(value, result_future)


def is_given_up(ctx: InvocationContext) -> bool:
    """Tell whether a call is of no interest any more; on a thread it may be so before it begins."""
    if isinstance(ctx, HandedOverContext):
        return ctx._has_ended or ctx.entry.invocation is not ctx._invocation
    return ctx.entry.invocation is not ctx


def returned(call: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that awaits nothing, as it waits on a thread."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it awaits something")


class BatchService(Service, AsyncBatchFunction):
    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        draw = self.scenario.random("batch")
        self.max_batch_size = draw.choice((1, 2, 3, 10))
        self.max_batch_delay = draw.choice((0.0, 0.1, 1.0))

    async def async_invoke_batch(self, values: Sequence[Any], ctxs: Sequence[InvocationContext]) -> list[Any]:
        assert len(values) <= self.max_batch_size
        with self.ledger.limits[self.ledger.owners[values[0][0]]].call():
            return await self._call_all(values, ctxs)

    async def _call_all(self, values: Sequence[Any], ctxs: Sequence[InvocationContext]) -> list[Any]:
        begun = [self.ledger.call_begins(value[0], ctx) for value, ctx in zip(values, ctxs, strict=True)]
        calls = [self.go_on(call, ctx) for call, ctx in zip(begun, ctxs, strict=True)]
        results: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, RetryAfter):
                self.ledger.limits[self.ledger.owners[values[0][0]]].hold(result.seconds)
        return results

    async def timeout(self, value: Any, ctx: InvocationContext) -> list[Any]:
        return await self.fall_back(value, ctx)


KINDS: dict[str, Any] = {
    "coroutine": CoroutineService,
    "callback": CallbackService,
    "batch": BatchService,
    "blocking": BlockingService,
    "threaded callback": ThreadedCallbackService,
}
