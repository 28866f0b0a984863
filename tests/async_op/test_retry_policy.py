"""The retry policy: which outcomes get another attempt, after which delay, and how many."""

from __future__ import annotations

import random
from typing import Any

import pytest

from async_op import (
    AsyncFunction,
    ElementFailed,
    ExponentialBackoffRetry,
    FixedDelayRetry,
    InvocationContext,
    Record,
    RetryAfter,
)
from keygroups import ConfigError
from tests.async_op.kit import BOTH, Service, empty, opened


class EvenOnly(AsyncFunction):
    """Has no answer for odd numbers, however often it is asked."""

    def __init__(self) -> None:
        self.attempts: dict[int, list[int]] = {}

    async def async_invoke(self, value: int, ctx: InvocationContext) -> list[int]:
        self.attempts.setdefault(value, []).append(ctx.attempt)
        return [] if value % 2 else [2 * value]


@pytest.mark.behaviour("a strategy decides by attempts, result and error")
@BOTH
async def test_a_result_may_be_asked_for_again(mode: str) -> None:
    function = EvenOnly()
    async with opened(function, mode=mode, capacity=6, retry=FixedDelayRetry(3, 0.1, retry_if_result=empty)) as bench:
        async with bench.feeding(*[Record(value, value) for value in range(1, 9)]) as feeding:
            await bench.clock.advance(1)
            await feeding
            await bench.clock.advance(1)

        expected = [Record(4, 2), Record(8, 4), Record(12, 6), Record(16, 8)]
        assert (bench.outputs if mode == "ordered" else sorted(bench.outputs)) == expected
        assert bench.in_flight == 0
    assert function.attempts == {value: [1, 2, 3] if value % 2 else [1] for value in range(1, 9)}


@pytest.mark.behaviour("the delay is computed from the attempt: fixed, or exponential with full jitter")
async def test_an_error_is_retried_after_the_delay() -> None:
    service = Service()
    async with opened(service, retry=FixedDelayRetry(3, 10)) as bench:
        await bench.feed("x")
        await service.fail("x", ValueError("once"))
        await bench.clock.advance(9.9)
        assert service.called == ["x"]

        await bench.clock.advance(0.1)
        assert [call.attempt for call in service.calls] == [1, 2]
        await service.answer("x")
        assert bench.shown == ["x"]
        assert bench.operator.statistics().retries == 1


@pytest.mark.behaviour("after an error of the function, with retries, close does not hang")
@pytest.mark.behaviour("a maximum of n makes n calls, the first included")
@pytest.mark.behaviour("the outcome of the last attempt is final")
async def test_the_last_error_of_too_many_fails_the_operator() -> None:
    service = Service()
    async with opened(service, retry=FixedDelayRetry(3, 1)) as bench:
        await bench.feed("x")
        errors = [ValueError(number) for number in range(3)]
        for error in errors:
            await service.fail("x", error)
            await bench.clock.advance(1)

        with pytest.raises(ElementFailed, match="attempt 3 of element 'x'") as raised:
            await bench.operator.finish()
        assert raised.value.__cause__ is errors[2]
        assert service.called == ["x"] * 3


@pytest.mark.behaviour("the outcome of the last attempt is final")
async def test_the_last_result_of_too_many_is_the_result() -> None:
    service = Service()
    async with opened(service, retry=FixedDelayRetry(2, 1, retry_if_result=lambda outputs: "?" in outputs)) as bench:
        await bench.feed("x")
        await service.answer("x", outputs=["?"])
        assert bench.shown == []
        await bench.clock.advance(1)
        await service.answer("x", outputs=["?", "!"])

        assert bench.shown == ["?", "!"]


@pytest.mark.behaviour("a policy without a predicate retries every error and no result")
@pytest.mark.behaviour("a strategy decides by attempts, result and error")
@pytest.mark.parametrize(
    ("retry_on", "error", "again"),
    [
        (None, ValueError(), True),
        (OSError, ConnectionError(), True),
        (OSError, ValueError(), False),
        ((OSError, ValueError), ValueError(), True),
        ((OSError, ValueError), TypeError(), False),
        (lambda error: "busy" in str(error), OSError("busy"), True),
        (lambda error: "busy" in str(error), OSError("gone"), False),
    ],
    ids=["any", "type", "other type", "types", "other than these", "predicate", "predicate says no"],
)
async def test_the_policy_tells_which_errors_are_retried(retry_on: Any, error: Exception, again: bool) -> None:
    service = Service()
    async with opened(service, retry=FixedDelayRetry(2, 0, retry_on=retry_on)) as bench:
        await bench.feed("x")
        await service.fail("x", error)
        await bench.clock.advance(0)

        assert len(service.calls) == 1 + again
        assert bench.operator.statistics().retries == again


@pytest.mark.behaviour("a policy without a predicate retries every error and no result")
async def test_results_are_final_unless_the_policy_looks_at_them() -> None:
    async with opened(EvenOnly(), retry=FixedDelayRetry(9, 0)) as bench:
        await bench.feed(1)

        assert (bench.shown, bench.in_flight) == ([], 0)


@pytest.mark.behaviour("a policy without a predicate retries every error and no result")
async def test_an_error_that_no_policy_looks_at_is_final() -> None:
    service = Service()
    async with opened(service) as bench:
        await bench.feed("x")
        await service.fail("x", RetryAfter(5))

        with pytest.raises(ElementFailed, match="give the operator a retry policy"):
            await bench.operator.finish()


