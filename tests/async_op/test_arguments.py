"""Arguments that can never work: each is refused where it is passed, with words on what to pass instead."""

from __future__ import annotations

import asyncio
import functools
import math
import pickle
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import async_op
from async_op import (
    AdaptiveConcurrency,
    AsyncDataStream,
    AsyncWaitOperator,
    Cache,
    CircuitBreaker,
    ExponentialBackoffRetry,
    FixedDelayRetry,
    Job,
    RateLimit,
    Resilience,
    RetryAfter,
    SingleFlight,
)
from async_op.threads.wait_strategies import ParkWait, ProgressiveWait
from keygroups import ConfigError, DiskStateBackend
from tests.async_op.kit import Instant, Service, opened


async def asynchronous(value: Any) -> Any:
    return value


class Asynchronous:
    async def __call__(self, value: Any) -> Any:
        return value


async def generating(value: Any) -> Any:
    yield value


NO_INTEGERS = ["10", 10.0, True, None, math.nan]
NO_DURATIONS = ["5s", True, [1], math.nan, math.inf, -1, timedelta(seconds=-1)]
NO_CALLBACKS = [5, "print", asynchronous, Asynchronous(), functools.partial(asynchronous)]


def operator(**options: Any) -> AsyncWaitOperator:
    return AsyncWaitOperator(Service(), options.pop("output", print), **options)


OPERATOR: list[tuple[str, Any, str]] = [
    *(("capacity", value, "must be an integer") for value in NO_INTEGERS),
    *(("parallelism", value, "must be an integer") for value in NO_INTEGERS),
    *(("max_parallelism", value, "must be an integer") for value in ["10", 10.0, True]),
    *(("subtask_index", value, "must be an integer") for value in NO_INTEGERS),
    *(("timeout", value, "use None for no timeout") for value in [*NO_DURATIONS, 0, timedelta()]),
    *(("output", value, "it gets each Record and Watermark") for value in [5, "print", generating]),
    *(("key_by", value, "it returns the key of a value") for value in [5, asynchronous, Asynchronous()]),
    *(("key_by", value, "name at least one column") for value in [[], ["user", 5]]),
    *(("retry", value, "pass a policy") for value in [3, "3", FixedDelayRetry, True]),
    *(("resilience", value, "pass its parts by name") for value in [5, RateLimit(5), Resilience]),
    *(("mode", value, "use one of unordered, ordered, key_ordered") for value in [None, 1, ["ordered"], "sorted"]),
    *(("on_error", value, "use one of fail, skip, dead_letter") for value in [None, print, "ignore"]),
    *(("hash", value, "use one of") for value in [None, ["xxhash64"], 5]),
    *(("state_backend", value, "use 'memory' or a DiskStateBackend") for value in ["disk", None, DiskStateBackend]),
]


@pytest.mark.parametrize(("option", "value", "instead"), OPERATOR, ids=range(len(OPERATOR)))
def test_an_operator_refuses_it_by_name_and_says_what_to_pass(option: str, value: Any, instead: str) -> None:
    options = {"key_by": str} | {option: value}

    with pytest.raises(ConfigError) as refused:
        operator(**options)

    assert refused.value.name == option
    assert instead in str(refused.value)


@pytest.mark.parametrize("collect", [5, asynchronous])
def test_dead_letters_go_to_what_is_called_and_not_awaited(collect: Any) -> None:
    with pytest.raises(ConfigError, match=r"dead_letters=.*it gets each DeadLetter"):
        operator(on_error="dead_letter", dead_letters=collect)


def backoff(**options: Any) -> ExponentialBackoffRetry:
    return ExponentialBackoffRetry(**{"max_attempts": 3, "initial_delay": 1, "max_delay": 2} | options)


