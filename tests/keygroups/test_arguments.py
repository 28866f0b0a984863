"""Arguments of descriptors and ranges that can never work."""

from __future__ import annotations

import asyncio
import math
import os
import types
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op import Cache, CircuitBreaker, ExponentialBackoffRetry, Job, RateLimit, Step
from async_op.connectors import FileSource, KafkaSource
from keygroups import (
    AggregatingState,
    ConfigError,
    KeyGroupRange,
    ListState,
    MapState,
    ReducingState,
    StateTtl,
    ValueState,
    default_max_parallelism,
    key_group_of,
    range_of,
    subtask_of,
)
from keygroups.arguments import (
    check_callable,
    check_duration,
    check_integer,
    check_location,
    check_number,
    check_positive_duration,
    not_awaitable,
    seconds_of,
)
from snapshots import SnapshotStore


async def asynchronous(*_: Any) -> Any:
    return None


def aggregating(**options: Any) -> AggregatingState:
    return AggregatingState(**{"name": "a", "create": list, "add": max, "result": len} | options)


def reducing(**options: Any) -> ReducingState:
    return ReducingState(**{"name": "r", "reduce": max} | options)


NAMES = [3, None, b"count", "", "a b", "../x", ["count"]]
TYPES = [int, "int64", pa.field("count", pa.int64()), pa.schema([]), 5]
TTLS = ["1h", True, math.nan, math.inf, 0, -1, 0.0001, 1e15, timedelta(), timedelta(microseconds=1), [60]]
CALLS = [5, "max", asynchronous, None]

DESCRIPTORS: list[tuple[Callable[..., Any], str, list[Any]]] = [
    *((kind, "name", NAMES) for kind in (ValueState, ListState, MapState, reducing, aggregating)),
    *((lambda k=kind, **o: k("x", **o), "type", TYPES) for kind in (ValueState, ListState, MapState)),
    *((make, "type", TYPES) for make in (reducing, aggregating)),
    *((lambda k=kind, **o: k("x", **o), "ttl", TTLS) for kind in (ValueState, ListState, MapState)),
    *((make, "ttl", TTLS) for make in (reducing, aggregating)),
    (reducing, "reduce", CALLS),
    (reducing, "reduce", [lambda one: one]),
    (aggregating, "add", [lambda one: one]),
    (aggregating, "create", [lambda one: one]),
    (aggregating, "result", [lambda: 0]),
    *((aggregating, call, CALLS) for call in ("create", "add", "result")),
    (lambda update: StateTtl(1, update), "update", [None, "read", ["write"]]),
]


@pytest.mark.parametrize(("make", "option", "values"), DESCRIPTORS, ids=range(len(DESCRIPTORS)))
def test_a_descriptor_refuses_it_by_name(make: Callable[..., Any], option: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError) as refused:
            make(**{option: value})
        assert refused.value.name == option


def test_a_time_to_live_may_be_a_timedelta() -> None:
    assert ValueState("x", ttl=timedelta(minutes=1)).time_to_live == StateTtl(timedelta(minutes=1))
    assert StateTtl(timedelta(minutes=1)).milliseconds == StateTtl(60).milliseconds == 60_000