async def test_a_service_may_say_when_to_come_again() -> None:
    service = Service()
    async with opened(service, retry=FixedDelayRetry(3, 1, retry_on=OSError)) as bench:
        await bench.feed("x")
        await service.fail("x", RetryAfter(30))
        await bench.clock.advance(29)
        assert len(service.calls) == 1
        await bench.clock.advance(1)
        assert len(service.calls) == 2

        await service.fail("x", RetryAfter(0))
        await bench.clock.advance(0)
        assert len(service.calls) == 3
        await service.fail("x", RetryAfter(0))
        with pytest.raises(ElementFailed, match="attempt 3"):
            await bench.operator.finish()


@pytest.mark.behaviour("the delay is computed from the attempt: fixed, or exponential with full jitter")
async def test_delays_grow_for_each_element_on_its_own() -> None:
    """What one element has been through does not make another wait longer."""
    service = Service()
    async with opened(service, retry=ExponentialBackoffRetry(9, 1, 5, multiplier=3, jitter=False)) as bench:
        await bench.feed("old")
        for delay in (1, 3, 5, 5):
            await service.fail("old", ValueError())
            await bench.clock.advance(delay - 0.1)
            assert service.running == []
            await bench.clock.advance(0.1)
            assert service.running == ["old"]

        await bench.feed("new")
        await service.fail("new", ValueError())
        await bench.clock.advance(1)
        assert service.running == ["old", "new"]


def test_jitter_draws_from_zero_to_the_whole_delay() -> None:
    random.seed(7)
    policy = ExponentialBackoffRetry(9, 1.0, 4.0)
    drawn = [policy.delay_after(5) for _ in range(1000)]

    assert 0 <= min(drawn) < 0.1
    assert 3.9 < max(drawn) <= 4.0
    assert 1.8 < sum(drawn) / len(drawn) < 2.2


def test_a_delay_never_outgrows_its_limit_however_many_attempts() -> None:
    policy = ExponentialBackoffRetry(10**9, 0.5, 60.0, multiplier=10.0, jitter=False)

    assert policy.delay_after(100_000) == 60.0


def exponential(attempts: int, delay: float, **rest: Any) -> ExponentialBackoffRetry:
    """Return a policy whose delays do not grow."""
    return ExponentialBackoffRetry(attempts, delay, 60, multiplier=1, jitter=False, **rest)


@pytest.mark.parametrize("policy", [FixedDelayRetry, exponential])
def test_every_policy_looks_at_errors_and_results(policy: Any) -> None:
    chosen = policy(3, 2.0, retry_on=OSError, retry_if_result=empty)

    assert chosen.delay_after_error(1, OSError()) == 2.0
    assert chosen.delay_after_error(1, ValueError()) is None
    assert chosen.delay_after_error(3, OSError()) is None
    assert chosen.delay_after_result(2, []) == 2.0
    assert chosen.delay_after_result(2, ["x"]) is None
    assert chosen.delay_after_result(3, []) is None


def test_a_policy_shows_its_settings() -> None:
    assert repr(FixedDelayRetry(3, 0.5)) == "FixedDelayRetry(max_attempts=3, delay=0.5)"
    assert repr(exponential(3, 0.5, retry_on=OSError)) == (
        "ExponentialBackoffRetry(max_attempts=3, retry_on=OSError, initial_delay=0.5, max_delay=60.0, multiplier=1.0,"
        " jitter=False)"
    )


def test_delays_may_grow_slowly() -> None:
    policy = ExponentialBackoffRetry(9, 4, 60, multiplier=1.5, jitter=False)

    assert [policy.delay_after(attempt) for attempt in (1, 2, 3)] == [4, 6, 9]


ERRORS = "use an exception type, a tuple of them, or a predicate"


@pytest.mark.parametrize(
    ("option", "value", "instead"),
    [
        ("max_attempts", 0, "must be at least 1; the first call is an attempt, too"),
        ("delay", -1, "must be a finite number of seconds, zero or more"),
        ("retry_on", (OSError, "x"), "every item of the tuple must be an exception type"),
        ("retry_on", (OSError, int), "every item of the tuple must be an exception type"),
        ("retry_on", int, f"int is not an exception type; {ERRORS}"),
        ("retry_on", 5, f"pass a callable, not a value of type int; {ERRORS}"),
        (
            "retry_if_result",
            5,
            "pass a callable, not a value of type int; it decides from the outputs whether to retry",
        ),
    ],
)
def test_a_setting_that_is_refused_is_named_with_what_to_pass(option: str, value: Any, instead: str) -> None:
    settings = {"max_attempts": 3, "delay": 1} | {option: value}

    with pytest.raises(ConfigError) as refused:
        FixedDelayRetry(**settings)  # type: ignore[arg-type]

    assert (refused.value.name, refused.value.value) == (option, value)
    assert str(refused.value) == f"{option}={value!r}: {instead}"


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: FixedDelayRetry(0, 1), "max_attempts=0"),
        (lambda: FixedDelayRetry(1, -1), "delay=-1"),
        (lambda: FixedDelayRetry(1, float("inf")), "delay=inf"),
        (lambda: FixedDelayRetry(1, float("nan")), "delay=nan"),
        (lambda: ExponentialBackoffRetry(0, 1, 1), "max_attempts=0"),
        (lambda: ExponentialBackoffRetry(1, -1, 1), "initial_delay=-1: .*seconds"),
        (lambda: ExponentialBackoffRetry(1, 1, -1), "max_delay=-1: .*seconds"),
        (lambda: ExponentialBackoffRetry(1, 1, 1, 0.5), "multiplier=0.5: delays may not shrink"),
        (lambda: ExponentialBackoffRetry(1, 1, 1, "2"), "multiplier='2': pass a number.*; delays may not shrink"),
        (lambda: ExponentialBackoffRetry(1, 1, 1, jitter=0.5), "jitter=0.5: pass True or False"),
        (lambda: RetryAfter(-1), "seconds=-1"),
    ],
    ids=range(11),
)
def test_a_policy_that_can_never_work_is_refused(make: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        make()
