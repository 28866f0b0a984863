"""Failures of a batch: as a whole or in part, for good or until the next attempt."""

from __future__ import annotations

from typing import Any

import pytest

from async_op import ElementFailed, ExponentialBackoffRetry, FixedDelayRetry
from tests.async_op.batches import Batches
from tests.async_op.kit import opened


async def test_part_of_a_batch_may_fail() -> None:
    function = Batches()
    async with opened(function, on_error="skip") as bench:
        await bench.feed("a", "b", "c")
        await function.answer(0, [["A"], ValueError("b"), ["C"]])

        assert bench.shown == ["A", "C"]
        assert bench.operator.statistics().skipped == 1


async def test_a_failed_part_fails_the_operator_by_name() -> None:
    function = Batches()
    async with opened(function) as bench:
        await bench.feed("a", "b", "c")
        await function.answer(0, [["A"], ValueError("no b"), ["C"]])

        with pytest.raises(ElementFailed, match="element 'b'.*no b"):
            await bench.operator.finish()


async def test_an_error_of_the_call_is_that_of_each_element() -> None:
    function = Batches()
    async with opened(function, on_error="skip") as bench:
        await bench.feed("a", "b", "c")
        await function.fail(0, ValueError("all"))

        assert (bench.shown, bench.operator.statistics().skipped, bench.in_flight) == ([], 3, 0)


@pytest.mark.parametrize("results", [[], [["A"]], [["A"]] * 4])
async def test_as_many_results_as_values_are_expected(results: Any) -> None:
    function = Batches()
    async with opened(function) as bench:
        await bench.feed("a", "b", "c")
        await function.answer(0, results)

        with pytest.raises(ElementFailed, match=f"{len(results)} results for 3 values"):
            await bench.operator.finish()


async def test_outputs_that_fail_while_they_are_read_fail_their_element_only() -> None:
    def broken() -> Any:
        yield "never seen"
        raise ValueError("while reading")

    function = Batches()
    async with opened(function, on_error="skip") as bench:
        await bench.feed("a", "b", "c")
        await function.answer(0, [["A"], broken(), iter(["C"])])

        assert (bench.shown, bench.operator.statistics().skipped) == (["A", "C"], 1)


@pytest.mark.behaviour("a batch is retried after a fixed delay")
async def test_the_failed_part_of_a_batch_is_retried_with_others() -> None:
    function = Batches()
    async with opened(function, retry=FixedDelayRetry(2, 1)) as bench:
        await bench.feed("a", "b", "c")
        await function.answer(0, [["A"], ValueError(), ["C"]])
        await bench.clock.advance(1)
        await bench.feed("d", "e")
        assert function.called[1] == ["b", "d", "e"]
        await function.answer(1, [["B"], ["D"], ["E"]])
        assert bench.shown == ["A", "C", "B", "D", "E"]


@pytest.mark.behaviour("a batch is retried after growing delays")
async def test_a_batch_is_retried_after_growing_delays() -> None:
    function = Batches()
    function.max_batch_delay = 0
    async with opened(function, retry=ExponentialBackoffRetry(3, 1, 10, jitter=False)) as bench:
        await bench.feed("a", "b", "c")
        for number, delay in enumerate((1, 2)):
            await function.fail(number, ValueError())
            await bench.clock.advance(delay - 0.1)
            assert len(function.called) == number + 1
            await bench.clock.advance(0.1)
        assert function.called == [["a", "b", "c"]] * 3


@pytest.mark.behaviour("a batch that was retried too often keeps the cause")
async def test_a_batch_that_fails_too_often_keeps_its_last_error() -> None:
    function = Batches()
    async with opened(function, retry=FixedDelayRetry(3, 0)) as bench:
        await bench.feed("a", "b", "c")
        last = ValueError("third")
        for number, error in enumerate((ValueError("first"), ValueError("second"), last)):
            await function.fail(number, error)
            await bench.clock.advance(0)

        with pytest.raises(ElementFailed, match="attempt 3") as raised:
            await bench.operator.finish()
        assert raised.value.__cause__ is last
        assert len(function.called) == 3


@pytest.mark.behaviour("an error of a batch that does not match is final")
async def test_an_error_that_does_not_match_is_not_retried() -> None:
    function = Batches()
    async with opened(function, retry=FixedDelayRetry(3, 0, retry_on=OSError), on_error="skip") as bench:
        await bench.feed("a", "b", "c")
        await function.fail(0, ValueError())
        await bench.clock.advance(0)

        assert (len(function.called), bench.operator.statistics().retries) == (1, 0)


@pytest.mark.behaviour("a batch is retried for its result")
async def test_results_of_a_batch_may_be_asked_for_again() -> None:
    function = Batches()
    retry = FixedDelayRetry(2, 1, retry_if_result=lambda outputs: not outputs)
    async with opened(function, retry=retry) as bench:
        await bench.feed("a", "b", "c")
        await function.answer(0, [["A"], [], []])
        await bench.clock.advance(6)
        assert function.called[1] == ["b", "c"]
        await function.answer(1, [["B"], []])
        assert (bench.shown, bench.in_flight) == (["A", "B"], 0)