PARTS: list[tuple[Callable[..., Any], str, list[Any]]] = [
    (lambda **o: FixedDelayRetry(**{"max_attempts": 3, "delay": 1} | o), "max_attempts", [*NO_INTEGERS, 0, -1]),
    (lambda **o: FixedDelayRetry(**{"max_attempts": 3, "delay": 1} | o), "delay", [*NO_DURATIONS, None]),
    (backoff, "initial_delay", [*NO_DURATIONS, None]),
    (backoff, "max_delay", [*NO_DURATIONS, None]),
    (backoff, "multiplier", ["2", True, math.nan, math.inf, 0.5, None]),
    (backoff, "jitter", [0.5, "no", None, 1]),
    (backoff, "retry_on", ["OSError", [OSError], (OSError, "x"), int, 5, asynchronous]),
    (backoff, "retry_if_result", [5, asynchronous]),
    (RetryAfter, "seconds", NO_DURATIONS),
    (lambda **o: Cache(**{"key": str, "max_entries": 1} | o), "key", NO_CALLBACKS),
    (lambda **o: Cache(**{"key": str, "max_entries": 1} | o), "max_entries", [*NO_INTEGERS, 0]),
    (lambda **o: Cache(key=str, max_entries=1, **o), "ttl_seconds", [*NO_DURATIONS, 0]),
    (SingleFlight, "key", NO_CALLBACKS),
    (CircuitBreaker, "failure_rate", ["0.5", True, math.nan, 0, 1.5]),
    (CircuitBreaker, "window", [*NO_INTEGERS, 0, 10**9]),
    (CircuitBreaker, "open_seconds", [*NO_DURATIONS, 0, None]),
    (CircuitBreaker, "probes", [*NO_INTEGERS, 0]),
    (CircuitBreaker, "when_open", [None, "queue"]),
    (RateLimit, "per_second", ["fast", True, math.nan, math.inf, 0, -1, None]),
    (lambda **o: RateLimit(5, **o), "burst", ["10", 10.0, True, 0]),
    (AdaptiveConcurrency, "minimum", [*NO_INTEGERS, 0]),
    (AdaptiveConcurrency, "maximum", ["10", 10.0, True, 0]),
    (AdaptiveConcurrency, "slow_seconds", [*NO_DURATIONS, 0]),
    (AdaptiveConcurrency, "decrease", ["0.5", math.nan, 0, 1, None]),
    (ParkWait, "park_seconds", [*NO_DURATIONS, None]),
    (ProgressiveWait, "level1_count", [*NO_INTEGERS, -1]),
    (ProgressiveWait, "level2_count", [*NO_INTEGERS, -1]),
    (ProgressiveWait, "level3_sleep_seconds", [*NO_DURATIONS, None]),
    (DiskStateBackend, "cache_bytes", ["64MB", 1e9, True, None, 5]),
    *(
        (Resilience, part, [5, "on", RateLimit, object()])
        for part in ("cache", "single_flight", "concurrency", "circuit_breaker", "rate_limit")
    ),
    (Resilience, "failure_on", ["OSError", [OSError], asynchronous]),
]


@pytest.mark.parametrize(("make", "option", "values"), PARTS, ids=[f"{n} {part[1]}" for n, part in enumerate(PARTS)])
def test_a_part_refuses_it_by_name(make: Callable[..., Any], option: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError) as refused:
            make(**{option: value})
        assert refused.value.name == option


def test_a_timedelta_is_a_duration_wherever_there_is_one() -> None:
    second, minute = timedelta(seconds=1), timedelta(minutes=1)

    assert FixedDelayRetry(3, minute).delay_after(1) == 60
    assert backoff(initial_delay=second, max_delay=minute, jitter=False).delay_after(9) == 60
    assert RetryAfter(minute).seconds == 60
    Cache(key=str, max_entries=1, ttl_seconds=minute)
    CircuitBreaker(open_seconds=minute)
    AdaptiveConcurrency(slow_seconds=minute)
    ParkWait(second)
    ProgressiveWait(level3_sleep_seconds=second)


async def test_the_timeout_of_an_operator_may_be_a_timedelta() -> None:
    async with opened(Service(lambda value: ["late"]), timeout=timedelta(minutes=1)) as bench:
        await bench.feed("x")
        await bench.clock.advance(59.9)
        assert bench.shown == []
        await bench.clock.advance(0.1)

        assert bench.shown == ["late"]


