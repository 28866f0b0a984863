"""Limits of what calls cost: no period has more than the limit, corrections count from the start, nobody starves."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from async_op import (
    AsyncFunction,
    BlockingFunction,
    CallbackFunction,
    CircuitBreaker,
    CostAboveLimit,
    ExponentialBackoffRetry,
    FixedDelayRetry,
    LoopClock,
    RateLimit,
    Resilience,
    UnknownUnit,
)
from async_op.call_costs import Spending
from async_op.resilience.cost_limits import _SIZE_MIN, Charge, Charges, CostLimiter
from async_op.resilience.waiting_line import Guest
from async_op.testing import run
from keygroups import ConfigError
from keygroups.state import StateAccessOutsideInvocation
from tests.async_op.batches import Doubles
from tests.async_op.kit import Bench, Instant, Service, commit, eventually, opened

EPSILON = 1e-6


def tokens(value: Any) -> Any:
    """Return the cost of elements that say it themselves, such as "a40"."""
    return int(value[1:])


def per_second(number: float, burst: int | None = None) -> RateLimit:
    return RateLimit(number, burst, cost=tokens, unit="tokens")


def limited(*limits: RateLimit, **parts: Any) -> Resilience:
    return Resilience(rate_limit=limits, **parts)


# What a rate's credit becomes


SECONDS = st.floats(0, 20)


@given(st.lists(st.tuples(SECONDS, SECONDS, st.none() | st.tuples(st.integers(0, 40), SECONDS)), max_size=120))
def test_a_correction_counts_as_if_the_charge_had_been_right_from_the_beginning(
    made: list[tuple[float, float, tuple[int, float] | None]],
) -> None:
    charges, now = Charges(3.0), 0.0
    history: list[tuple[float, Charge, float]] = []
    for pause, seconds, correction in made:
        now += pause
        history.append((now, charges.add(now, seconds), seconds))
        if correction is not None and correction[0] < len(history):
            place, corrected = correction
            at, charge, _ = history[place]
            if not charge.is_final:
                charges.correct(charge, corrected)
                history[place] = at, charge, corrected
        expected = 3.0
        for at, _, seconds_of_one in history:
            expected = max(expected, at) + seconds_of_one
        assert charges.full_at == pytest.approx(expected)


@pytest.mark.parametrize("first_is_open", [True, False])
def test_final_charges_take_no_room_whether_or_not_an_older_one_is_open(first_is_open: bool) -> None:
    charges = Charges(0.0)
    first = charges.add(0.0, 2.0)
    if not first_is_open:
        charges.correct(first, 2.0)
    for number in range(1, 1000):
        charges.correct(charges.add(float(number), 2.0), 0.5)

    assert len(charges) <= _SIZE_MIN
    assert charges.full_at == 999.5


def test_only_open_charges_are_remembered() -> None:
    charges = Charges(0.0)
    stuck = charges.add(0.0, 1.0)
    for number in range(10_000):
        charges.correct(charges.add(float(number), 0.5), 0.25)
        assert len(charges) <= 16

    charges.correct(stuck, 5_000.0)
    assert charges.full_at == 9_999.25


# What is admitted, in virtual time


class Call:
    """A call of a random run: when it comes, its estimated and its true cost, how long it takes, and its patience."""

    def __init__(self, arrives: float, cost: int, true: int, lasts: float, patience: float) -> None:
        self.arrives, self.cost, self.true, self.lasts, self.patience = arrives, cost, true, lasts, patience
        self.known = cost
        self.began: float | None = None
        self.corrected_at: float | None = None

    def known_before(self, now: float) -> int:
        """Return the cost as a call knew it that was admitted now: what happens in one instant has no order."""
        return min(self.cost, self.true) if self.corrected_at == now else self.known


CALLS = st.builds(
    Call,
    arrives=st.floats(0, 30),
    cost=st.integers(0, 100),
    true=st.integers(0, 150),
    lasts=st.sampled_from([0.0, 0.3, 5.0, 60.0]),
    patience=st.sampled_from([0.5, 1e6]),
)


def corrected_in_one_instant() -> list[Call]:
    """Return calls: one gives credit back, the last one takes it, and then another turns out to cost more."""
    patience = 1e6
    free = [Call(0.0, 0, 0, 0.0, patience) for _ in range(4)]
    return [*free, Call(0.0, 2, 0, 0.3, patience), Call(0.0, 0, 100, 0.3, patience), Call(0.0, 1, 0, 0.0, patience)]


@given(st.lists(CALLS, max_size=30), st.sampled_from([100, 130, 400]), st.sampled_from([1.0, 10.0, 500.0]))
@example(corrected_in_one_instant(), 100, 1.0)
def test_no_period_has_more_than_the_limit_and_whoever_is_patient_is_admitted(
    calls: list[Call], burst: int, rate: float
) -> None:
    begun: list[Call] = []
    limits = [RateLimit(rate, burst, cost=lambda call: call.cost, unit="tokens"), RateLimit(5.0, burst=2)]

    def check(now: float) -> None:
        """Look at every period that ends now: at what is known of the costs of the calls that began in it."""
        sum_of_tokens = 0
        for count, call in enumerate(reversed(begun), 1):
            assert call.began is not None
            sum_of_tokens += call.known_before(now)
            assert sum_of_tokens <= burst + rate * (now - call.began + EPSILON)
            assert count <= 2 + 5 * (now - call.began + EPSILON)

    async def make(call: Call, limiter: CostLimiter, clock: LoopClock) -> None:
        await asyncio.sleep(call.arrives)
        claim = limiter.claim([call])
        try:
            await asyncio.wait_for(claim.acquire(Guest()), call.patience)
        except TimeoutError:
            assert call.patience < 1e6
            return
        call.began = clock.time()
        begun.append(call)
        check(call.began)
        await asyncio.sleep(call.lasts)
        spending = Spending(frozenset({"tokens"}))
        spending.report({"tokens": call.true})
        call.known, call.corrected_at = call.true, clock.time()
        claim.settle(spending)

    async def make_all() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        limiter = CostLimiter(limits, (0, 1), clock)
        await asyncio.gather(*(make(call, limiter, clock) for call in calls))
        assert (len(limiter.line), limiter.line.first) == (0, None)

    run(make_all())
    patient = [call for call in calls if call.patience == 1e6]
    assert all(call.began is not None for call in patient)


async def test_calls_begin_in_their_order_and_none_overtakes_an_expensive_one() -> None:
    function = Instant()
    async with opened(function, resilience=limited(per_second(10, burst=100), RateLimit(1000))) as bench:
        await bench.feed("a1", "b100", "c1", "d1")
        assert function.called == ["a1"]
        await bench.clock.advance(9.9)
        assert function.called == ["a1"]
        await bench.clock.advance(0.1)
        assert function.called == ["a1", "b100"]
        await bench.clock.advance(0.2)
        assert function.called == ["a1", "b100", "c1", "d1"]
        assert (bench.resilience.rate_limited, bench.resilience.spent) == (3, {"tokens": 103})


async def test_no_limit_is_charged_while_a_call_waits_for_another_one() -> None:
    service = Service()
    limits = RateLimit(1, burst=2), per_second(10, burst=100)
    async with opened(service, resilience=limited(*limits)) as bench:
        await bench.feed("a1", "b100", "c0", "d0")
        await bench.clock.advance(60)

    # Calls are counted when they begin: two at once is the burst, though the first had to wait for ten seconds.
    assert service.called == ["a1", "b100", "c0", "d0"]


async def test_a_cheap_call_continues_when_the_expensive_one_before_it_has_given_up() -> None:
    function = Service(fallback=lambda value: [f"late {value}"])
    async with opened(function, resilience=limited(per_second(1, burst=100)), timeout=20) as bench:
        await bench.feed("a1", "b90")
        await function.answer("a1")
        await bench.clock.advance(15)
        await bench.feed("c2")
        await bench.clock.advance(5)
        assert (bench.shown, function.called) == (["a1", "late b90"], ["a1", "c2"])


async def test_a_call_that_no_limit_ever_admits_is_refused_by_name_and_not_retried() -> None:
    letters: list[Any] = []
    function = Instant()
    policy: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append}
    async with opened(
        function, resilience=limited(per_second(10, 100)), retry=FixedDelayRetry(5, 1.0), **policy
    ) as bench:
        await bench.feed("a101", "b1")
        assert bench.shown == ["b1"]

    (letter,) = letters
    assert isinstance(letter.error, CostAboveLimit)
    assert (letter.error.cost, letter.error.limit, letter.error.unit, letter.attempts) == (101, 100, "tokens", 1)
    assert ExponentialBackoffRetry(5, 1.0, 2.0).delay_after_error(1, letter.error) is None


async def test_what_costs_more_than_a_subtasks_share_waits_for_all_of_it() -> None:
    function = Instant()
    place: dict[str, Any] = {"parallelism": 4, "subtask_index": 1, "max_parallelism": 4}
    async with opened(function, resilience=limited(per_second(40, 100)), **place) as bench:
        await bench.feed("a100", "b1")
        await bench.clock.advance(2.3)
        assert function.called == []
        await bench.clock.advance(0.1)  # a share is 25 at 10 a second, and begins with one
        assert function.called == ["a100"]
        await bench.clock.advance(7.5)
        assert function.called == ["a100"]
        await bench.clock.advance(0.1)  # 76 are to be paid off before there is one again
        assert function.called == ["a100", "b1"]


async def test_a_rescaled_operator_has_another_share() -> None:
    resilience = limited(per_second(40, 100))
    async with opened(Instant(), resilience=resilience, mode="ordered", max_parallelism=4) as bench:
        await bench.feed("a41")
        await bench.clock.advance(1)
        assert bench.shown == ["a41"]
        snapshot = await commit(await bench.operator.snapshot())

    place: dict[str, Any] = {"parallelism": 2, "subtask_index": 0, "max_parallelism": 4}
    async with opened(Instant(), resilience=resilience, restore=snapshot.restore(0, 2), **place) as bench:
        await bench.feed("b41")
        await bench.clock.advance(1.9)
        assert bench.shown == []
        await bench.clock.advance(0.1)
        assert bench.shown == ["b41"]


@pytest.mark.parametrize("cost", [-1, float("nan"), "many", None, True])
async def test_a_cost_that_is_none_fails_the_element(cost: Any) -> None:
    letters: list[Any] = []
    limit = RateLimit(10, cost=lambda value: cost, unit="tokens")
    policy: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append}
    async with opened(Instant(), resilience=limited(limit), **policy) as bench:
        await bench.feed("a")

    assert [type(letter.error) for letter in letters] == [ConfigError]


async def test_a_breaker_that_opens_during_the_wait_gives_the_credit_back() -> None:
    service = Service()
    breaker = CircuitBreaker(window=1, open_seconds=10)
    async with opened(
        service, resilience=limited(per_second(1, 100), circuit_breaker=breaker), on_error="skip"
    ) as bench:
        await bench.feed("a1", "b50")
        await bench.clock.advance(45)
        await service.fail("a1", OSError())
        await bench.clock.advance(9.9)
        assert service.called == ["a1"]
        await bench.clock.advance(0.1)
        assert service.called == ["a1", "b50"]
        await bench.clock.advance(60)
        await service.answer("b50")
        await bench.feed("c60")
        assert service.called == ["a1", "b50", "c60"]


# What a function reports


async def test_the_report_of_a_call_takes_the_place_of_its_estimate() -> None:
    service = Service()
    async with opened(service, resilience=limited(per_second(1, 100))) as bench:
        await bench.clock.advance(99)
        await bench.feed("a100", "b60", "c10")
        service.calls[0].ctx.spent(tokens=30)
        service.calls[0].ctx.spent(tokens=5)
        assert service.called == ["a100"]
        await service.answer("a100")
        assert service.called == ["a100", "b60"]
        await bench.clock.advance(5)
        assert service.called == ["a100", "b60", "c10"]
        service.calls[2].ctx.spent(tokens=105)
        await service.answer("c10")
        await bench.feed("d1")
        await bench.clock.advance(95.9)
        assert service.called == ["a100", "b60", "c10"]
        await bench.clock.advance(0.2)
        assert service.called == ["a100", "b60", "c10", "d1"]
        assert bench.resilience.spent == {"tokens": 140}


@pytest.mark.parametrize(("reported", "waits"), [({"tokens": 0}, 0.0), ({}, 50.0)], ids=["nothing spent", "no report"])
async def test_a_call_that_fails_costs_its_estimate_unless_it_reports_something_else(
    reported: dict[str, float], waits: float
) -> None:
    service = Service()
    async with opened(service, resilience=limited(per_second(1, 100)), on_error="skip") as bench:
        await bench.clock.advance(99)
        await bench.feed("a50", "b100")
        service.calls[0].ctx.spent(**reported)
        await service.fail("a50", OSError())
        assert service.called == (["a50"] if waits else ["a50", "b100"])
        await bench.clock.advance(waits)
        assert service.called == ["a50", "b100"]


async def test_unexpected_reports_are_refused() -> None:
    service = Service()
    async with opened(service, resilience=limited(per_second(1, 100))) as bench:
        await bench.feed("a1")
        ctx = service.calls[0].ctx
        with pytest.raises(UnknownUnit, match="'token' is not counted: report 'tokens'"):
            ctx.spent(token=3)
        with pytest.raises(ConfigError):
            ctx.spent(tokens=-3)
        await service.answer("a1")
        with pytest.raises(StateAccessOutsideInvocation):
            ctx.spent(tokens=3)
        assert bench.resilience.spent == {"tokens": 1}

    async with opened(service, resilience=Resilience(rate_limit=RateLimit(5))) as bench:
        await bench.feed("b1")
        service.calls[-1].ctx.spent(dollars=3)  # no costs are counted, so the function need not care


class OnThreads(BlockingFunction):
    def invoke(self, value: Any, ctx: Any) -> list[Any]:
        ctx.spent(tokens=7)
        return [value]


class WithCallback(CallbackFunction):
    def async_invoke(self, value: Any, result_future: Any) -> None:
        def answer() -> None:
            result_future.ctx.spent(tokens=7)
            result_future.complete([value])

        threading.Thread(target=answer).start()


class InBatches(Doubles):
    async def async_invoke_batch(self, values: Any, ctxs: Any) -> Any:
        for ctx in ctxs[:2]:
            ctx.spent(tokens=2 + len(values) / 4)
        return [[value] for value in values]


class Alone(AsyncFunction):
    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        ctx.spent(tokens=7)
        return [value]


@pytest.mark.parametrize("function", [OnThreads, WithCallback, InBatches, Alone])
@pytest.mark.parametrize("key_by", [None, str], ids=["rows", "keys"])
async def test_every_kind_of_function_reports(function: Any, key_by: Any) -> None:
    made = function()
    made.max_batch_size = 6
    resilience = limited(per_second(1000))
    bench = Bench(made, resilience=resilience, key_by=key_by, mode="key_ordered" if key_by else "unordered")
    await bench.operator.open()
    await bench.clock.advance(60)
    await bench.feed(*(f"{letter}10" for letter in "abcdef"))
    await eventually(lambda: len(bench.shown) == 6)
    spent = bench.resilience.spent
    await bench.operator.close()

    assert spent == {"tokens": 7 if function is InBatches else 42}