@pytest.mark.parametrize("value", [True, "1", 1.0, None, math.nan, np.True_])
@pytest.mark.parametrize(
    "use",
    [
        lambda value: KeyGroupRange(value, 5),
        lambda value: KeyGroupRange(0, value),
        lambda value: range_of(value, 2, 8),
        lambda value: range_of(0, value, 8),
        lambda value: range_of(0, 1, value),
        lambda value: subtask_of(value, 2, 8),
        lambda value: default_max_parallelism(value),
        lambda value: key_group_of("x", value),
    ],
    ids=range(8),
)
def test_numbers_of_key_groups_and_subtasks_are_integers(use: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(ConfigError, match="must be an integer"):
        use(value)


@given(st.integers(-5, 5), st.integers(-5, 5), st.integers(-5, 5))
def test_an_integer_is_one_within_its_bounds(value: int, minimum: int, maximum: int) -> None:
    for given_value in (value, np.int16(value)):
        if minimum <= value <= maximum:
            assert check_integer("n", given_value, minimum, maximum, reason="") == value
        else:
            with pytest.raises(ConfigError):
                check_integer("n", given_value, minimum, maximum, reason="")


@pytest.mark.parametrize(
    "use",
    [
        lambda value: KeyGroupRange(value, 5),
        lambda value: KeyGroupRange(0, value),
        lambda value: range_of(0, value, 8),
        lambda value: range_of(0, 1, value),
        lambda value: default_max_parallelism(value),
        lambda value: CircuitBreaker(window=value),
        lambda value: RateLimit(5, burst=value),
        lambda value: Step(lambda element: element, capacity=value),
        lambda value: Job([1], lambda element: element, print, snapshots="memory://n", job_id="n", parallelism=value),
        lambda value: SnapshotStore("memory://n", "n").claim(parallelism=value),
    ],
    ids=range(10),
)
def test_a_number_that_is_kept_is_no_integer_of_numpy(use: Callable[[Any], Any]) -> None:
    with pytest.raises(ConfigError, match="pass an int, 2, not a value of type int64"):
        use(np.int64(2))


FINITE = "must be a finite number of seconds"


@pytest.mark.parametrize(
    ("check", "value", "told"),
    [
        (partial(check_integer, minimum=1), 0, "n=0: must be at least 1"),
        (partial(check_integer, minimum=1, maximum=5, reason="why"), 6, "n=6: must be between 1 and 5; why"),
        (check_duration, -1, "n=-1: must be a finite number of seconds, zero or more"),
        (
            partial(check_duration, reason="why"),
            math.inf,
            "n=inf: must be a finite number of seconds, zero or more; why",
        ),
        (
            partial(check_positive_duration, reason="why"),
            0,
            "n=0: must be a finite number of seconds, more than zero; why",
        ),
        (check_positive_duration, -1, "n=-1: must be a finite number of seconds, more than zero"),
    ],
)
def test_a_number_out_of_bounds_is_told_its_bounds(check: Callable[..., Any], value: float, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check("n", value)
    assert str(refused.value) == told


@given(st.one_of(st.floats(), st.integers(-10, 10), st.timedeltas(), st.fractions(-9, 9)))
def test_a_duration_is_zero_or_more_and_has_an_end(value: Any) -> None:
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if 0 <= seconds < math.inf:
        assert check_duration("d", value, reason="") == seconds
    else:
        with pytest.raises(ConfigError):
            check_duration("d", value, reason="")


@pytest.mark.parametrize("unit", ["generic", "ns", "s"])
def test_an_interval_of_numpy_is_no_number_of_seconds(unit: Any) -> None:
    for check in (check_number, check_duration, check_positive_duration):
        with pytest.raises(ConfigError, match="not a value of type timedelta64"):
            check("n", np.timedelta64(5, unit), reason="why")


def test_numbers_of_other_libraries_are_numbers() -> None:
    assert check_number("n", np.float32(0.5), reason="") == check_number("n", Fraction(1, 2), reason="") == 0.5
    assert check_duration("d", np.int64(5), reason="") == 5
    assert seconds_of(timedelta(seconds=5)) == seconds_of(5) == 5


@pytest.mark.parametrize("value", [True, "1", None, 1j, math.nan, math.inf, int])
def test_what_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="pass a (number|finite number).*; why") as refused:
        check_number("n", value, reason="why")
    assert refused.value.name == "n"


@given(st.one_of(st.floats(-5, 5), st.timedeltas(timedelta(-1), timedelta(1))))
def test_a_positive_duration_is_more_than_zero(value: Any) -> None:
    seconds = seconds_of(value)
    if seconds > 0:
        assert check_positive_duration("d", value, reason="") == seconds
    else:
        with pytest.raises(ConfigError):
            check_positive_duration("d", value, reason="")


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("bounded", lambda value: FileSource("*", "json", bounded=value)),
        ("bounded", lambda value: KafkaSource("t", {"bootstrap.servers": "localhost:1"}, bounded=value)),
        ("jitter", lambda value: ExponentialBackoffRetry(3, 1, 5, jitter=value)),
        ("empty", lambda value: Cache(key=str, max_entries=1, empty=value)),
        ("accept_loss", lambda value: SnapshotStore("memory://n", "n").claim(accept_loss=value)),
        ("rewrite", lambda value: SnapshotStore("memory://n", "n").repartition(2, rewrite=value)),
        ("dry_run", lambda value: SnapshotStore("memory://n", "n").collect_garbage(dry_run=value)),
        (
            "drain",
            lambda value: Job([1], lambda one: one, print, snapshots="memory://n", job_id="n").stop(drain=value),
        ),
    ],
    ids=range(8),
)
def test_text_is_neither_true_nor_false(name: str, use: Callable[[Any], Any]) -> None:
    with pytest.raises(ConfigError, match=f"{name}='no': pass True or False, not a value of type str"):
        use("no")


