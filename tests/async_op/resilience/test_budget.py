"""Budgets: exact when calls are concurrent, counted on by restarts, and refused by the error policy."""

from __future__ import annotations

import asyncio
import logging
import pickle
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op import (
    AsyncDataStream,
    AsyncWaitOperator,
    Budget,
    BudgetSpent,
    DeadLetter,
    ElementFailed,
    FixedDelayRetry,
    Job,
    RateLimit,
    Resilience,
    Step,
)
from async_op.resilience.waiting_line import share_of
from async_op.testing import run
from keygroups import ConfigError
from snapshots import IncompatibleSnapshot, Snapshot
from tests.async_op.kit import Bench, Instant, Service, commit, opened


def cents(value: Any) -> int:
    """Return the cost of elements that say it themselves, such as "a40"."""
    return int(value[1:])


def limited(limit: float, **parts: Any) -> Resilience:
    return Resilience(budget=Budget(limit, "cents", cents), **parts)


def refused(letters: list[DeadLetter]) -> list[Any]:
    assert all(isinstance(letter.error, BudgetSpent) for letter in letters)
    return [letter.value for letter in letters]


CALLS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 2.0]), st.integers(0, 30), st.floats(0, 1), st.sampled_from([0.0, 1.0, 9.0])),
    max_size=40,
)


@given(CALLS, st.integers(1, 200), st.integers(1, 10))
def test_a_budget_is_exact_when_calls_are_concurrent(
    calls: list[tuple[float, int, float, float]], limit: int, capacity: int
) -> None:
    """Nothing above the limit is spent, and nothing is refused that would have fitted once all before had ended."""
    spent, letters, outputs = [0], list[DeadLetter](), list[Any]()
    under_way: list[int] = []

    async def spend(call: Any, ctx: Any) -> Any:
        _, estimate, part, lasts = call
        under_way.append(estimate)
        assert spent[0] + sum(under_way) <= limit
        await asyncio.sleep(lasts)
        under_way.remove(estimate)
        spent[0] += int(estimate * part)
        ctx.spent(cents=int(estimate * part))
        return call

    def take_letter(letter: DeadLetter) -> None:
        assert spent[0] + letter.value[1] > limit or spent[0] == limit
        letters.append(letter)

    async def spend_all() -> None:
        budget = Budget(limit, "cents", cost=lambda call: call[1])
        options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": take_letter, "capacity": capacity}
        operator = AsyncWaitOperator(spend, outputs.append, resilience=Resilience(budget=budget), **options)
        await operator.open()
        for call in calls:
            await asyncio.sleep(call[0])
            await operator.process(call)
        await operator.finish()
        (state,) = (await operator.snapshot()).operator_states
        assert sum(state.items) == spent[0] <= limit
        await operator.close()

    run(spend_all())
    assert len(outputs) + len(refused(letters)) == len(calls)


async def test_a_call_waits_where_calls_under_way_decide_whether_it_fits() -> None:
    service, letters = Service(), list[DeadLetter]()
    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append}
    async with opened(service, resilience=limited(100), retry=FixedDelayRetry(9, 1.0), **options) as bench:
        await bench.feed("a60", "b40", "c30", "d101", "e11")
        assert (service.called, refused(letters), bench.resilience.waiting) == (["a60", "b40"], ["d101"], 2)
        service.calls[0].ctx.spent(cents=30)
        await service.answer("a60")
        assert service.called == ["a60", "b40", "c30"]
        await service.answer("b40")
        assert refused(letters) == ["d101"]
        await service.answer("c30")
        await bench.clock.advance(60)

    error: Any = letters[1].error
    assert refused(letters) == ["d101", "e11"]
    assert (error.unit, error.limit, error.share, error.spent, error.estimate) == ("cents", 100, 100, 100, 11)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


async def test_by_default_a_spent_budget_stops_the_operator() -> None:
    bench = Bench(Instant(), resilience=limited(5))
    await bench.operator.open()
    await bench.feed("a5", "b1")
    with pytest.raises(ElementFailed, match=r"budget of 5 cents.*5 are spent") as failed:
        await bench.operator.process("c0")
    await bench.operator.close()

    assert isinstance(failed.value.__cause__, BudgetSpent)