async def test_outputs_are_cached_and_circuits_open_for_a_timedelta() -> None:
    parts = Resilience(
        cache=Cache(key=str, max_entries=9, ttl_seconds=timedelta(minutes=1)),
        circuit_breaker=CircuitBreaker(window=1, open_seconds=timedelta(minutes=1)),
        concurrency=AdaptiveConcurrency(slow_seconds=timedelta(minutes=1)),
    )
    service = Service()
    async with opened(service, resilience=parts, on_error="skip") as bench:
        await bench.feed("x")
        await service.answer("x")
        await bench.feed("x")
        assert service.called == ["x"]
        await bench.clock.advance(61)
        await bench.feed("x")
        assert service.called == ["x", "x"]
        await service.fail("x", OSError())
        await bench.feed("x")
        await bench.clock.advance(59)
        assert service.called == ["x", "x"]
        await bench.clock.advance(1)
        assert service.called == ["x", "x", "x"]


def job(**options: Any) -> Job:
    return Job([1], Instant(), print, snapshots="memory://arguments", job_id="job", **options)


LONG: list[Callable[[Any], Any]] = [
    lambda seconds: operator(timeout=seconds),
    lambda seconds: AsyncDataStream.ordered_wait([1], Instant(), timeout=seconds),
    lambda seconds: FixedDelayRetry(3, seconds),
    lambda seconds: backoff(initial_delay=seconds),
    lambda seconds: backoff(max_delay=seconds),
    lambda seconds: AsyncDataStream.ordered_wait([1], Instant(), timestamps=int, watermark_delay=seconds),
    lambda seconds: job(watermark_delay=seconds),
    lambda seconds: job(idle_timeout=seconds),
    lambda seconds: job(snapshot_interval=seconds),
]


@pytest.mark.parametrize("make", LONG, ids=range(len(LONG)))
def test_seconds_that_look_like_milliseconds_are_warned_of(make: Callable[[Any], Any]) -> None:
    with pytest.warns(async_op.LooksLikeMilliseconds, match=r"=5000 is in seconds.* pass 5, .*timedelta") as warned:
        make(5000)

    assert [warning.filename for warning in warned] == [__file__]
    for fine in (3600, timedelta(hours=2)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make(fine)


def test_the_warning_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(async_op.LooksLikeMilliseconds("timeout", 5000)))

    assert (again.name, again.seconds) == ("timeout", 5000)


COLUMNS: list[tuple[str | list[str], Any]] = [("user", "ann"), (["user"], "ann"), (["user", "n"], ("ann", 1))]


@pytest.mark.parametrize(("key_by", "key"), COLUMNS)
async def test_key_by_may_name_columns_of_dicts(key_by: Any, key: Any) -> None:
    service = Service()
    async with opened(service, key_by=key_by) as bench:
        await bench.feed({"user": "ann", "n": 1})

        assert service.calls[0].ctx.key == key


@pytest.mark.parametrize("value", [{"n": 1}, "text", 5, None, [1]])
async def test_a_value_without_the_column_is_refused(value: Any) -> None:
    async with opened(Service(), key_by="user") as bench:
        with pytest.raises(async_op.KeyColumnMissing, match="has no column 'user'") as refused:
            await bench.operator.process(value)

        assert (refused.value.column, refused.value.element) == ("user", repr(value))
        assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


@pytest.mark.parametrize("stream", ["text", b"bytes", bytearray(b"x"), {"a": 1}])
def test_a_lone_record_is_no_stream(stream: Any) -> None:
    with pytest.raises(ConfigError, match="Python would iterate over the parts"):
        AsyncDataStream.ordered_wait(stream, Service())


def test_settle_takes_a_timedelta() -> None:
    async def settled() -> bool:
        service = Service()
        async with opened(service) as bench:
            await bench.feed("x")
            waiting = asyncio.create_task(bench.operator.settle(timedelta(minutes=1)))
            await bench.clock.advance(60)
            return await waiting

    assert not asyncio.run(settled())
