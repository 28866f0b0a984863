"""Which in-flight elements may leave, and when a full operator takes in the next."""

from __future__ import annotations

from typing import Any

import pytest

from async_op import Watermark
from tests.async_op.kit import BOTH, Service, opened


@pytest.mark.behaviour("of an ordered queue only the head leaves")
async def test_an_ordered_queue_lets_only_its_head_leave() -> None:
    service = Service()
    async with opened(service, mode="ordered", capacity=4) as bench:
        await bench.feed("r1", "r2", Watermark(1), "r3")

        await service.answer("r2", "r3")
        assert (bench.shown, bench.in_flight) == ([], 4)

        await service.answer("r1")
        assert (bench.shown, bench.in_flight) == (["r1", "r2", Watermark(1), "r3"], 0)


@pytest.mark.behaviour("an unordered queue is free between watermarks, which no record passes")
async def test_an_unordered_queue_is_free_between_watermarks_and_strict_across_them() -> None:
    service = Service()
    async with opened(service, mode="unordered", capacity=8) as bench:
        await bench.feed("r1", "r2", Watermark(1), "r3", "r4", Watermark(2), "r5", "r6")
        assert (bench.shown, bench.in_flight) == ([], 8)

        await service.answer("r3")
        assert bench.shown == []

        await service.answer("r2")
        assert (bench.shown, bench.in_flight) == (["r2"], 7)

        await service.answer("r6", "r4")
        assert (bench.shown, bench.in_flight) == (["r2"], 7)

        await service.answer("r1")
        assert bench.shown == ["r2", "r1", Watermark(1), "r3", "r4", Watermark(2), "r6"]
        assert bench.in_flight == 1

        await service.answer("r5")
        assert (bench.shown[-1], bench.in_flight) == ("r5", 0)


@pytest.mark.behaviour("a watermark takes a place in the queue")
@BOTH
async def test_a_watermark_takes_a_place_in_a_full_queue(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode, capacity=2) as bench:
        await bench.feed("r1", Watermark(1))

        async with bench.feeding("r2") as feeding:
            assert not feeding.done()
            assert await bench.queue() == ["r1", Watermark(1)]

            await service.answer("r1")
            await feeding
            assert await bench.queue() == ["r2"]


@pytest.mark.behaviour("a queue refuses what does not fit, and gives its content for a snapshot")
@BOTH
async def test_a_full_queue_takes_the_next_element_once_one_has_left(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode, capacity=1) as bench:
        await bench.feed("r1")

        async with bench.feeding("r2", "r3") as feeding:
            assert service.called == ["r1"]

            await service.answer("r1")
            assert (bench.shown, service.called) == (["r1"], ["r1", "r2"])

            await service.answer("r2")
            await feeding
            assert (bench.shown, service.called) == (["r1", "r2"], ["r1", "r2", "r3"])


@pytest.mark.behaviour("a watermark takes a place in the queue")
@BOTH
async def test_a_full_queue_also_holds_a_watermark_back(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode, capacity=1) as bench:
        await bench.feed("r1")

        async with bench.feeding(Watermark(1)) as feeding:
            assert (feeding.done(), bench.in_flight) == (False, 1)

            await service.answer("r1")
            await feeding
            assert (bench.shown, bench.in_flight) == (["r1", Watermark(1)], 0)


@pytest.mark.behaviour("a watermark with nothing before it leaves at once")
@BOTH
async def test_a_watermark_leaves_at_once_where_nothing_stands_before_it(mode: str) -> None:
    async with opened(Service(), mode=mode) as bench:
        await bench.operator.process_watermark(7)

        assert (bench.shown, bench.in_flight) == ([Watermark(7)], 0)


@pytest.mark.behaviour("adjacent watermarks leave in their order")
@BOTH
async def test_watermarks_side_by_side_leave_in_their_order(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode) as bench:
        await bench.feed(Watermark(1), Watermark(2), "r1", Watermark(3), Watermark(4))
        assert bench.shown == [Watermark(1), Watermark(2)]

        await service.answer("r1")
        assert bench.shown[2:] == ["r1", Watermark(3), Watermark(4)]
        assert bench.in_flight == 0


@pytest.mark.behaviour("a queue refuses what does not fit, and gives its content for a snapshot")
@pytest.mark.behaviour("a snapshot holds every element as it came in, in the order of the queue")
@BOTH
async def test_the_queue_of_a_snapshot_is_in_the_order_of_the_input(mode: str) -> None:
    elements: list[Any] = ["r1", "r2", Watermark(1), "r3", "r4", Watermark(2), "r5"]
    service = Service()
    async with opened(service, mode=mode) as bench:
        await bench.feed(*elements)
        await service.answer("r5", "r3")

        assert await bench.queue() == elements