@pytest.mark.parametrize("reports", [True, False])
async def test_a_budget_of_which_nothing_is_ever_spent_is_warned_of_once(
    reports: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def call(value: int, ctx: Any) -> int:
        if reports:
            ctx.spent(cents=1)
        return value

    budget = Resilience(budget=Budget(100, "cents"))
    with caplog.at_level(logging.WARNING, "async_op"):
        assert len([one async for one in AsyncDataStream.ordered_wait(range(30), call, resilience=budget)]) == 30
    assert ["ctx.spent(cents=" in record.getMessage() for record in caplog.records] == [True] * (not reports)


async def test_without_estimates_calls_are_made_until_the_limit_is_reached() -> None:
    service = Service()
    async with opened(service, resilience=Resilience(budget=Budget(5, "cents")), on_error="skip") as bench:
        await bench.feed("a", "b")
        service.calls[0].ctx.spent(cents=4)
        await service.answer("a")
        await bench.feed("c")
        service.calls[1].ctx.spent(cents=4)
        await service.answer("b")
        await bench.feed("d")
        statistics = bench.resilience

    assert service.called == ["a", "b", "c"]
    assert (statistics.budget_refused, statistics.spent) == (1, {"cents": 8})


async def test_what_waited_for_nothing_is_set_aside_no_more() -> None:
    """A call that gives up before it begins, for another limit, leaves the budget to others."""
    function = Service(fallback=lambda value: [f"late {value}"])
    resilience = limited(10, rate_limit=RateLimit(0.1, burst=1))
    async with opened(function, resilience=resilience, timeout=5) as bench:
        await bench.feed("a1")
        await function.answer("a1")
        await bench.feed("b9")
        await bench.clock.advance(6)
        await bench.feed("c9")
        await bench.clock.advance(4.5)
        assert (function.called, bench.shown) == (["a1", "c9"], ["a1", "late b9"])


async def cut_after(limit: float, *values: str, restore: Any = None, **place: Any) -> tuple[Any, list[str]]:
    """Run an operator over some values; return its cut and what was refused."""
    letters: list[DeadLetter] = []
    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append, "max_parallelism": 8}
    async with opened(Instant(), resilience=limited(limit), restore=restore, **options, **place) as bench:
        await bench.feed(*values)
        return await bench.operator.snapshot(), refused(letters)


async def test_restarts_and_rescales_keep_counting_and_share_what_is_left() -> None:
    cut, gone = await cut_after(100, "a30", "b3")
    assert gone == []
    snapshot = await commit(cut)

    async def both(snapshot: Snapshot, limit: float, *shares: Sequence[str]) -> tuple[Snapshot, list[list[str]]]:
        count = len(shares)
        parts = [
            await cut_after(
                limit, *share, restore=snapshot.restore(index, count), parallelism=count, subtask_index=index
            )
            for index, share in enumerate(shares)
        ]
        return await commit(*(cut for cut, _ in parts)), [gone for _, gone in parts]

    snapshot, gone_of_two = await both(snapshot, 100, ["c34", "d1"], ["e33", "f1"])  # 67 are left
    assert gone_of_two == [["d1"], ["f1"]]
    snapshot, gone_of_three = await both(snapshot, 130, ["g10", "h1"], ["i11"], ["j4"])  # 30 more
    assert gone_of_three == [["h1"], ["i11"], []]
    snapshot, gone_of_one = await both(snapshot, 130, ["k17", "l16", "m1"])
    assert gone_of_one == [["k17", "m1"]]


async def test_a_snapshot_with_a_budget_is_not_restored_without_it() -> None:
    cut, _ = await cut_after(100, "a30")
    snapshot = await commit(cut)

    with pytest.raises(IncompatibleSnapshot, match="pass the Budget"):
        async with opened(Instant(), restore=snapshot.restore(0), max_parallelism=8):
            pass


def test_a_job_counts_on_when_it_starts_again_with_another_parallelism() -> None:
    folder = f"memory://{uuid.uuid4().hex}"

    def answered(elements: int, limit: int, parallelism: int) -> int:
        outputs: list[Any] = []
        resilience = Resilience(budget=Budget(limit, "calls_made", cost=lambda value: 1))
        step = Step(Instant(), key_by=str, on_error="skip", resilience=resilience)
        place: dict[str, Any] = {"snapshots": folder, "job_id": "spend", "parallelism": parallelism}
        run(Job(list(range(elements)), step, lambda values, epoch: outputs.extend(values), **place).run())
        return len(outputs)

    assert [answered(20, 30, 1), answered(60, 30, 4), answered(80, 35, 2)] == [20, 10, 5]


def test_settings_that_can_never_work_are_refused() -> None:
    for wrong in ({"limit": 0}, {"limit": float("nan")}, {"unit": "US dollars"}, {"unit": ""}, {"cost": 3}):
        with pytest.raises(ConfigError):
            Budget(**({"limit": 1, "unit": "cents"} | wrong))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="same unit"):
        Resilience(budget=[Budget(1, "cents"), Budget(2, "cents")])
    with pytest.raises(ConfigError):
        Resilience(budget=[3])  # type: ignore[list-item]


async def test_a_stream_counts_for_its_own_run() -> None:
    stream = AsyncDataStream.ordered_wait(["a3", "b3"], Instant(), resilience=limited(5), on_error="skip")

    assert [value async for value in stream] == ["a3"]


@given(st.one_of(st.integers(1, 1000), st.floats(0.01, 1e6)), st.integers(1, 20))
def test_shares_add_up_and_those_of_a_whole_amount_are_whole(amount: float, parallelism: int) -> None:
    shares = [share_of(amount, index, parallelism) for index in range(parallelism)]

    assert sum(shares) == pytest.approx(amount)
    assert {type(share) for share in shares} == {type(amount)}
    assert max(shares) - min(shares) <= isinstance(amount, int)
