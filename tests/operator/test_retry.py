"""Further attempts at an element: which outcomes get one, when, and that an element still has one result in the end."""

from __future__ import annotations

import random
from typing import Any

import pytest

from async_op import (
    AsyncFunction,
    AsyncTimeoutError,
    CallbackFunction,
    ElementFailed,
    ExponentialBackoffRetry,
    FixedDelayRetry,
    InvocationContext,
    Record,
    ResultFuture,
    RetryAfter,
    Watermark,
)
from keygroups import ConfigError, ValueState
from tests.operator.kit import Bench, Service, commit, opened, settle

BOTH = pytest.mark.parametrize("mode", ["ordered", "unordered"])
COUNT = ValueState("count", default=0)


def empty(outputs: Any) -> bool:
    return not outputs


class EvenOnly(AsyncFunction):
    """Has no answer for odd numbers, however often it is asked."""

    def __init__(self) -> None:
        self.attempts: dict[int, list[int]] = {}

    async def async_invoke(self, value: int, ctx: InvocationContext) -> list[int]:
        self.attempts.setdefault(value, []).append(ctx.attempt)
        return [] if value % 2 else [2 * value]


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


async def test_an_error_is_tried_again_after_the_delay() -> None:
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


async def test_the_last_result_of_too_many_is_the_result() -> None:
    service = Service()
    async with opened(service, retry=FixedDelayRetry(2, 1, retry_if_result=lambda outputs: "?" in outputs)) as bench:
        await bench.feed("x")
        await service.answer("x", outputs=["?"])
        assert bench.shown == []
        await bench.clock.advance(1)
        await service.answer("x", outputs=["?", "!"])

        assert bench.shown == ["?", "!"]


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
async def test_the_policy_tells_which_errors_are_tried_again(retry_on: Any, error: Exception, again: bool) -> None:
    service = Service()
    async with opened(service, retry=FixedDelayRetry(2, 0, retry_on=retry_on)) as bench:
        await bench.feed("x")
        await service.fail("x", error)
        await bench.clock.advance(0)

        assert len(service.calls) == 1 + again
        assert bench.operator.statistics().retries == again


