"""Functions that can never work are refused before anything runs, and outputs that cannot be meant when they come."""

from __future__ import annotations

import asyncio
import functools
import math
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from async_op import (
    AsyncBatchFunction,
    AsyncDataStream,
    AsyncFunction,
    AsyncWaitOperator,
    BlockingFunction,
    CallbackFunction,
    ElementFailed,
    Function,
    InvalidFunctionResult,
)
from async_op.functions import plain
from async_op.functions.plain import as_function
from async_op.outputs import checked
from keygroups import ConfigError, ValueState
from snapshots import IncompatibleSnapshot, OperatorStateCut
from tests.async_op.kit import Bench, Instant, Service, commit, new_store, opened

COUNT = ValueState("count", default=0)


class NotAwaitable(AsyncFunction):
    def async_invoke(self, value, ctx):
        return [value]


class Yielding(AsyncFunction):
    async def async_invoke(self, value, ctx):
        yield value


class YieldingAtOnce(AsyncFunction):
    def async_invoke(self, value, ctx):
        yield value


class WithoutContext(AsyncFunction):
    async def async_invoke(self, value):
        return [value]


class AwaitingWhatIsKnown(Instant):
    async def known_outputs(self, value, ctx):
        return None


class OpensAtOnce(Instant):
    def open(self, runtime):
        pass


class ClosesAtOnce(Instant):
    def close(self):
        pass


class FallsBackAtOnce(Instant):
    def timeout(self, value, ctx):
        return []


class FiresAtOnce(Instant):
    def on_timer(self, timestamp, ctx):
        return []


class AwaitingInAThread(BlockingFunction):
    async def invoke(self, value, ctx):
        return [value]


class AwaitingACallback(CallbackFunction):
    async def async_invoke(self, value, result_future):
        result_future.complete([value])


class BatchAtOnce(AsyncBatchFunction):
    def async_invoke_batch(self, values, ctxs):
        return [[value] for value in values]


class YieldingBatch(AsyncBatchFunction):
    async def async_invoke_batch(self, values, ctxs):
        for value in values:
            yield [value]


class Batch(AsyncBatchFunction):
    async def async_invoke_batch(self, values, ctxs):
        return [[value] for value in values]


class Threads(BlockingFunction):
    def invoke(self, value, ctx):
        return [value]


def having(kind: type[Any], **attributes: Any) -> Any:
    return type(kind.__name__, (kind,), attributes)()


FUNCTIONS: list[tuple[Any, str, str]] = [
    (Instant, "function", r"pass an instance, Instant\(\)"),
    (5, "function", "pass a function"),
    (None, "function", "pass a function"),
    ([Instant()], "function", "pass a function"),
    (Function(), "function", "subclass AsyncFunction, BlockingFunction or CallbackFunction"),
    (NotAwaitable(), "function", "'NotAwaitable.async_invoke': define it with `async def`, or subclass BlockingFunc"),
    (Yielding(), "function", "'Yielding.async_invoke': collect the outputs in a list"),
    (YieldingAtOnce(), "function", "'YieldingAtOnce.async_invoke': collect the outputs in a list"),
    (WithoutContext(), "function", r"define it with \(value, ctx\); it has \(value\)"),
    (OpensAtOnce(), "function", "'OpensAtOnce.open': define it with `async def`$"),
    (ClosesAtOnce(), "function", "'ClosesAtOnce.close': define it with `async def`$"),
    (FallsBackAtOnce(), "function", "'FallsBackAtOnce.timeout': define it with `async def`$"),
    (FiresAtOnce(), "function", "'FiresAtOnce.on_timer': define it with `async def`$"),
    (AwaitingInAThread(), "function", "'AwaitingInAThread.invoke': define it with `def`, or subclass AsyncFunction"),
    (AwaitingACallback(), "function", "'AwaitingACallback.async_invoke': define it with `def`"),
    (AwaitingWhatIsKnown(), "function", "'AwaitingWhatIsKnown.known_outputs': define it with `def`$"),
    (BatchAtOnce(), "function", "'BatchAtOnce.async_invoke_batch': define it with `async def`"),
    (YieldingBatch(), "function", "'YieldingBatch.async_invoke_batch': collect the outputs in a list"),
    (having(Instant, states=COUNT), "states", r"write `states = \(descriptor,\)`"),
    (having(Instant, states="count"), "states", "pass a tuple of descriptors"),
    (having(Instant, states={COUNT}), "states", "pass a tuple of descriptors"),
    (having(Instant, states=(state for state in [COUNT])), "states", "pass a tuple of descriptors"),
    (having(Instant, states=("count",)), "states", r"pass descriptors, such as ValueState\('count'\)"),
    (having(Instant, states=(ValueState,)), "states", "pass descriptors"),
    (having(Instant, states=(COUNT, ValueState("count", pa.int64()))), "states", "two states have this name"),
    *(
        (having(Batch, max_batch_size=n), "max_batch_size", "=.*: must be (an integer|at least 1)")
        for n in ("10", 10.0, True, 0, None)
    ),
    *(
        (having(Batch, max_batch_delay=n), "max_batch_delay", "=.*: (pass seconds|must be a finite number of seconds)")
        for n in ("10ms", True, -1, None, math.nan)
    ),
    *((having(Threads, max_threads=n), "max_threads", "at least one thread") for n in ("10", 10.0, True, 0, None)),
]


