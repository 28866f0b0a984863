"""Plain functions in place of classes: what is returned is the one output, what is yielded are the outputs."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import sys
import threading
import types
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest

from async_op import (
    AsyncDataStream,
    AsyncFunction,
    BlockingFunction,
    ElementFailed,
    InvalidFunctionResult,
    InvocationContext,
    Resilience,
    SingleFlight,
    function,
)
from async_op.functions.plain import as_function, name_of
from keygroups import ConfigError, ListState, ValueState
from tests.async_op.kit import BOTH, Instant, opened

COUNT = ValueState("count", default=0)


async def coroutine(value: Any) -> Any:
    return value


async def asynchronous_generator(value: Any) -> Any:
    yield value
    yield -value


def returning(value: Any) -> Any:
    return value


def generator(value: Any) -> Any:
    yield value
    yield -value


class Calling:
    async def __call__(self, value: Any) -> Any:
        return value


class Marked:
    """Returns a coroutine, and says so as the wrappers of asgiref and async_lru do."""

    def __init__(self) -> None:
        if sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(self)
        else:
            self._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]

    def __call__(self, value: Any) -> Any:
        return coroutine(value)


class Yielding:
    async def __call__(self, value: Any) -> Any:
        yield value
        yield -value


class Counting:
    def __init__(self) -> None:
        self.states = "mine"
        self.calls = 0

    def __call__(self, value: Any) -> Any:
        self.calls += 1
        return value


@types.coroutine
def generator_based(value: Any) -> Any:
    yield from asyncio.sleep(0).__await__()
    return value


async def scaled(factor: int, value: int) -> int:
    return factor * value


def decorated(call: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(call)(lambda *args, **kwargs: call(*args, **kwargs))


async def outputs_of(given: Any, values: Any = (1, 2), **options: Any) -> list[Any]:
    return [output async for output in AsyncDataStream.ordered_wait(values, given, **options)]


ONE, BOTH_SIGNS = [1, 2], [1, -1, 2, -2]

KINDS: list[tuple[str, Any, list[Any], bool]] = [
    ("coroutine function", coroutine, ONE, True),
    ("async generator", asynchronous_generator, BOTH_SIGNS, True),
    ("function", returning, ONE, False),
    ("lambda", lambda value: value, ONE, False),
    ("generator", generator, BOTH_SIGNS, False),
    ("decorated generator", decorated(generator), BOTH_SIGNS, False),
    ("returned generator", lambda value: (sign * value for sign in (1, -1)), BOTH_SIGNS, False),
    ("builtin", abs, ONE, False),
    ("method", [1, 2, 3].count, [1, 1], False),
    ("partial coroutine function", functools.partial(scaled, 3), [3, 6], True),
    ("partial function", functools.partial(math.pow, 2), [2, 4], False),
    ("instance that is called", Counting(), ONE, False),
    ("instance that is awaited", Calling(), ONE, True),
    ("instance that yields", Yielding(), BOTH_SIGNS, True),
    ("partial instance", functools.partial(Calling()), ONE, True),
    ("marked instance", Marked(), ONE, True),
    ("partial marked instance", functools.partial(Marked()), ONE, True),
    ("generator-based coroutine", generator_based, ONE, True),
    ("mock that is awaited", AsyncMock(side_effect=coroutine), ONE, True),
]


@pytest.mark.parametrize(("given", "outputs"), [row[1:3] for row in KINDS], ids=[row[0] for row in KINDS])
async def test_every_kind_of_plain_function_is_one(given: Any, outputs: list[Any]) -> None:
    assert await outputs_of(given) == outputs


@pytest.mark.parametrize(("given", "on_loop"), [row[1::2] for row in KINDS], ids=[row[0] for row in KINDS])
def test_what_awaits_runs_on_the_loop_and_all_else_on_threads(given: Any, on_loop: bool) -> None:
    assert isinstance(as_function(given), AsyncFunction if on_loop else BlockingFunction)


@pytest.mark.parametrize("output", [None, [], [1, 2], (), (1, 2), "text", {"a": 1}, {1}])
@pytest.mark.parametrize("on", ["loop", "thread", "coroutine"])
async def test_what_is_returned_is_the_one_output(output: Any, on: str) -> None:
    async def awaited(value: Any) -> Any:
        return output

    given = awaited if on == "coroutine" else function(on=on)(lambda value: output)  # type: ignore[call-overload]

    assert await outputs_of(given, [0]) == [output]


@pytest.mark.parametrize("on", ["auto", "loop", "thread"])
async def test_on_says_which_thread_calls_a_function(on: Any) -> None:
    threads = await outputs_of(function(on=on)(lambda value: threading.current_thread()))

    assert (set(threads) == {threading.current_thread()}) is (on == "loop")


async def test_no_more_threads_run_than_are_allowed() -> None:
    running: list[int] = []
    together: list[int] = []

    @function(max_threads=1)
    def alone(value: int) -> int:
        running.append(value)
        together.append(len(running))
        running.remove(value)
        return value

    assert await outputs_of(alone, range(50)) == list(range(50))
    assert set(together) == {1}


async def test_the_second_parameter_gets_the_context_if_it_is_named_ctx() -> None:
    async def keyed(value: Any, ctx: InvocationContext) -> Any:
        return ctx.key, ctx.attempt

    def keyed_on_a_thread(value: Any, ctx: InvocationContext) -> Any:
        yield ctx.key, ctx.attempt

    async def defaulted(value: Any, other: Any = "mine") -> Any:
        return value, other

    assert await outputs_of(keyed, key_by=str) == [("1", 1), ("2", 1)]
    assert await outputs_of(keyed_on_a_thread, key_by=str) == [("1", 1), ("2", 1)]
    assert await outputs_of(functools.partial(lambda a, value, ctx: ctx.key, 0), key_by=str) == ["1", "2"]
    assert await outputs_of(defaulted) == [(1, "mine"), (2, "mine")]


def with_client(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    async def wrapper(value: Any) -> Any:
        return await call(value, "client")

    return wrapper


def logged(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await call(*args, **kwargs)

    return wrapper


def with_third(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    async def wrapper(self: Any, value: Any, ctx: Any) -> Any:
        return await call(self, value, ctx, "client")

    return wrapper


class Decorated:
    @logged
    async def method(self, value: Any, ctx: InvocationContext) -> Any:
        return value, ctx.key

    @logged
    async def __call__(self, value: Any, ctx: InvocationContext) -> Any:
        return value, ctx.key


async def test_a_decorated_function_is_called_as_its_wrapper_takes_arguments() -> None:
    @with_client
    async def injected(value: Any, client: Any) -> Any:
        return value, client

    @with_client
    async def misnamed(value: Any, ctx: Any) -> Any:
        return value, ctx

    @logged
    async def keyed(value: Any, ctx: InvocationContext) -> Any:
        return value, ctx.key

    for one in (injected, misnamed, logged(misnamed), logged(logged(injected))):
        assert await outputs_of(one, key_by=str) == [(1, "client"), (2, "client")]

    @logged
    async def bound(client: Any, value: Any, ctx: InvocationContext, *, option: Any) -> Any:
        return value, ctx.key

    partial = functools.partial(functools.partial(bound, "client"), option=1)
    for one in (keyed, logged(keyed), Decorated().method, Decorated(), partial, functools.partial(Decorated().method)):
        assert await outputs_of(one, key_by=str) == [(1, "1"), (2, "2")]


async def test_a_decorator_may_give_methods_their_client() -> None:
    class Enriched(AsyncFunction[Any, Any]):
        @with_third
        async def async_invoke(self, value: Any, ctx: InvocationContext, client: Any) -> Any:
            return [(value, client)]

    assert await outputs_of(Enriched()) == [(1, "client"), (2, "client")]


@pytest.mark.parametrize("on", ["loop", "thread", "auto"])
async def test_a_function_may_have_keyed_state(on: Any) -> None:
    def visits(value: Any, ctx: InvocationContext) -> Any:
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return value, count.value()

    async def visits_awaited(value: Any, ctx: InvocationContext) -> Any:
        return visits(value, ctx)

    given = function(states=(COUNT,), on=on)(visits_awaited if on == "auto" else visits)

    assert await outputs_of(given, "aba".replace("", " ").split(), key_by=str) == [("a", 1), ("b", 1), ("a", 2)]


async def test_state_without_a_key_is_refused_by_the_name_of_the_function() -> None:
    @function(states=(COUNT,))
    async def visits(value: Any, ctx: InvocationContext) -> Any:
        return value

    with pytest.raises(ConfigError, match="visits declares keyed state, so its elements need a key"):
        await outputs_of(visits)


@BOTH
async def test_yielded_outputs_leave_together_at_the_end(mode: Any) -> None:
    go_on = asyncio.Event()

    async def twice(value: Any) -> Any:
        yield value
        await go_on.wait()
        yield -value

    async with opened(twice, mode=mode) as bench:
        await bench.feed(1)
        assert bench.shown == []
        go_on.set()
        await bench.operator.finish()

        assert bench.shown == [1, -1]


@pytest.mark.parametrize("broken", [generator, asynchronous_generator])
async def test_what_was_yielded_before_an_error_does_not_leave(broken: Any) -> None:
    async with opened(broken, on_error="skip") as bench:
        await bench.feed("x")  # it has no negative
        await bench.operator.finish()

        assert (bench.shown, bench.operator.statistics().skipped) == ([], 1)


@pytest.mark.parametrize("on", ["loop", "thread"])
@pytest.mark.parametrize("hidden", [coroutine, asynchronous_generator])
async def test_a_coroutine_of_a_synchronous_function_is_refused(hidden: Any, on: Any) -> None:
    async with opened(function(on=on)(decorated(hidden))) as bench:
        await bench.feed(1)
        with pytest.raises(ElementFailed, match="`await` the call") as failed:
            await bench.operator.finish()

    assert isinstance(failed.value.__cause__, InvalidFunctionResult)


async def test_the_result_of_the_decorator_can_still_be_called() -> None:
    @function(states=(COUNT,))
    async def double(value: int) -> int:
        """Return the double."""
        return 2 * value

    assert await double(4) == 8  # type: ignore[operator]
    assert (double.__name__, double.__doc__) == ("double", "Return the double.")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (coroutine, "coroutine"),
        (functools.partial(scaled, 1), "scaled"),
        (Calling(), "Calling"),
        (function(on="loop")(returning), "returning"),
        (Instant(), "Instant"),
    ],
    ids=range(5),
)
def test_metrics_and_messages_know_it_by_its_name(given: Any, name: str) -> None:
    assert name_of(as_function(given)) == name


async def test_a_function_may_be_limited_as_every_other() -> None:
    called: list[int] = []

    async def slow(value: int) -> int:
        called.append(value)
        await asyncio.sleep(0)
        return value

    assert await outputs_of(slow, [1, 1], resilience=Resilience(single_flight=SingleFlight(str))) == [1, 1]
    assert called == [1]


def two(value: Any, other: Any) -> Any:
    return value


def none() -> Any:
    return None


REFUSED: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: as_function(int), "function", r"pass an instance, int\(\)"),  # type: ignore[arg-type]
    (lambda: as_function(Calling), "function", r"pass an instance, Calling\(\)"),
    (lambda: as_function(two), "function", r"define it with \(value\); it has"),
    (lambda: as_function(lambda x, context: x), "function", r"it has \(x, context\); a second .* is named `ctx`$"),
    (lambda: as_function(none), "function", r"define it with \(value\); it has \(\)"),
    (lambda: as_function(functools.partial(two, 1, 2)), "function", r"'two': define it with \(value\)"),
    (lambda: as_function("enrich"), "function", "pass a function"),  # type: ignore[arg-type]
    (lambda: function(coroutine), "function", r"write `@function\(\)`"),  # type: ignore[arg-type]
    (lambda: function(states=COUNT), "states", "with a comma"),  # type: ignore[arg-type]
    (lambda: function(states=(COUNT, ListState("count"))), "states", "two states have this name"),
    (lambda: function(on="process"), "on", "use one of auto, loop, thread"),  # type: ignore[arg-type]
    (lambda: function(on="thread")(coroutine), "on", "a coroutine function runs on the event loop"),
    (lambda: function(max_threads=2)(coroutine), "max_threads", "the event loop has one thread"),
    (lambda: function(max_threads=2, on="loop")(returning), "max_threads", "the event loop has one thread"),
    (lambda: function(max_threads=0)(returning), "max_threads", "at least one thread"),
    (lambda: function(max_threads="2")(returning), "max_threads", "must be an integer"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "name", "instead"), REFUSED, ids=range(len(REFUSED)))
def test_what_can_never_work_says_what_to_write(make: Callable[[], Any], name: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=instead) as refused:
        make()

    assert refused.value.name == name
