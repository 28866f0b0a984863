"""Timeouts in a batch: each element has its own, and the call ends when nobody waits for it."""

from __future__ import annotations

import pytest

from async_op import AsyncTimeoutError, FixedDelayRetry
from tests.async_op.batches import Batches
from tests.async_op.kit import BOTH, opened


@pytest.mark.behaviour("a batch that times out may give a part of its results, or none")
async def test_elements_of_a_batch_time_out_one_by_one() -> None:
    function = Batches(fallback=lambda value: [f"late {value}"])
    async with opened(function, timeout=10) as bench:
        await bench.feed("a")
        await bench.clock.advance(4)
        await bench.feed("b", "c")
        await bench.clock.advance(6)
        assert bench.shown == ["late a"]
        await function.answer(0, [["A"], ["B"], ["C"]])
        assert bench.shown == ["late a", "B", "C"]


@BOTH
async def test_elements_of_a_batch_that_is_retried_keep_their_time(mode: str) -> None:
    """They are watched by their age, also where younger ones came before the batch fell apart."""
    function = Batches(fallback=lambda value: [f"late {value}"])
    async with opened(function, mode=mode, timeout=10, retry=FixedDelayRetry(2, 100)) as bench:
        await bench.feed("a", "b", "c")
        await bench.clock.advance(4)
        await bench.feed("d", "e", "f")
        await function.fail(0, OSError())
        await bench.clock.advance(6)
        assert sorted(bench.shown) == ["late a", "late b", "late c"]
        await bench.clock.advance(4)
        assert sorted(bench.shown[3:]) == ["late d", "late e", "late f"]


@pytest.mark.behaviour("a batch that times out fails the job")
async def test_a_batch_that_times_out_fails_the_operator_without_a_fallback() -> None:
    function = Batches()
    async with opened(function, timeout=10) as bench:
        await bench.feed("a", "b", "c")
        await bench.clock.advance(10)

        with pytest.raises(AsyncTimeoutError):
            await bench.operator.finish()


@pytest.mark.behaviour("a batch that times out may give a part of its results, or none")
async def test_a_batch_that_times_out_may_give_nothing() -> None:
    function = Batches(fallback=lambda _: [])
    async with opened(function, timeout=10) as bench:
        await bench.feed("a", "b", "c")
        await bench.clock.advance(10)

        assert (bench.shown, bench.in_flight, bench.operator.statistics().timeouts) == ([], 0, 3)


@pytest.mark.behaviour("a batch in time does not time out")
async def test_a_batch_in_time_does_not_time_out() -> None:
    function = Batches(fallback=lambda _: ["late"])
    async with opened(function, timeout=10) as bench:
        await bench.feed("a", "b", "c")
        await function.answer(0, [["A"], ["B"], ["C"]])
        await bench.clock.advance(100)

        assert (bench.shown, bench.operator.statistics().timeouts) == (["A", "B", "C"], 0)


async def test_an_element_whose_time_is_over_is_in_no_batch() -> None:
    function = Batches(fallback=lambda value: [f"late {value}"])
    function.max_batch_delay = 60
    async with opened(function, timeout=10) as bench:
        await bench.feed("a")
        await bench.clock.advance(10)
        assert bench.shown == ["late a"]
        await bench.feed("b", "c", "d")
        assert function.called == [["b", "c", "d"]]


async def test_a_call_that_nobody_waits_for_any_more_is_cancelled() -> None:
    function = Batches(fallback=lambda value: [f"late {value}"])
    async with opened(function, timeout=10) as bench:
        await bench.feed("a", "b")
        await bench.clock.advance(5)
        assert function.called == [["a", "b"]]
        await bench.clock.advance(5)
        assert (bench.shown, function.ended) == (["late a", "late b"], 1)