async def test_results_are_final_unless_the_policy_looks_at_them() -> None:
    async with opened(EvenOnly(), retry=FixedDelayRetry(9, 0)) as bench:
        await bench.feed(1)

        assert (bench.shown, bench.in_flight) == ([], 0)


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


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: FixedDelayRetry(0, 1), "max_attempts=0"),
        (lambda: FixedDelayRetry(1, -1), "delay=-1"),
        (lambda: FixedDelayRetry(1, float("inf")), "delay=inf"),
        (lambda: FixedDelayRetry(1, float("nan")), "delay=nan"),
        (lambda: ExponentialBackoffRetry(0, 1, 1), "max_attempts=0"),
        (lambda: ExponentialBackoffRetry(1, -1, 1), "initial_delay=-1"),
        (lambda: ExponentialBackoffRetry(1, 1, -1), "max_delay=-1"),
        (lambda: ExponentialBackoffRetry(1, 1, 1, 0.5), "multiplier=0.5"),
        (lambda: RetryAfter(-1), "seconds=-1"),
    ],
    ids=range(9),
)
def test_a_policy_that_can_never_work_is_refused(make: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        make()


async def test_an_element_keeps_its_place_during_the_delay() -> None:
    service = Service()
    async with opened(service, capacity=1, retry=FixedDelayRetry(2, 10)) as bench:
        await bench.feed("x")
        await service.fail("x", ValueError())
        async with bench.feeding("y") as feeding:
            await bench.clock.advance(9)
            assert (feeding.done(), bench.in_flight, service.running) == (False, 1, [])
            await bench.clock.advance(1)
            await service.answer("x")
            await feeding
        assert service.running == ["y"]


async def test_the_order_holds_although_an_element_is_tried_again() -> None:
    service = Service()
    async with opened(service, mode="ordered", retry=FixedDelayRetry(2, 10)) as bench:
        await bench.feed("a", Watermark(1), "b")
        await service.fail("a", ValueError())
        await service.answer("b")
        assert bench.shown == []
        await bench.clock.advance(10)
        await service.answer("a")
        assert bench.shown == ["a", Watermark(1), "b"]


async def test_a_key_in_its_delay_holds_up_nobody_but_itself() -> None:
    class Stateful(Service):
        states = (COUNT,)

    service = Stateful()
    async with opened(service, key_by=lambda value: value[0], retry=FixedDelayRetry(2, 10)) as bench:
        await bench.feed("a1", "a2", "b1")
        await service.fail("a1", ValueError())
        assert service.running == ["b1"]
        await service.answer("b1")
        await bench.clock.advance(10)
        assert service.running == ["a1"]
        await service.answer("a1", "a2")
        assert bench.shown == ["b1", "a1", "a2"]


async def test_what_a_failed_attempt_has_written_is_forgotten() -> None:
    class Writing(AsyncFunction):
        states = (COUNT,)

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            count = ctx.state(COUNT).value() + 1
            ctx.state(COUNT).update(count)
            if ctx.attempt < 3:
                raise ValueError(count)
            return [count]

    async with opened(Writing(), key_by=str, retry=FixedDelayRetry(3, 0)) as bench:
        await bench.feed("x")
        await bench.clock.advance(0)
        await bench.clock.advance(0)

        assert bench.shown == [1]


async def test_the_id_stays_the_same_over_all_attempts() -> None:
    service = Service()
    async with opened(service, retry=FixedDelayRetry(2, 0)) as bench:
        await bench.feed("x")
        await service.fail("x", ValueError())
        await bench.clock.advance(0)

        first, second = (call.ctx.idempotency_key for call in service.calls)
        assert first == second


@BOTH
async def test_a_function_that_completes_again_and_again_has_one_result_each(mode: str) -> None:
    class Repeating(CallbackFunction):
        def __init__(self) -> None:
            self.calls = 0

        def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            self.calls += 1
            for _ in range(3):
                result_future.complete([] if result_future.ctx.attempt < 3 else [value])
            result_future.complete_exceptionally(ValueError("ignored"))

    function = Repeating()
    async with opened(function, mode=mode, retry=FixedDelayRetry(5, 1, retry_if_result=empty)) as bench:
        await bench.feed("a", "b")
        await bench.clock.advance(1)
        await bench.clock.advance(1)

        assert bench.shown == ["a", "b"]
        assert function.calls == 6


# -- with a timeout


@BOTH
async def test_one_budget_covers_all_attempts_and_ends_them(mode: str) -> None:
    service = Service(fallback=lambda value: [f"late {value}"])
    async with opened(service, mode=mode, timeout=10, retry=FixedDelayRetry(100, 3)) as bench:
        await bench.feed("x")
        for _ in range(3):
            await service.fail("x", ValueError())
            await bench.clock.advance(3)
        assert (service.running, service.calls[-1].ctx.remaining) == (["x"], 1)

        await bench.clock.advance(1)
        assert (bench.shown, service.running, len(service.calls)) == (["late x"], [], 4)
        await bench.clock.advance(100)
        assert len(service.calls) == 4


@BOTH
async def test_a_timeout_in_the_delay_gives_the_fallback_at_once_and_no_further_call(mode: str) -> None:
    service = Service(fallback=lambda value: [f"late {value}"])
    async with opened(service, mode=mode, timeout=10, retry=FixedDelayRetry(3, 60)) as bench:
        await bench.feed("x")
        await service.fail("x", ValueError())
        await bench.clock.advance(10)
        assert (bench.shown, bench.in_flight) == (["late x"], 0)

        await bench.clock.advance(100)
        assert (service.called, bench.shown, bench.clock.timers) == (["x"], ["late x"], 0)


@BOTH
async def test_a_timeout_without_fallback_ends_the_attempts_of_a_function_that_always_fails(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode, timeout=5, retry=FixedDelayRetry(100, 2)) as bench:
        await bench.feed("x")
        while service.running:
            await service.fail("x", ValueError())
            await bench.clock.advance(2)

        with pytest.raises(AsyncTimeoutError):
            await bench.operator.finish()
        assert len(service.calls) == 3
    assert bench.clock.timers == 0


@pytest.mark.parametrize("delay", [5, 10])
async def test_a_retry_and_the_timeout_at_the_same_moment_give_one_result(delay: float) -> None:
    service = Service(fallback=lambda value: [f"late {value}"])
    async with opened(service, timeout=10, retry=FixedDelayRetry(9, delay)) as bench:
        await bench.feed("x")
        await service.fail("x", ValueError())
        await bench.clock.advance(5)
        if delay == 5:
            await service.fail("x", ValueError())
        await bench.clock.advance(5)

        assert bench.shown == ["late x"]
        assert service.running == []
        assert len(service.calls) <= 1 + 10 // delay
        await bench.operator.finish()


async def test_the_fallback_is_not_tried_again() -> None:
    def fail(value: Any) -> Any:
        raise ValueError("no fallback either")

    service = Service(fallback=fail)
    async with opened(service, timeout=1, retry=FixedDelayRetry(9, 0)) as bench:
        await bench.feed("x")
        await bench.clock.advance(1)

        with pytest.raises(ElementFailed, match="no fallback either"):
            await bench.operator.finish()
        assert service.timed_out == ["x"]


@BOTH
async def test_a_failing_function_with_retries_does_not_hang_close(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode, retry=FixedDelayRetry(9, 10)) as bench:
        await bench.feed("waits", "runs")
        await service.fail("waits", ValueError())

    assert (service.running, bench.clock.timers, bench.shown) == ([], 0, [])


async def test_one_timer_serves_all_delays() -> None:
    service = Service()
    async with opened(service, retry=ExponentialBackoffRetry(9, 5, 50)) as bench:
        await bench.feed(*range(20))
        for value in range(20):
            await service.fail(value, ValueError())

        assert bench.clock.timers == 1
        await bench.clock.advance(5)
        assert sorted(service.running) == list(range(20))
        assert bench.clock.timers == 0


# -- at the end of the input


async def test_at_the_end_the_last_attempt_comes_at_once_and_is_final() -> None:
    service = Service()
    async with opened(service, mode="ordered", retry=FixedDelayRetry(9, 60, retry_if_result=empty)) as bench:
        await bench.feed("waits", "also waits")
        await service.answer("waits", "also waits", outputs=[])
        async with finishing(bench) as end:
            assert service.running == ["waits", "also waits"]
            await service.answer("also waits")
            assert bench.shown == []
            await service.answer("waits", outputs=[])

            await end
        assert bench.shown == ["also waits"]
        assert bench.clock.timers == 0


async def test_at_the_end_a_running_attempt_is_not_made_twice() -> None:
    service = Service()
    async with opened(service, retry=FixedDelayRetry(9, 1)) as bench:
        await bench.feed("first", "second")
        await service.fail("second", ValueError())
        await bench.clock.advance(1)
        assert service.called == ["first", "second", "second"]

        async with finishing(bench) as end:
            assert service.called == ["first", "second", "second"]
            await service.answer("second", "first")
            await end
        assert bench.shown == ["second", "first"]


async def test_at_the_end_an_error_is_final() -> None:
    service = Service()
    async with opened(service, retry=FixedDelayRetry(9, 1)) as bench:
        await bench.feed("x")
        async with finishing(bench) as end:
            await service.fail("x", ValueError("final"))

            with pytest.raises(ElementFailed, match="final"):
                await end
        assert service.called == ["x"]


def finishing(bench: Bench) -> Any:
    """Finish in the background, as `Bench.feeding` feeds."""

    class Finishing:
        async def __aenter__(self) -> Any:
            import asyncio

            self.task = asyncio.create_task(bench.operator.finish())
            await settle()
            return self.task

        async def __aexit__(self, *_: object) -> None:
            self.task.cancel()
            await settle()

    return Finishing()


# -- over a restart


async def test_attempts_and_the_rest_of_a_delay_survive_a_restart() -> None:
    service = Service()
    async with opened(service, timeout=100, retry=FixedDelayRetry(4, 10)) as bench:
        await bench.feed("waits", "runs", "fresh")
        await service.fail("runs", ValueError())
        await bench.clock.advance(10)
        await service.fail("waits", ValueError())
        await bench.clock.advance(4)
        assert service.called == ["waits", "runs", "fresh", "runs"]
        snapshot = await commit(await bench.operator.snapshot())

    service = Service()
    async with opened(service, timeout=100, retry=FixedDelayRetry(4, 10), restore=snapshot.restore(0)) as bench:
        assert [(call.value, call.attempt) for call in service.calls] == [("runs", 2), ("fresh", 1)]
        await bench.clock.advance(5.9)
        assert len(service.calls) == 2
        await bench.clock.advance(0.1)
        assert (service.calls[2].value, service.calls[2].attempt) == ("waits", 2)
        assert service.calls[2].ctx.remaining == 80


async def test_no_attempt_is_won_by_a_restart() -> None:
    """However often it crashes, an element has so many calls that were seen to end, and no more."""
    snapshot = None
    attempts = []
    for _ in range(3):
        service = Service()
        restore = None if snapshot is None else snapshot.restore(0)
        async with opened(service, retry=FixedDelayRetry(3, 0), restore=restore) as bench:
            if restore is None:
                await bench.feed("x")
            attempts.append(service.calls[0].attempt)
            if len(attempts) < 3:
                await service.fail("x", ValueError())
                await bench.clock.advance(0)
                snapshot = await commit(await bench.operator.snapshot())
                continue
            await service.fail("x", ValueError())
            with pytest.raises(ElementFailed, match="attempt 3"):
                await bench.operator.finish()
    assert attempts == [1, 2, 3]
