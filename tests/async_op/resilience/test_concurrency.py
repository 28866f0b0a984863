"""Adaptive concurrency: the limit grows while calls succeed and is cut when they fail or are slow."""

from __future__ import annotations

from async_op import AdaptiveConcurrency, Resilience
from tests.async_op.kit import Service, opened


async def test_the_limit_doubles_until_a_call_fails_then_it_is_cut_once_and_creeps() -> None:
    service = Service()
    limited = Resilience(concurrency=AdaptiveConcurrency(minimum=2, maximum=20, decrease=0.5))
    async with opened(service, resilience=limited, on_error="skip") as bench:
        await bench.feed(*range(100))
        limits = []
        for _ in range(3):
            limits.append(len(service.running))
            await bench.clock.advance(1)
            await service.answer(*service.running)
        assert limits == [2, 4, 8]
        await bench.clock.advance(1)
        running = service.running
        assert len(running) == 16
        for value in running:
            await service.fail(value, OSError())
        assert bench.resilience.concurrency_limit == 8
        for expected in (9, 10):
            await bench.clock.advance(1)
            await service.answer(*service.running)
            assert bench.resilience.concurrency_limit == expected
        assert bench.resilience.running == len(service.running) == 10


async def test_the_limit_stays_within_its_bounds() -> None:
    service = Service()
    limited = Resilience(concurrency=AdaptiveConcurrency(minimum=2, maximum=5, slow_seconds=10))
    async with opened(service, resilience=limited) as bench:
        await bench.feed(*range(100))
        for _ in range(5):
            await service.answer(*service.running)
        assert bench.resilience.concurrency_limit == len(service.running) == 5
        for _ in range(8):
            await bench.clock.advance(11)
            await service.answer(*service.running)
        assert bench.resilience.concurrency_limit == len(service.running) == 2
