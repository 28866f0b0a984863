"""The rate limit: calls begin at its pace, subtasks share it, and what waits can time out."""

from __future__ import annotations

from typing import Any

import pytest

from async_op import RateLimit, Resilience
from tests.async_op.batches import Doubles
from tests.async_op.kit import Instant, Service, commit, opened


async def test_calls_begin_at_the_rate_and_a_burst_has_to_be_saved_up() -> None:
    function = Instant()
    async with opened(function, resilience=Resilience(rate_limit=RateLimit(2, burst=3))) as bench:
        await bench.feed(*"abcd")
        assert function.called == ["a"]
        await bench.clock.advance(0.5)
        assert function.called == ["a", "b"]
        await bench.clock.advance(1)
        assert function.called == ["a", "b", "c", "d"]
        await bench.clock.advance(60)
        await bench.feed(*"efghi")
        assert function.called == list("abcdefg")
        assert (bench.resilience.waiting, bench.resilience.rate_limited) == (2, 5)
        assert bench.resilience.wait_seconds == pytest.approx(0.5 + 1 + 1.5)


@pytest.mark.parametrize(("parallelism", "shares"), [(1, [3]), (2, [2, 1]), (3, [1, 1, 1]), (5, [1, 1, 1, 1, 1])])
def test_subtasks_share_a_rate(parallelism: int, shares: list[int]) -> None:
    found = [RateLimit(10, burst=3).share(index, parallelism) for index in range(parallelism)]

    assert sum(share.per_second for share in found) == pytest.approx(10)
    assert [share.burst for share in found] == shares


async def test_a_rescaled_operator_has_another_share() -> None:
    resilience = Resilience(rate_limit=RateLimit(4, burst=1))
    async with opened(Instant(), resilience=resilience, mode="ordered", max_parallelism=4) as bench:
        await bench.feed(*"abc")
        snapshot = await commit(await bench.operator.snapshot())

    function = Instant()
    place: dict[str, Any] = {"parallelism": 2, "subtask_index": 0, "max_parallelism": 4}
    async with opened(
        function, resilience=resilience, mode="ordered", restore=snapshot.restore(0, 2), **place
    ) as bench:
        await bench.feed("d", "e")
        begun = len(function.called)
        await bench.clock.advance(1)

    assert begun == 1
    assert len(function.called) == 3


async def test_what_waits_for_the_rate_times_out_and_leaves_its_turn_to_the_next() -> None:
    function = Service(fallback=lambda value: [f"late {value}"])
    async with opened(function, resilience=Resilience(rate_limit=RateLimit(0.25, burst=1)), timeout=3) as bench:
        await bench.feed("a", "b")
        await bench.clock.advance(2)
        await bench.feed("c")
        await bench.clock.advance(2)

    assert bench.shown == ["late a", "late b"]
    assert function.called == ["a", "c"]


async def test_what_waits_is_pending_in_a_snapshot() -> None:
    async with opened(Instant(), resilience=Resilience(rate_limit=RateLimit(1, burst=1)), timeout=10) as bench:
        await bench.feed("a", "b", "c")
        await bench.clock.advance(0.5)
        cut = await bench.operator.snapshot()

    assert [(element.value, element.attempt, element.remaining) for element in cut.in_flight] == [
        ("b", 1, 9.5),
        ("c", 1, 9.5),
    ]


async def test_a_batch_is_one_call_and_loses_elements_that_run_out_of_time() -> None:
    class Slow(Doubles):
        max_batch_delay = 2.0

        async def timeout(self, value: Any, ctx: Any) -> list[Any]:
            return [f"late {value}"]

    function = Slow()
    async with opened(function, resilience=Resilience(rate_limit=RateLimit(0.2, burst=1)), timeout=3.5) as bench:
        await bench.feed(1, 2)
        await bench.clock.advance(1)
        await bench.feed(3)
        await bench.clock.advance(1)
        await bench.feed(4)
        await bench.clock.advance(3)
        statistics = bench.operator.statistics()

    assert function.batches == [[1, 2], [4]]
    assert bench.shown == [2, 4, "late 3", 8]
    assert statistics.calls == 3


async def test_a_failed_operator_begins_no_call_that_waited() -> None:
    service = Service()
    async with opened(service, resilience=Resilience(rate_limit=RateLimit(1, burst=1))) as bench:
        await bench.feed("a", "b")
        await service.fail("a", ValueError())
        await bench.clock.advance(60)

    assert service.called == ["a"]
