"""Calls see neither the context variables nor the changed elements of other calls."""

from __future__ import annotations

import asyncio
import decimal
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import context as telemetry

from async_op import (
    AsyncBatchFunction,
    AsyncDataStream,
    AsyncFunction,
    AsyncWaitOperator,
    BlockingFunction,
    CallbackFunction,
    FixedDelayRetry,
    Job,
    Resilience,
    Step,
    function,
)
from async_op.resilience import Cache, SingleFlight
from keygroups import ValueState
from keygroups.state.detached import own_copy
from tests.async_op.job.kit import Epochs, new_job

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
SEEN = ValueState("seen", default=0)
ELEMENTS = 60


class Fits:
    """A value that cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = object.__hash__


ODD: ContextVar[Any] = ContextVar("odd")


def _visit(value: int) -> str:
    """Return the tenant that a call finds, and leave its own behind."""
    found = TENANT.get()
    TENANT.set(f"tenant {value}")
    return found


async def _coroutine(value: int) -> str:
    found = TENANT.get()
    TENANT.set(f"tenant {value}")
    await asyncio.sleep(0)
    assert TENANT.get() == f"tenant {value}"
    return found


async def _at_once(value: int) -> str:
    return _visit(value)


async def _generator(value: int) -> AsyncIterator[str]:
    yield _visit(value)


async def _failing(value: int, ctx: Any) -> str:
    found = TENANT.get()
    TENANT.set(f"tenant {value}")
    if ctx.attempt == 1:
        raise OSError
    return found


async def _odd(value: int) -> str:
    found = "nobody" if ODD.get(None) is None else "another one's"
    ODD.set(Fits())
    return found


def _plain(value: int) -> str:
    return _visit(value)


def _yielding(value: int) -> Iterable[str]:
    yield _visit(value)


class Callback(CallbackFunction):
    def async_invoke(self, value: int, result_future: Any) -> None:
        result_future.complete([_visit(value)])


class Batch(AsyncBatchFunction):
    max_batch_size = 7

    async def async_invoke_batch(self, values: list[int], ctxs: Sequence[Any]) -> list[list[str]]:
        found = _visit(values[0])
        return [[found]] * len(values)


class Known(AsyncFunction):
    def known_outputs(self, value: int, ctx: Any) -> list[str] | None:
        found = _visit(value)
        return [found] if value % 2 else None

    async def async_invoke(self, value: int, ctx: Any) -> list[str]:
        return [_visit(value)]


class Fallback(AsyncFunction):
    async def async_invoke(self, value: int, ctx: Any) -> list[str]:
        TENANT.set(f"tenant {value}")
        await asyncio.Event().wait()
        raise AssertionError

    async def timeout(self, value: int, ctx: Any) -> list[str]:
        return [_visit(value)]


class Stateful(AsyncFunction):
    states = (SEEN,)

    async def async_invoke(self, value: int, ctx: Any) -> list[str]:
        ctx.state(SEEN).update(value)
        return [_visit(value)]


class Timed(AsyncFunction):
    async def async_invoke(self, value: int, ctx: Any) -> list[str]:
        ctx.timers.register(0)
        return [_visit(value)]

    async def on_timer(self, timestamp: int, ctx: Any) -> list[str]:
        return [_visit(timestamp)]


OPTIONS: dict[Any, dict[str, Any]] = {
    _failing: {"retry": FixedDelayRetry(2, 0.0)},
    Fallback: {"timeout": 0.001},
    Stateful: {"key_by": lambda value: value % 3},
    Timed: {"key_by": lambda value: value},
}

KINDS: list[Any] = [
    *(_coroutine, _at_once, _generator, _failing, _odd, _plain, _yielding),
    pytest.param(function(on="loop")(_plain), id="on the loop"),
    *(Callback, Batch, Known, Fallback, Stateful, Timed),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_call_sees_no_context_variable_of_another_call(kind: Any) -> None:
    TENANT.set("the program's")
    expected = {"nobody"} if kind is _odd else {"the program's"}
    made = kind() if isinstance(kind, type) else kind
    outputs = AsyncDataStream.unordered_wait(range(ELEMENTS), made, capacity=3, **OPTIONS.get(kind, {}))
    found = [output async for output in outputs]

    assert set(found) == expected
    assert len(found) == (2 * ELEMENTS if kind is Timed else ELEMENTS)
    assert TENANT.get() == "the program's"


async def test_a_variable_that_the_program_has_not_set_is_unset_for_each_call() -> None:
    fresh: ContextVar[int] = ContextVar("fresh")
    found = []

    async def look(value: int) -> int:
        found.append(fresh.get(None))
        fresh.set(value)
        return value

    assert len([one async for one in AsyncDataStream.ordered_wait(range(ELEMENTS), look, capacity=2)]) == ELEMENTS
    assert set(found) == {None}


async def test_a_task_that_a_call_leaves_behind_keeps_the_variables_of_its_call() -> None:
    release, tasks = asyncio.Event(), []

    async def later() -> str:
        await release.wait()
        return TENANT.get()

    async def leave(value: int) -> int:
        TENANT.set(f"tenant {value}")
        tasks.append(asyncio.create_task(later()))
        return value

    assert len([one async for one in AsyncDataStream.ordered_wait(range(5), leave, capacity=1)]) == 5
    release.set()
    assert await asyncio.gather(*tasks) == [f"tenant {value}" for value in range(5)]


async def test_what_open_sets_is_seen_by_calls_and_by_close_but_by_no_other_function() -> None:
    log = []

    class Opened(AsyncFunction):
        def __init__(self, name: str) -> None:
            self.name = name

        async def open(self, runtime: Any) -> None:
            self.token = TENANT.set(self.name)
            await asyncio.sleep(0)

        async def async_invoke(self, value: int, ctx: Any) -> list[str]:
            found = TENANT.get()
            TENANT.set("a call's")
            return [found]

        async def close(self) -> None:
            log.append(TENANT.get())
            TENANT.reset(self.token)

    first = AsyncDataStream.ordered_wait(range(3), Opened("first"))
    second = AsyncDataStream.ordered_wait(first, Opened("second"))

    assert [one async for one in second] == ["second"] * 3
    assert sorted(log) == ["first", "second"]
    assert TENANT.get() == "nobody"


async def test_consumers_see_no_variable_of_a_call() -> None:
    seen: dict[str, set[str]] = defaultdict(set)

    async def visit(value: int) -> int:
        TENANT.set("a call's")
        if value == 3:
            raise OSError
        return value

    def output(_: Any) -> None:
        seen["output"].add(TENANT.get())

    def take_letter(_: Any) -> None:
        seen["dead letters"].add(TENANT.get())

    def key_by(value: int) -> int:
        seen["key_by"].add(TENANT.get())
        return value

    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": take_letter, "key_by": key_by, "capacity": 2}
    async with AsyncWaitOperator(visit, output, **options) as operator:
        await operator.process_all((value, None, None) for value in range(9))
        await operator.finish()
    assert seen == {"output": {"nobody"}, "dead letters": {"nobody"}, "key_by": {"nobody"}}


async def test_what_other_threads_submit_runs_in_the_context_of_its_thread() -> None:
    async def ask() -> str:
        await asyncio.sleep(0)
        return TENANT.get()

    def feed(operator: AsyncWaitOperator, found: list[str]) -> None:
        TENANT.set(threading.current_thread().name)
        executor = operator.executor()
        found += [executor.submit(TENANT.get).result(), executor.submit(ask).result()]

    async with AsyncWaitOperator(_at_once, lambda _: None) as operator:
        found: list[str] = []
        await asyncio.to_thread(feed, operator, found)
        assert set(found) == {found[0]} != {"nobody"}


# Decimal contexts, which are shared by copies of a context.


@pytest.mark.parametrize("configured", [None, 50])
@pytest.mark.parametrize("blocking", [False, True])
async def test_the_precision_of_decimals_that_a_call_sets_is_its_own(configured: int | None, blocking: bool) -> None:
    # A program has a decimal context as soon as it has calculated with a decimal.
    decimal.setcontext(decimal.Context() if configured is None else decimal.Context(prec=configured))

    def divide(value: int) -> tuple[int, int]:
        before = decimal.getcontext().prec
        decimal.getcontext().prec = 5 + value % 3
        return before, len(str(Decimal(1) / 3)) - 2

    async def divide_later(value: int) -> tuple[int, int]:
        before = decimal.getcontext().prec
        decimal.getcontext().prec = 5 + value % 3
        await asyncio.sleep(0)
        return before, len(str(Decimal(1) / 3)) - 2

    chosen: Any = divide if blocking else divide_later
    found = [one async for one in AsyncDataStream.ordered_wait(range(ELEMENTS), chosen, capacity=4)]

    assert found == [(configured or 28, 5 + value % 3) for value in range(ELEMENTS)]
    assert decimal.getcontext().prec == (configured or 28)


async def test_the_context_of_opentelemetry_that_a_call_attaches_is_its_own() -> None:
    async def attach(value: int) -> Any:
        found = telemetry.get_value("tenant")
        telemetry.attach(telemetry.set_value("tenant", value))
        await asyncio.sleep(0)
        assert telemetry.get_value("tenant") == value
        return found

    telemetry.attach(telemetry.set_value("tenant", "the program's"))
    found = [one async for one in AsyncDataStream.ordered_wait(range(ELEMENTS), attach, capacity=4)]
    assert set(found) == {"the program's"}


async def test_the_variables_that_structlog_binds_are_those_of_the_call() -> None:
    """structlog has one variable for each name, made when it is first bound, and never resets them by itself."""
    bound: dict[str, ContextVar[Any]] = {}

    def bind(**values: Any) -> None:
        for name, value in values.items():
            if name not in bound:
                bound[name] = ContextVar(f"structlog_{name}", default=...)
            bound[name].set(value)

    def merged() -> dict[str, Any]:
        return {name: variable.get() for name, variable in bound.items() if variable.get() is not ...}

    async def log(value: int) -> dict[str, Any]:
        before = merged()
        bind(request=value)
        if value % 2:
            bind(user=f"user {value}")
        await asyncio.sleep(0)
        return before

    found = [one async for one in AsyncDataStream.ordered_wait(range(ELEMENTS), log, capacity=4)]
    assert found == [{}] * ELEMENTS


async def test_the_calls_of_a_job_see_what_its_program_has_set() -> None:
    TENANT.set("the program's")
    outputs: list[Any] = []
    job = Job(
        range(ELEMENTS),
        [_at_once, lambda found: (found, _visit(1))],
        lambda values, _: outputs.extend(values),
        snapshots="memory://isolation",
        job_id="tenants",
    )
    await job.run()
    assert outputs == [("the program's", "the program's")] * ELEMENTS


# Elements.


@dataclass
class Order:
    items: list[str]
    notes: dict[str, Any] = field(default_factory=dict)


class Box:
    def __init__(self) -> None:
        self.content = [1]

    def __repr__(self) -> str:
        return f"Box({self.content})"


CHANGES: list[tuple[Callable[[], Any], Callable[[Any], object]]] = [
    (lambda: {"id": 1}, lambda row: row.update(id=2)),
    (lambda: {"id": 1, "tags": ["a"], "of": {"b": {1}}}, lambda row: (row["tags"].append("b"), row["of"]["b"].add(2))),
    (lambda: [1, [2]], lambda row: row[1].append(3)),
    (lambda: ("a", {"n": 1}), lambda row: row[1].clear()),
    (lambda: {1, 2}, lambda row: row.add(3)),
    (lambda: bytearray(b"ab"), lambda row: row.extend(b"c")),
    (lambda: Order(["tea"], {"n": [1]}), lambda order: (order.items.append("salt"), order.notes["n"].append(2))),
    (lambda: np.arange(3), lambda array: array.fill(7)),
    (lambda: [Order(["tea"])], lambda orders: orders[0].items.clear()),
    (Box, lambda box: box.content.append(2)),
]


class InBatches(AsyncBatchFunction):
    def __init__(self, call: Any) -> None:
        self.call = call

    async def async_invoke_batch(self, values: list[Any], ctxs: Sequence[Any]) -> list[Any]:
        calls = [self.call(value, ctx) for value, ctx in zip(values, ctxs, strict=True)]
        return await asyncio.gather(*calls, return_exceptions=True)


class OnThreads(BlockingFunction):
    def __init__(self, call: Any) -> None:
        self.call = call

    def invoke(self, value: Any, ctx: Any) -> list[Any]:
        coroutine = self.call(value, ctx)
        try:
            coroutine.send(None)
        except StopIteration as ended:
            return [ended.value]
        raise AssertionError


@pytest.mark.parametrize("kind", [None, InBatches, OnThreads])
@pytest.mark.parametrize(("make", "change"), CHANGES, ids=[repr(make()) for make, _ in CHANGES])
async def test_what_a_call_changes_in_its_element_is_seen_by_no_other_attempt_and_no_dead_letter(
    make: Callable[[], Any], change: Callable[[Any], object], kind: Any
) -> None:
    seen, letters, shared = [], [], make()

    async def spoil(value: Any, ctx: Any) -> None:
        seen.append(repr(value))
        change(value)
        raise OSError

    outputs = AsyncDataStream.ordered_wait(
        [shared, shared],
        spoil if kind is None else kind(spoil),
        retry=FixedDelayRetry(3, 0.0),
        on_error="dead_letter",
        dead_letters=letters.append,
    )
    assert [one async for one in outputs] == []
    as_it_was = repr(make())
    assert seen == [as_it_was] * 6
    assert [repr(letter.value) for letter in letters] == [as_it_was] * 2
    assert repr(shared) == as_it_was


async def test_a_snapshot_has_an_element_as_it_came_in_while_its_call_changes_it() -> None:
    async def spoil(value: dict[str, Any]) -> None:
        value["tags"].append("changed")
        value.clear()
        await asyncio.Event().wait()

    async with AsyncWaitOperator(spoil, lambda _: None) as operator:
        await operator.process({"id": 1, "tags": ["new"]})
        await asyncio.sleep(0)
        snapshot = await operator.snapshot()
        assert [element.value for element in snapshot.in_flight] == [{"id": 1, "tags": ["new"]}]


async def test_a_snapshot_has_outputs_as_they_were_though_their_receiver_changes_them() -> None:
    release, left = asyncio.Event(), []

    async def answer(value: int) -> dict[str, Any]:
        if value == 0:
            await release.wait()
        return {"value": [value]}

    async with AsyncWaitOperator(answer, lambda record: left.append(record.value), mode="ordered") as operator:
        await operator.process(0)
        await operator.process(1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        snapshot = await operator.snapshot()
        release.set()
        await operator.finish()
    for output in left:
        output["value"].clear()
    assert [element.outputs for element in snapshot.in_flight] == [None, ({"value": [1]},)]


async def test_outputs_of_the_cache_are_as_the_call_returned_them() -> None:
    async def answer(value: int) -> dict[str, Any]:
        return {"value": [value]}

    resilience = Resilience(cache=Cache(key=lambda _: 1, max_entries=9))
    outputs = []
    async for output in AsyncDataStream.ordered_wait([1] * 5, answer, capacity=1, resilience=resilience):
        outputs.append(repr(output))
        output["value"].append("changed")
    assert set(outputs) == {"{'value': [1]}"}


async def test_elements_that_share_a_call_do_not_share_its_outputs() -> None:
    async def answer(value: int) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"value": [value]}

    outputs = []
    resilience = Resilience(single_flight=SingleFlight(key=lambda _: 1))
    async for output in AsyncDataStream.ordered_wait([1] * 5, answer, resilience=resilience):
        outputs.append(repr(output))
        output["value"].append("changed")
    assert set(outputs) == {"{'value': [1]}"}


async def test_the_second_step_of_a_job_changes_nothing_that_the_first_one_keeps() -> None:
    async def answer(value: int) -> dict[str, Any]:
        return {"value": [1]}

    async def change(row: dict[str, Any]) -> str:
        found = repr(row)
        row["value"].append("changed")
        return found

    outputs: list[Any] = []
    cached = Step(answer, name="answer", resilience=Resilience(cache=Cache(key=lambda _: 1, max_entries=9)))
    job = Job(
        range(9),
        [cached, Step(change, name="change")],
        lambda values, _: outputs.extend(values),
        snapshots="memory://isolation",
        job_id="steps",
    )
    await job.run()
    assert outputs == ["{'value': [1]}"] * 9


async def test_what_has_an_identity_is_not_copied() -> None:
    reply: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    event, lock = asyncio.Event(), threading.Lock()

    async def answer(value: dict[str, Any]) -> None:
        value["reply"].set_result(1)
        value["event"].set()
        assert value["lock"] is lock

    element = {"reply": reply, "event": event, "lock": lock, "order": Order(["tea"], {"event": event})}
    assert [one async for one in AsyncDataStream.ordered_wait([element], answer)] == [None]
    assert (await reply, event.is_set()) == (1, True)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(), inner)
        | st.tuples(inner, inner)
        | st.sets(st.integers())
        | st.builds(Order, st.lists(st.text()), st.dictionaries(st.text(), inner))
    ),
)


@given(VALUES)
def test_a_copy_is_equal_and_shares_nothing_that_can_change(value: Any) -> None:
    copied = own_copy(value)
    assert copied == value
    assert type(copied) is type(value)
    assert _mutable_parts(copied).isdisjoint(_mutable_parts(value))


def _mutable_parts(value: Any) -> set[int]:
    if isinstance(value, Order):
        return {id(value)} | _mutable_parts(vars(value))
    if isinstance(value, dict):
        return {id(value)}.union(*map(_mutable_parts, value.values()))
    if isinstance(value, list | tuple):
        return ({id(value)} if isinstance(value, list) else set()).union(*map(_mutable_parts, value))
    return {id(value)} if isinstance(value, set) else set()


def test_a_value_that_contains_itself_is_copied() -> None:
    value: list[Any] = [1]
    value.append(value)
    copied = own_copy(value)
    assert copied is not value
    assert copied[1] is copied


class KeptOutputs:
    """Keeps the outputs that it returns, and changes all of them whenever it is called again."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    def make(self, value: int) -> dict[str, Any]:
        for output in self.kept:
            output["tags"].append(object())  # which cannot be stored
            output["n"] = -1
        self.kept.append({"n": value, "tags": []})
        return self.kept[-1]