def yielding(*_: Any) -> Any:
    yield None


def test_a_generator_function_is_refused() -> None:
    for is_awaited in (True, False):
        with pytest.raises(ConfigError, match="use `return` instead of `yield`; why"):
            check_callable("c", yielding, 1, reason="why", awaited=is_awaited)


@pytest.mark.parametrize(
    "call", [lambda: 0, lambda one: 0, lambda one, two, three: 0, lambda one, two, *, three: 0], ids=range(4)
)
def test_a_call_with_other_arguments_is_refused_with_its_signature(call: Any) -> None:
    with pytest.raises(ConfigError, match=r"called with 2 arguments, and is defined with \(.*\); why"):
        check_callable("c", call, 2, reason="why")


@pytest.mark.parametrize(
    "call", [max, print, str, lambda *all_: 0, lambda one, two, three=3: 0, partial(pow, 2)], ids=range(6)
)
def test_a_call_that_may_take_the_arguments_is_taken(call: Any) -> None:
    check_callable("c", call, 2, reason="why")


def with_suffix(call: Callable[[Any, str], Any]) -> Callable[[Any], Any]:
    @wraps(call)
    def wrapper(value: Any) -> Any:
        return call(value, "suffix")

    return wrapper


def test_a_decorator_may_give_a_call_arguments_of_its_own() -> None:
    @with_suffix
    def key_of(value: Any, suffix: str) -> Any:
        return value + suffix

    check_callable("c", key_of, 1, reason="why")
    with pytest.raises(ConfigError, match=r"called with 2 arguments, and is defined with \(value: 'Any'\)"):
        check_callable("c", key_of, 2, reason="why")


async def generating(*_: Any) -> Any:
    yield None


class Calling:
    async def __call__(self) -> None:
        pass


@types.coroutine
def generator_based(*_: Any) -> Any:
    yield


UNAWAITED = [asynchronous, generating, partial(partial(asynchronous, 1), 2), Calling(), AsyncMock(), generator_based]


@pytest.mark.parametrize("call", UNAWAITED)
def test_a_call_that_nobody_awaits_is_no_coroutine_function(call: Any) -> None:
    with pytest.raises(ConfigError, match="use `def` in place of `async def`"):
        check_callable("call", call, 1, reason="")


@pytest.mark.parametrize("call", [generating, partial(generating, 1)])
def test_a_call_that_is_awaited_is_no_generator(call: Any) -> None:
    with pytest.raises(ConfigError, match="use `await` instead of `yield`"):
        check_callable("call", call, 1, reason="", awaited=True)
    check_callable("call", asynchronous, 1, reason="", awaited=True)


async def test_what_a_call_returns_is_refused_if_it_is_never_awaited() -> None:
    """A decorator hides that `call` is a coroutine function."""

    def call() -> Any:
        return asynchronous()

    check_callable("call", call, 0, reason="")
    with pytest.raises(ConfigError, match="call='<coroutine>': it returns something that is not awaited here"):
        not_awaitable("call", call())
    with pytest.raises(ConfigError, match="call='<Future>'"):
        not_awaitable("call", asyncio.get_running_loop().create_future())
    assert not_awaitable("call", 5) == 5


@pytest.mark.parametrize(("value", "named"), [(5, "a value of type int"), (None, "a value of type NoneType")])
def test_what_cannot_be_called_is_named(value: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=f"pass a callable, not {named}"):
        check_callable("call", value, 1, reason="")


class Somewhere:
    def __fspath__(self) -> str:
        return "/data/a"


@pytest.mark.parametrize("location", ["/data/a", Path("/data/a"), Somewhere()])
def test_a_location_is_text_or_a_path(location: object) -> None:
    assert check_location("folder", location, reason="where?") == "/data/a"


def test_a_location_may_have_bytes_that_are_no_text() -> None:
    named = os.fsdecode(b"/data/caf\xe9")
    assert check_location("folder", named, reason="where?") == named


@pytest.mark.parametrize("location", [None, "", " ", b"/data/a", 5, ["/data/a"], "/data/\0", "/data/\ud800"])
def test_other_locations_are_refused(location: object) -> None:
    with pytest.raises(ConfigError, match=r"folder=.*where\?"):
        check_location("folder", location, reason="where?")
