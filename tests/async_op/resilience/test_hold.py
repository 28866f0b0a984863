"""When a service asks to wait, no call begins before; what needs no call does not wait, and all of it ends."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op import (
    AsyncDataStream,
    AsyncFunction,
    BlockingFunction,
    Budget,
    Cache,
    CallbackFunction,
    CircuitBreaker,
    FixedDelayRetry,
    RateLimit,
    Resilience,
    RetryAfter,
    SingleFlight,
)
from async_op.testing import run
from keygroups import ConfigError
from keygroups.state import StateAccessOutsideInvocation
from tests.async_op.batches import Batches, Doubles
from tests.async_op.kit import Bench, Instant, Service, commit, eventually, first, opened, settle

CALLS = RateLimit(1000, burst=1000)
LIMITS = {"calls": [CALLS], "calls and tokens": [CALLS, RateLimit(1000, cost=len, unit="tokens")]}
EACH = pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
PATIENT = FixedDelayRetry(3, 1.0)


def used_up(seconds: float) -> dict[str, str]:
    return {"X-RateLimit-Remaining-Tokens": "0", "X-RateLimit-Reset-Tokens": f"{seconds}s"}


@EACH
async def test_no_call_begins_before_the_time_that_a_refusal_names(limits: list[RateLimit]) -> None:
    service = Service()
    async with opened(service, resilience=Resilience(rate_limit=limits), retry=PATIENT) as bench:
        await bench.clock.advance(1)
        await bench.feed("a", "b")
        await service.fail("a", RetryAfter(30))
        await bench.feed("c", "d")
        await service.answer("b")  # it was under way
        await bench.clock.advance(29.9)
        assert (service.called, bench.shown) == (["a", "b"], ["b"])
        assert (bench.resilience.waiting, bench.resilience.rate_limited, bench.in_flight) == (2, 2, 3)
        await bench.clock.advance(0.1)
        assert sorted(service.called[2:]) == ["a", "c", "d"]
        assert (bench.resilience.waiting, bench.resilience.wait_seconds) == (0, pytest.approx(60))


@EACH
async def test_the_last_of_several_waits_counts_and_none_of_zero_stops_anybody(limits: list[RateLimit]) -> None:
    service = Service()
    async with opened(service, resilience=Resilience(rate_limit=limits), on_error="skip") as bench:
        await bench.clock.advance(1)
        await bench.feed("a", "b", "c")
        await service.fail("a", RetryAfter(0))
        await bench.feed("d")
        assert service.called == ["a", "b", "c", "d"]
        await service.fail("b", RetryAfter(20))
        await service.fail("c", RetryAfter(5))
        await bench.feed("e")
        await bench.clock.advance(19.9)
        assert service.called == ["a", "b", "c", "d"]
        await bench.clock.advance(0.1)
        assert service.called == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("limits", [[RateLimit(1)], [RateLimit(1), RateLimit(1, 9, cost=len, unit="tokens")]])
async def test_what_waited_for_the_rate_continues_at_its_pace_after_the_hold(limits: list[RateLimit]) -> None:
    service = Service()
    async with opened(service, resilience=Resilience(rate_limit=limits), on_error="skip") as bench:
        await bench.feed("a", "b", "c")
        await service.fail("a", RetryAfter(10))
        await bench.clock.advance(9.9)
        assert service.called == ["a"]
        await bench.clock.advance(0.1)
        assert service.called == ["a", "b"]
        await bench.clock.advance(1)
        assert service.called == ["a", "b", "c"]


@pytest.mark.parametrize(
    "resilience",
    [None, Resilience(budget=Budget(100, "tokens", cost=len)), Resilience(circuit_breaker=CircuitBreaker())],
    ids=["nothing", "budget", "breaker"],
)
async def test_without_a_rate_limit_only_the_element_waits(resilience: Resilience | None) -> None:
    service = Service()
    async with opened(service, resilience=resilience, retry=PATIENT) as bench:
        await bench.feed("a", "b")
        service.calls[1].ctx.heed(used_up(30))
        await service.fail("a", RetryAfter(30))
        await bench.feed("c")
        await bench.clock.advance(29.9)
        assert service.called == ["a", "b", "c"]
        await bench.clock.advance(0.1)
        assert service.called == ["a", "b", "c", "a"]


def ring(bench: Bench, after: float) -> None:
    """Let the one timer ring after some seconds, without letting the loop run."""
    (alarm,) = [timer for _, _, timer in bench.clock._timers if timer.armed]
    bench.clock.jump(after)
    alarm.armed = False
    alarm.callback()


SLOW = RateLimit(1, burst=2)


@pytest.mark.parametrize("limits", [[SLOW], [SLOW, RateLimit(1, 9, cost=len, unit="tokens")]])
async def test_whose_turn_has_come_but_who_has_not_begun_waits_again(limits: list[RateLimit]) -> None:
    service = Service()
    async with opened(service, resilience=Resilience(rate_limit=limits)) as bench:
        await bench.feed("a", "b", "c")
        ring(bench, 1.0)
        service.calls[0].ctx.heed(used_up(0.5))  # after the turn of b has come, and before b has taken it
        await bench.clock.advance(0.4)
        assert service.called == ["a"]
        await bench.clock.advance(0.1)
        begun = service.called[1:]
        await bench.clock.advance(0.5)  # what b did not use is given back, so c has what it needs now
        assert (len(begun), sorted(service.called)) == (1, ["a", "b", "c"])


@EACH
async def test_a_timer_that_rings_early_by_a_rounding_error_ends_the_hold(limits: list[RateLimit]) -> None:
    service = Service()
    async with opened(service, resilience=Resilience(rate_limit=limits)) as bench:
        await bench.clock.advance(1)
        await bench.feed("a")
        service.calls[0].ctx.heed(used_up(5))
        await bench.feed("b")
        ring(bench, 5 - 1e-9)
        await settle()
        assert (service.called, bench.resilience.rate_limited) == (["a", "b"], 1)


@EACH
async def test_a_wait_takes_from_the_time_budget_and_room_from_the_capacity(limits: list[RateLimit]) -> None:
    service = Service(fallback=lambda value: [f"late {value}"])
    async with opened(service, resilience=Resilience(rate_limit=limits), timeout=10, capacity=2) as bench:
        await bench.clock.advance(1)
        await bench.feed("a")
        service.calls[0].ctx.heed(used_up(30))
        await bench.feed("b")
        async with bench.feeding("c") as feeding:
            await bench.clock.advance(9.9)
            assert not feeding.done()
            await bench.clock.advance(0.1)
            assert feeding.done()
            assert (bench.shown, service.called) == (["late a", "late b"], ["a"])
            await bench.clock.advance(10)
            assert bench.shown == ["late a", "late b", "late c"]


async def test_what_needs_no_call_does_not_wait() -> None:
    service = Service()
    sharing = Resilience(
        cache=Cache(key=first, max_entries=10), single_flight=SingleFlight(first), rate_limit=RateLimit(1000, burst=9)
    )
    async with opened(service, resilience=sharing, retry=PATIENT) as bench:
        await bench.clock.advance(1)
        await bench.feed("a1", "b1")
        await service.fail("b1", RetryAfter(30))
        await bench.feed("a2", "c1")
        await service.answer("a1")
        await bench.feed("a3")
        assert (bench.shown, service.called) == (["a1"] * 3, ["a1", "b1"])
        assert (bench.resilience.shared, bench.resilience.cache_hits, bench.resilience.waiting) == (1, 1, 1)


@EACH
async def test_a_snapshot_does_not_wait_and_the_wait_ends_with_the_operator(limits: list[RateLimit]) -> None:
    service = Service()
    careful: dict[str, Any] = {"resilience": Resilience(rate_limit=limits), "retry": PATIENT, "mode": "ordered"}
    async with opened(service, **careful) as bench:
        await bench.clock.advance(1)
        await bench.feed("a", "b")
        await service.fail("a", RetryAfter(30))
        await bench.feed("c")
        await bench.clock.advance(5)
        cut = await bench.operator.snapshot()
    assert [(element.value, element.attempt) for element in cut.in_flight] == [("a", 2), ("b", 1), ("c", 1)]

    snapshot = await commit(cut)
    function = Instant()
    async with opened(function, restore=snapshot.restore(0, 1), **careful) as bench:
        await bench.clock.advance(25)
        await bench.operator.finish()
    assert bench.shown == ["a", "b", "c"]


@EACH
@pytest.mark.parametrize("refusal", ["whole", "one"])
async def test_a_batch_may_be_refused_as_a_whole_or_for_one_of_its_elements(
    limits: list[RateLimit], refusal: str
) -> None:
    function = Batches()
    async with opened(function, resilience=Resilience(rate_limit=limits), retry=PATIENT) as bench:
        await bench.clock.advance(1)
        await bench.feed("a", "b", "c")
        if refusal == "whole":
            await function.fail(0, RetryAfter(30))
        else:
            await function.answer(0, [["a"], RetryAfter(30), ["c"]])
        await bench.feed("d", "e", "f")
        await bench.clock.advance(29.9)
        assert function.called == [["a", "b", "c"]]
        await bench.clock.advance(6)
        again = ["a", "b", "c"] if refusal == "whole" else ["b"]
        assert sorted(function.called[1:]) == [again, ["d", "e", "f"]]


@EACH
@pytest.mark.parametrize("hurry", [False, True])
async def test_the_end_of_the_input_waits_too(limits: list[RateLimit], hurry: bool) -> None:
    service = Service()
    async with opened(service, resilience=Resilience(rate_limit=limits), retry=PATIENT) as bench:
        await bench.feed("a")
        await service.fail("a", RetryAfter(30))
        finishing = asyncio.create_task(bench.operator.finish(hurry=hurry))
        await bench.clock.advance(29.9)
        assert service.called == ["a"]
        await bench.clock.advance(0.1)
        await service.answer("a")
        await finishing
    assert bench.shown == ["a"]


# What a good answer says


class OnThreads(BlockingFunction):
    def invoke(self, value: Any, ctx: Any) -> list[Any]:
        ctx.heed(used_up(30))
        return [value]


class WithCallback(CallbackFunction):
    def async_invoke(self, value: Any, result_future: Any) -> None:
        def answer() -> None:
            result_future.ctx.heed(used_up(30))
            result_future.complete([value])

        threading.Thread(target=answer).start()


class InBatches(Doubles):
    max_batch_size = 1

    async def async_invoke_batch(self, values: Any, ctxs: Any) -> Any:
        ctxs[0].heed(used_up(30))
        return [[value] for value in values]


class Alone(AsyncFunction):
    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        ctx.heed(used_up(30))
        return [value]


@EACH
@pytest.mark.parametrize("function", [OnThreads, WithCallback, InBatches, Alone])
async def test_every_kind_of_function_respects_an_answer_after_which_nothing_remains(
    function: Any, limits: list[RateLimit]
) -> None:
    async with opened(function(), resilience=Resilience(rate_limit=limits)) as bench:
        await bench.clock.advance(1)
        await bench.feed("a")
        await eventually(lambda: bench.shown == ["a"])
        await bench.feed("b")
        await bench.clock.advance(29.9)
        assert (bench.shown, bench.resilience.waiting) == (["a"], 1)
        await bench.clock.advance(0.1)
        await eventually(lambda: bench.shown == ["a", "b"])


UNUSED: dict[str, dict[str, str]] = {
    "something remains": {"x-ratelimit-remaining-tokens": "5", "x-ratelimit-reset-tokens": "6m0s"},
    "nobody says when": {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-requests": "6m0s"},
    "it is over": {
        "date": "Wed, 21 Oct 2015 12:00:00 GMT",
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2015-10-21T11:00:00Z",
    },
    "another wish": {"retry-after": "30"},
    "nothing": {},
}


@pytest.mark.parametrize("headers", UNUSED.values(), ids=UNUSED)
async def test_an_answer_after_which_something_remains_stops_no_call(headers: dict[str, str]) -> None:
    service = Service()
    async with opened(service, resilience=Resilience(rate_limit=CALLS)) as bench:
        await bench.clock.advance(1)
        await bench.feed("a")
        service.calls[0].ctx.heed(headers)
        await bench.feed("b")
        assert service.called == ["a", "b"]


async def test_a_wait_is_bounded_and_counts_only_while_the_call_is_under_way() -> None:
    service = Service()
    async with opened(service, resilience=Resilience(rate_limit=CALLS)) as bench:
        await bench.clock.advance(1)
        await bench.feed("a")
        ctx = service.calls[0].ctx
        with pytest.raises(ConfigError):
            ctx.heed({}, maximum=0)
        ctx.heed(used_up(86_400))
        await bench.feed("b")
        await bench.clock.advance(59.9)
        assert service.called == ["a"]
        await bench.clock.advance(0.1)
        assert service.called == ["a", "b"]
        await service.answer("a")
        with pytest.raises(StateAccessOutsideInvocation):
            ctx.heed(used_up(30))


# Any order of events, in virtual time


class Planned(AsyncFunction):
    """A service that refuses at first, and looks whether anybody calls while it wants nobody to."""

    def __init__(self) -> None:
        self.refused: set[int] = set()
        self.until = 0.0

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        number, _, lasts, seconds, is_refused = value
        loop = asyncio.get_running_loop()
        assert loop.time() >= self.until, "a call begins though the service has asked to wait"
        await asyncio.sleep(lasts)
        if number not in self.refused:
            self.refused.add(number)
            self.until = max(self.until, loop.time() + seconds)
            if is_refused:
                raise RetryAfter(seconds)
            ctx.heed(used_up(seconds))
        return [number]


SECONDS = st.sampled_from([0.0, 0.5, 1.0, 4.0])
PLANS = st.lists(st.tuples(SECONDS, SECONDS, SECONDS, st.booleans()), max_size=20)


@given(PLANS, st.sampled_from(list(LIMITS.values())), st.sampled_from(["ordered", "unordered", "key_ordered"]))
def test_no_call_begins_within_a_wait_and_every_element_leaves_in_its_order(
    plans: list[Any], limits: list[RateLimit], mode: str
) -> None:
    values = [(number, *plan) for number, plan in enumerate(plans)]

    async def arrivals() -> Any:
        for value in values:
            await asyncio.sleep(value[1])
            yield value

    async def outputs() -> list[Any]:
        options: dict[str, Any] = {"key_by": lambda value: value[0] % 2} if mode == "key_ordered" else {}
        stream = getattr(AsyncDataStream, f"{mode}_wait")(
            arrivals(), Planned(), capacity=5, retry=PATIENT, resilience=Resilience(rate_limit=limits), **options
        )
        return [output async for output in stream]

    left = run(outputs())
    numbers = list(range(len(values)))
    assert sorted(left) == numbers
    if mode == "ordered":
        assert left == numbers
    if mode == "key_ordered":
        assert [sorted(left, key=lambda number: number % 2)] == [sorted(numbers, key=lambda number: number % 2)]