@pytest.mark.parametrize(("function", "name", "instead"), FUNCTIONS, ids=range(len(FUNCTIONS)))
@pytest.mark.parametrize(
    "use",
    [
        lambda function: AsyncWaitOperator(function, print, key_by=str),
        lambda function: AsyncDataStream.unordered_wait([1], function, key_by=str),
    ],
    ids=["operator", "stream"],
)
def test_it_says_what_to_write_instead(use: Callable[[Any], Any], function: Any, name: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=instead) as refused:
        use(function)

    assert refused.value.name == name


def test_a_call_of_a_function_is_no_function() -> None:
    async def enrich(value: Any) -> Any:
        return value

    with pytest.raises(ConfigError, match="pass the function, enrich, not a call of it"):
        AsyncWaitOperator(enrich(1), print)  # type: ignore[arg-type]


def traced(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return wrapper


async def test_a_decorator_may_hide_that_a_method_is_a_coroutine_function() -> None:
    class Traced(AsyncFunction):
        @traced
        async def async_invoke(self, value: Any, ctx: Any) -> Any:
            return [value]

    async with opened(Traced()) as bench:
        await bench.feed(1)

        assert bench.shown == [1]


def test_the_methods_of_a_class_are_looked_at_once_and_those_of_an_instance_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, check_takes = 0, plain.check_takes

    def counted(*args: Any, **kwargs: Any) -> None:
        nonlocal looks
        looks += 1
        check_takes(*args, **kwargs)

    monkeypatch.setattr(plain, "check_takes", counted)

    class Once(Instant):
        pass

    function: Any = Once()
    assert as_function(function) is function
    first = looks
    assert first > 0
    assert as_function(Once()) is not function
    assert looks == first

    function.async_invoke = lambda value: [value]
    with pytest.raises(ConfigError, match="define it with `async def`"):
        as_function(function)
    as_function(Once())


async def test_a_state_is_asked_for_by_its_descriptor() -> None:
    class ByName(AsyncFunction):
        states = (COUNT,)

        async def async_invoke(self, value: Any, ctx: Any) -> Any:
            return [ctx.state("count").value()]

    async with opened(ByName(), key_by=str) as bench:
        await bench.feed(1)
        with pytest.raises(ElementFailed) as failed:
            await bench.operator.finish()

    assert isinstance(failed.value.__cause__, ConfigError)
    assert "pass the descriptor itself" in str(failed.value)


async def nothing() -> None:
    pass


async def generator() -> Any:
    yield 1


Pair = namedtuple("Pair", "a b")
One = namedtuple("One", "a")

NO_OUTPUTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: (1, 2), r"\[record\] for one"),
    (lambda: Pair(1, 2), r"\[record\] for one"),
    (lambda: One(1), r"\[record\] for one"),
    (lambda: "text", r"\[output\] for one"),
    (lambda: b"bytes", r"\[output\] for one"),
    (lambda: bytearray(b"bytes"), r"\[output\] for one"),
    (lambda: {"a": 1}, r"\[output\] for one"),
    (lambda: 5, r"\[output\] for one"),
    (lambda: None, r"\[output\] for one"),
    (lambda: pd.DataFrame({"a": [1]}), r"\[output\] for one"),
    (lambda: pa.table({"a": [1]}), r"\[output\] for one"),
    (lambda: pa.record_batch({"a": [1]}), r"\[output\] for one"),
    (nothing, "`await` the call"),
    (generator, "`async for`"),
    (lambda: asyncio.get_running_loop().create_future(), "`await` the call"),
    (lambda: [1, nothing()], "`await` the call"),
    (lambda: iter([nothing()]), "`await` the call"),
    (lambda: [generator()], "`async for`"),
    (lambda: [asyncio.get_running_loop().create_future()], "`await` the call"),
]


