"""Single flight: identical calls under way are one, and each element still has its own time and retries."""

from __future__ import annotations

from typing import Any

import pytest

from async_op import DeadLetter, FixedDelayRetry, Resilience, SingleFlight
from tests.async_op.kit import Service, first, opened

SHARED = Resilience(single_flight=SingleFlight(first))


async def test_identical_calls_under_way_are_one() -> None:
    service = Service()
    async with opened(service, resilience=SHARED, mode="ordered") as bench:
        await bench.feed("a1", "b1", "a2", "a3")
        assert service.called == ["a1", "b1"]
        await service.answer("a1", outputs=iter(["one"]))
        await service.answer("b1")
        await bench.feed("a4")
        statistics = bench.operator.statistics()

    assert bench.shown == ["one", "b1", "one", "one"]
    assert service.called == ["a1", "b1", "a4"]
    assert (statistics.calls, bench.resilience.shared) == (3, 2)


async def test_a_failure_is_shared_and_each_element_has_its_own_retries() -> None:
    service = Service()
    async with opened(service, resilience=SHARED, retry=FixedDelayRetry(2, 1)) as bench:
        await bench.feed("a1", "a2")
        await service.fail("a1", ValueError())
        await bench.clock.advance(1)
        assert service.called == ["a1", "a1"]
        await service.answer("a1", outputs=["one"])

    assert bench.shown == ["one", "one"]


@pytest.mark.parametrize(
    "error", [ValueError("no"), OSError(5, "gone"), TimeoutError(), ExceptionGroup("two", [KeyError(1), OSError()])]
)
async def test_those_that_wait_for_a_call_that_fails_fail_with_its_error(error: Exception) -> None:
    service, letters = Service(), list[DeadLetter]()
    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append}
    async with opened(service, resilience=SHARED, **options) as bench:
        await bench.feed("a1", "a2", "a3")
        await service.fail("a1", error)
        assert (service.called, bench.shown, bench.in_flight) == (["a1"], [], 0)

    assert {letter.value: letter.error for letter in letters} == dict.fromkeys(("a1", "a2", "a3"), error)


@pytest.mark.parametrize("stubborn", [False, True])
async def test_when_the_leader_runs_out_of_time_a_follower_calls_itself(stubborn: bool) -> None:
    service = Service(fallback=lambda value: [f"late {value}"], stubborn=stubborn)
    async with opened(service, resilience=SHARED, timeout=10) as bench:
        await bench.feed("a1")
        await bench.clock.advance(5)
        await bench.feed("a2", "a3")
        await bench.clock.advance(5)
        if stubborn:  # the call goes on, and those that wait for it have time to
            await service.answer("a1", outputs=["one"])
        else:
            assert service.called == ["a1", "a2"]
            await service.answer("a2", outputs=["one"])

    assert bench.shown == ["late a1", "one", "one"]


async def test_followers_run_out_of_time_too() -> None:
    service = Service(fallback=lambda value: [f"late {value}"])
    async with opened(service, resilience=SHARED, timeout=10) as bench:
        await bench.feed("a1", "a2")
        await bench.clock.advance(10)

    assert sorted(bench.shown) == ["late a1", "late a2"]
    assert service.called == ["a1"]
