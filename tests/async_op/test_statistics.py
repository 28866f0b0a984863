"""What an operator counts about itself."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from async_op import FixedDelayRetry, Watermark
from tests.async_op.kit import Bench, Service, commit, opened


async def test_the_kinds_of_what_is_in_flight_add_up() -> None:
    service = Service()
    async with opened(service, mode="ordered") as bench:
        await bench.feed("a", "b", Watermark(1), "c")
        await service.answer("b")
        statistics = bench.operator.statistics()

    assert (statistics.pending, statistics.completed, statistics.watermarks) == (2, 1, 1)
    assert statistics.in_flight == 4


async def test_every_event_is_counted_once() -> None:
    service = Service(fallback=lambda value: [value, value], stubborn=True)
    options: dict[str, Any] = {"timeout": 10, "retry": FixedDelayRetry(2, 1), "on_error": "skip"}
    async with opened(service, **options) as bench:
        await bench.feed("ok", "again", "bad", "slow", Watermark(1))
        await service.answer("ok")
        await service.fail("again", ValueError())
        await service.fail("bad", ValueError())
        await bench.clock.advance(1)
        await service.answer("again")
        await service.fail("bad", ValueError())
        await bench.clock.advance(9)
        await service.answer("slow")
        statistics = bench.operator.statistics()

    assert (statistics.accepted, statistics.calls, statistics.retries) == (4, 6, 2)
    assert (statistics.timeouts, statistics.late_results, statistics.skipped) == (1, 1, 1)
    assert (statistics.emitted, statistics.in_flight, statistics.dead_letters) == (5, 0, 0)


async def test_what_a_restore_brings_is_not_accepted_again() -> None:
    service = Service()
    async with opened(service, mode="ordered") as bench:
        await bench.feed("a", "b", "c")
        await service.answer("b")
        snapshot = await commit(await bench.operator.snapshot())

    async with opened(Service(), mode="ordered", restore=snapshot.restore(0)) as bench:
        await bench.feed("d")
        statistics = bench.operator.statistics()

    assert (statistics.accepted, statistics.reinvoked, statistics.reemitted) == (1, 2, 1)
    assert (statistics.pending, statistics.completed) == (3, 1)


async def test_time_is_idle_or_busy_or_back_pressured() -> None:
    service = Service()
    async with opened(service, capacity=1) as bench:
        await bench.clock.advance(3)
        await bench.feed("a")
        await bench.clock.advance(5)
        async with bench.feeding("b") as feeding:
            await bench.clock.advance(7)
            await service.answer("a")
            await feeding
        await bench.clock.advance(11)
        await service.answer("b")
        await bench.clock.advance(13)
        statistics = bench.operator.statistics()

    assert statistics.idle_seconds == pytest.approx(3 + 13)
    assert statistics.busy_seconds == pytest.approx(5 + 11)
    assert statistics.back_pressured_seconds == pytest.approx(7)


async def test_latencies_are_sampled_into_a_histogram() -> None:
    service = Service()
    async with opened(service, capacity=1000) as bench:
        for seconds in (0.001, 1.0):
            await bench.feed(*range(160))
            await bench.clock.advance(seconds)
            await service.answer(*range(160))
        latency = bench.operator.statistics().latency

    assert sum(count for _, count in latency.buckets) >= 10
    low, high = latency.quantile(0.1), latency.quantile(1.0)
    assert low is not None
    assert high is not None
    assert 0.001 <= low <= 0.002
    assert 1.0 <= high <= 2.0


async def test_without_calls_there_is_no_latency() -> None:
    async with opened(Service()) as bench:
        latency = bench.operator.statistics().latency

    assert (latency.buckets, latency.quantile(0.5)) == ((), None)


async def test_statistics_do_not_change_once_taken() -> None:
    service = Service()
    async with opened(service) as bench:
        before = bench.operator.statistics()
        await bench.feed("a")

    assert before.accepted == 0
    with pytest.raises(FrozenInstanceError):
        before.accepted = 1  # type: ignore[misc]


async def test_statistics_can_be_read_after_close() -> None:
    service = Service()
    async with opened(service) as bench:
        await bench.feed("a")
        await service.answer("a")

    assert bench.operator.statistics().emitted == 1
    assert isinstance(bench, Bench)
