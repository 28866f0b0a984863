"""Retries under a timeout: one budget of time covers the attempts and the delays between them."""

from __future__ import annotations

from typing import Any

import pytest

from async_op import AsyncTimeoutError, ElementFailed, FixedDelayRetry
from tests.async_op.batches import Batches
from tests.async_op.kit import BOTH, Service, empty, opened


@pytest.mark.behaviour("a timeout covers all attempts and the delays between them")
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


@pytest.mark.behaviour("a timeout covers all attempts and the delays between them")
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


@pytest.mark.behaviour("after a timeout no further attempt is made")
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


@pytest.mark.behaviour("after a timeout no further attempt is made")
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


async def test_the_fallback_is_not_retried() -> None:
    def fail(value: Any) -> Any:
        raise ValueError("no fallback either")

    service = Service(fallback=fail)
    async with opened(service, timeout=1, retry=FixedDelayRetry(9, 0)) as bench:
        await bench.feed("x")
        await bench.clock.advance(1)

        with pytest.raises(ElementFailed, match="no fallback either"):
            await bench.operator.finish()
        assert service.timed_out == ["x"]


@pytest.mark.parametrize("function", [Service, Batches])
async def test_a_fallback_that_a_call_would_be_retried_for_is_the_result(function: Any) -> None:
    late: list[str] = []

    def nothing(value: str) -> list[str]:
        late.append(value)
        return []

    service = function(fallback=nothing)
    async with opened(service, timeout=10, retry=FixedDelayRetry(9, 1, retry_if_result=empty)) as bench:
        await bench.feed("x")
        await bench.clock.advance(10)
        assert (late, bench.in_flight) == (["x"], 0)

        await bench.clock.advance(100)
        assert (late, bench.operator.statistics().retries) == (["x"], 0)
