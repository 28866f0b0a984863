"""Snapshots of a running operator: what they hold and count, and that they stay as they are."""

from __future__ import annotations

import pytest

from async_op import Watermark
from tests.async_op.kit import Service, commit, new_store, opened


@pytest.mark.behaviour("each snapshot replaces the one before as a whole")
async def test_elements_that_have_left_are_in_no_later_snapshot() -> None:
    store = new_store()
    service = Service()
    async with opened(service) as bench:
        await bench.feed(1, 2)
        first = await commit(await bench.operator.snapshot(), store=store)
        await service.answer(1)
        await bench.feed(3)
        second = await commit(await bench.operator.snapshot(), store=store)
        await service.answer(2, 3)
        third = await commit(await bench.operator.snapshot(), store=store)

    assert [snapshot.in_flight_count for snapshot in (first, second, third)] == [2, 2, 0]
    assert [element.value for element in second.restore(0).queue().elements] == [2, 3]
    assert [element.value for element in first.restore(0).queue().elements] == [1, 2]


@pytest.mark.behaviour("a snapshot is restored into another capacity and followed by another one")
async def test_a_snapshot_changes_nothing_in_the_operator_and_nothing_changes_the_snapshot() -> None:
    service = Service()
    async with opened(service) as bench:
        await bench.feed(1, 2)
        cut = await bench.operator.snapshot()
        await service.answer(1, 2)

        assert bench.shown == [1, 2]
        assert [(element.value, element.completed) for element in cut.in_flight] == [(1, False), (2, False)]


@pytest.mark.behaviour("results are emitted exactly once, calls are made at least once")
async def test_a_snapshot_counts_the_outputs_before_it() -> None:
    service = Service()
    async with opened(service) as bench:
        await bench.feed(1, Watermark(1), 2)
        await service.answer(1, outputs=["a", "b"])
        cut = await bench.operator.snapshot()
        await service.answer(2)

        assert cut.emitted == 3
        assert bench.shown[: cut.emitted] == ["a", "b", Watermark(1)]
        assert cut.watermark == 1


async def test_the_count_of_outputs_starts_from_zero_with_each_operator() -> None:
    service = Service()
    async with opened(service) as bench:
        await bench.feed(1, 2)
        await service.answer(1)
        snapshot = await commit(await bench.operator.snapshot())

    service = Service()
    async with opened(service, restore=snapshot.restore(0)) as bench:
        assert (await bench.operator.snapshot()).emitted == 0
        await service.answer(2)
        assert (await bench.operator.snapshot()).emitted == 1