class KeepingCoroutine(KeptOutputs, AsyncFunction):
    async def async_invoke(self, value: int, ctx: Any) -> list[Any]:
        return [self.make(value)]


class KeepingBlocking(KeptOutputs, BlockingFunction):
    max_threads = 1

    def invoke(self, value: int, ctx: Any) -> list[Any]:
        return [self.make(value)]


class KeepingCallback(KeptOutputs, CallbackFunction):
    def async_invoke(self, value: int, result_future: Any) -> None:
        result_future.complete([self.make(value)])


class KeepingBatch(KeptOutputs, AsyncBatchFunction):
    async def async_invoke_batch(self, values: list[int], ctxs: Sequence[Any]) -> list[Any]:
        made = [self.make(value) for value in values]
        return [[made[-1]] if value == values[-1] else [dict(made[-1], n=value, tags=[])] for value in values]


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("kind", [KeepingCoroutine, KeepingBlocking, KeepingCallback, KeepingBatch])
async def test_what_a_function_changes_in_outputs_that_it_has_returned_is_seen_by_nobody(kind: Any, steps: int) -> None:
    async def slowly(value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    first = Step(kind(), mode="ordered", capacity=10)
    job = new_job(range(30), [first, Step(slowly, capacity=1)][:steps], sink := Epochs(), snapshot_interval=0.01)
    await job.run()
    assert sink.values == [{"n": number, "tags": []} for number in range(30)]


@pytest.mark.parametrize("setter", ["blocking source", "source", "blocking sink", "sink"])
async def test_the_precision_that_a_source_or_sink_sets_is_seen_by_no_call_after_a_rescale(setter: str) -> None:
    """The program has used decimals, so all copies of its context would share one object with their settings."""
    decimal.setcontext(decimal.Context())
    precision = decimal.getcontext().prec
    seen = []
    rescaled = asyncio.Event()

    def may_set(who: str) -> None:
        if who == setter:
            decimal.getcontext().prec = 5

    def numbers() -> Iterable[int]:
        may_set("blocking source")
        yield from range(20)

    async def numbers_in_time() -> AsyncIterator[int]:
        may_set("source")
        for number in range(20):
            yield number
            if number == 10:
                await rescaled.wait()

    def write(values: Sequence[Any], epoch: int) -> None:
        may_set("blocking sink")

    async def write_in_time(values: Sequence[Any], epoch: int) -> None:
        may_set("sink")
        if job.progress().parallelism == 1:
            job.rescale(2)
            rescaled.set()

    async def look(value: int) -> int:
        seen.append(decimal.getcontext().prec)
        return value

    source = numbers() if setter == "blocking source" else numbers_in_time()
    sink: Any = write if setter == "blocking sink" else write_in_time
    job = new_job(source, look, sink, snapshot_interval=0.01)
    task = asyncio.create_task(job.run())
    if setter == "blocking sink":
        rescaled.set()
    await task
    assert set(seen) == {precision}
    assert decimal.getcontext().prec == precision


async def test_the_precision_that_a_blocking_stream_sets_is_not_its_consumers() -> None:
    decimal.setcontext(decimal.Context())

    def numbers() -> Iterable[int]:
        decimal.getcontext().prec = 5
        yield from range(5)

    async def look(value: int) -> int:
        return decimal.getcontext().prec

    seen = [(value, decimal.getcontext().prec) async for value in AsyncDataStream.ordered_wait(numbers(), look)]
    assert seen == [(28, 28)] * 5
