"""Batches in snapshots: what waits for one, what is in one, and how they form again."""

from __future__ import annotations

import pytest

from async_op import FixedDelayRetry, Record
from tests.async_op.batches import Batches
from tests.async_op.kit import BOTH, commit, opened


@pytest.mark.behaviour("what waits for its batch survives a failure, and outputs keep their timestamps")
async def test_what_waits_for_its_batch_and_what_is_in_one_are_in_the_snapshot() -> None:
    function = Batches()
    async with opened(function) as bench:
        await bench.feed(Record("a", 1), Record("b", 2), Record("c", 3), Record("d", 4))
        assert await bench.queue() == ["a", "b", "c", "d"]
        snapshot = await commit(await bench.operator.snapshot())

    function = Batches()
    async with opened(function, mode="ordered", restore=snapshot.restore(0)) as bench:
        await bench.clock.advance(5)
        assert function.called == [["a", "b", "c"], ["d"]]
        await function.answer(0, [["A"], ["B"], ["C"]])
        await function.answer(1, [["D"]])
        assert bench.outputs == [Record("A", 1), Record("B", 2), Record("C", 3), Record("D", 4)]


@BOTH
async def test_what_has_left_of_a_batch_that_failed_in_part_is_not_in_the_snapshot(mode: str) -> None:
    function = Batches()
    async with opened(function, mode=mode, retry=FixedDelayRetry(2, 1)) as bench:
        await bench.feed("a", "b", "c")
        await function.answer(0, [["A"], ValueError(), ["C"]])

        assert bench.shown == (["A"] if mode == "ordered" else ["A", "C"])
        assert await bench.queue() == (["b", "c"] if mode == "ordered" else ["b"])


async def test_restored_elements_beyond_the_capacity_wait_for_their_batch() -> None:
    async with opened(Batches(), capacity=9) as bench:
        await bench.feed(*"abcdefg")
        snapshot = await commit(await bench.operator.snapshot())

    function = Batches()
    async with opened(function, capacity=3, restore=snapshot.restore(0)) as bench:
        await bench.clock.advance(5)
        assert function.called == [["a", "b", "c"]]
        await function.answer(0, [["A"], ["B"], ["C"]])
        assert function.called[1:] == [["d", "e", "f"]]
        await function.answer(1, [["D"], ["E"], ["F"]])
        assert function.called[2:] == [["g"]]