class BatchOf(AsyncBatchFunction):
    """Returns the same for each element."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    async def async_invoke_batch(self, values: Any, ctxs: Any) -> Any:
        return [self._make() for _ in values]


@pytest.mark.parametrize(("make", "instead"), NO_OUTPUTS, ids=range(len(NO_OUTPUTS)))
@pytest.mark.parametrize("kind", [lambda make: Instant(lambda _: make()), BatchOf], ids=["one by one", "batch"])
async def test_what_cannot_be_meant_as_outputs_fails_its_element(
    kind: Callable[[Any], Any], make: Callable[[], Any], instead: str
) -> None:
    async with opened(kind(make)) as bench:
        await bench.feed("x")
        with pytest.raises(ElementFailed, match=instead) as failed:
            await bench.operator.finish()

        assert isinstance(failed.value.__cause__, InvalidFunctionResult)
        assert bench.shown == []


@pytest.mark.parametrize("kind", ["thread", "callback"])
async def test_other_kinds_of_functions_are_looked_at_too(kind: str) -> None:
    class Thread(BlockingFunction):
        def invoke(self, value, ctx):
            return 1, 2

    class Callback(CallbackFunction):
        def async_invoke(self, value, result_future):
            result_future.complete([nothing()])

    async with opened(Thread() if kind == "thread" else Callback(), on_error="fail") as bench:
        await bench.feed("x")
        with pytest.raises(ElementFailed, match="InvalidFunctionResult"):
            await bench.operator.finish()


@pytest.mark.parametrize(
    ("outputs", "shown"), [((), []), ((1,), [1]), ([(1, 2)], [(1, 2)]), ({1}, [1]), (range(3), [0, 1, 2])]
)
@pytest.mark.parametrize("kind", [lambda make: Instant(lambda _: make()), BatchOf], ids=["one by one", "batch"])
async def test_every_other_iterable_is_one_of_outputs(kind: Callable[[Any], Any], outputs: Any, shown: Any) -> None:
    async with opened(kind(lambda: outputs)) as bench:
        await bench.feed("x")
        await bench.operator.finish()

        assert bench.shown == shown


@pytest.mark.parametrize("outputs", [(), (1,), {1, 2}, range(3), [(1, 2)]])
def test_outputs_that_were_looked_at_may_be_looked_at_again(outputs: Any) -> None:
    assert list(checked(checked(outputs))) == list(outputs)


@pytest.mark.parametrize("result", ["ab", {"a": 1, "b": 2}, None, 5])
async def test_a_batch_has_a_list_of_results(result: Any) -> None:
    class Odd(AsyncBatchFunction):
        async def async_invoke_batch(self, values: Any, ctxs: Any) -> Any:
            return result

    async with opened(Odd()) as bench:
        await bench.feed("x", "y")
        with pytest.raises(ElementFailed, match="a list with one list of outputs for each value"):
            await bench.operator.finish()


async def test_state_without_a_key_is_refused_rather_than_dropped_from_the_next_snapshot() -> None:
    store = new_store()
    async with opened(Service(), max_parallelism=16) as bench:
        cut = await bench.operator.snapshot()
    state = OperatorStateCut("offsets", "split", (("topic", 7),))
    snapshot = await commit(replace(cut, operator_states=(state,)), store=store)

    bench = Bench(Service(), max_parallelism=16)
    with pytest.raises(IncompatibleSnapshot, match="'offsets'"):
        await bench.operator.open(snapshot.restore(0))
    await bench.operator.close()
