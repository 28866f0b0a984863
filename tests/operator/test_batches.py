"""`AsyncBatchFunction`: one call for many elements, each with its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from async_op import (
    AsyncBatchFunction,
    AsyncTimeoutError,
    ElementFailed,
    ExponentialBackoffRetry,
    FixedDelayRetry,
    InvocationContext,
    Record,
    Watermark,
)
from keygroups import ConfigError, ValueState
from tests.operator.kit import Bench, commit, opened, settle

BOTH = pytest.mark.parametrize("mode", ["ordered", "unordered"])
COUNT = ValueState("count", default=0)


class Batches(AsyncBatchFunction):
    """Calls that end when the test says so."""

    max_batch_size = 3
    max_batch_delay = 5.0

    def __init__(self, fallback: Any = None) -> None:
        self.called: list[list[Any]] = []
        self.replies: list[asyncio.Future[Any]] = []
        self.ended = 0
        self.closed_with = -1
        self._fallback = fallback

    async def async_invoke_batch(self, values: Sequence[Any], ctxs: Sequence[InvocationContext]) -> Any:
        self.called.append(list(values))
        self.replies.append(asyncio.get_running_loop().create_future())
        try:
            return await self.replies[-1]
        finally:
            await asyncio.sleep(0)
            self.ended += 1

    async def timeout(self, value: Any, ctx: InvocationContext) -> Any:
        return await super().timeout(value, ctx) if self._fallback is None else self._fallback(value)

    async def close(self) -> None:
        self.closed_with = self.ended

    async def answer(self, number: int, results: Any) -> None:
        self.replies[number].set_result(results)
        await settle()

    async def fail(self, number: int, error: Exception) -> None:
        self.replies[number].set_exception(error)
        await settle()


@BOTH
async def test_a_full_batch_is_called_at_once_and_gives_each_element_its_outputs(mode: str) -> None:
    function = Batches()
    async with opened(function, mode=mode) as bench:
        await bench.feed(Record("a", 1), Record("b", 2))
        assert function.called == []

        await bench.feed(Record("c", 3))
        assert function.called == [["a", "b", "c"]]
        await function.answer(0, [["A"], [], ["C", "c"]])
        assert bench.outputs == [Record("A", 1), Record("C", 3), Record("c", 3)]


async def test_a_batch_waits_no_longer_than_its_delay_after_its_first_element() -> None:
    function = Batches()
    async with opened(function) as bench:
        await bench.feed("a")
        await bench.clock.advance(4)
        await bench.feed("b")
        await bench.clock.advance(0.9)
        assert function.called == []
        await bench.clock.advance(0.1)
        assert function.called == [["a", "b"]]

        await bench.feed("c")
        await bench.clock.advance(5)
        assert function.called == [["a", "b"], ["c"]]


async def test_a_full_batch_takes_its_timer_along() -> None:
    function = Batches()
    async with opened(function) as bench:
        await bench.feed("a")
        await bench.clock.advance(4)
        await bench.feed("b", "c", "d")
        assert (function.called, bench.clock.timers) == ([["a", "b", "c"]], 1)
        await bench.clock.advance(4.9)
        assert len(function.called) == 1
        await bench.clock.advance(0.1)
        assert function.called[1] == ["d"]


async def test_the_end_of_the_input_calls_for_what_is_there() -> None:
    function = Batches()
    async with opened(function) as bench:
        await bench.feed("a", "b")
        finishing = asyncio.create_task(bench.operator.finish())
        await settle()
        assert function.called == [["a", "b"]]
        await function.answer(0, [["A"], ["B"]])
        await finishing
        assert (bench.shown, bench.clock.timers) == (["A", "B"], 0)


async def test_batches_run_beside_each_other() -> None:
    function = Batches()
    async with opened(function, mode="unordered") as bench:
        await bench.feed(*"abcdef")
        assert function.called == [["a", "b", "c"], ["d", "e", "f"]]
        await function.answer(1, [["D"], ["E"], ["F"]])
        assert bench.shown == ["D", "E", "F"]
        await function.answer(0, [["A"], ["B"], ["C"]])
        assert bench.shown == ["D", "E", "F", "A", "B", "C"]


async def test_ordered_batches_leave_in_the_order_of_the_input() -> None:
    function = Batches()
    async with opened(function, mode="ordered") as bench:
        await bench.feed("a", "b", "c", Watermark(1), "d", "e", "f")
        await function.answer(1, [["D"], ["E"], ["F"]])
        assert bench.shown == []
        await function.answer(0, [["A"], ["B"], ["C"]])
        assert bench.shown == ["A", "B", "C", Watermark(1), "D", "E", "F"]


async def test_a_batch_is_never_larger_than_what_may_be_in_flight() -> None:
    """It would wait for company that cannot come in."""
    function = Batches()
    async with opened(function, capacity=2) as bench, bench.feeding("a", "b", "c"):
        assert function.called == [["a", "b"]]


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


async def test_the_failed_part_of_a_batch_is_tried_again_with_others() -> None:
    function = Batches()
    async with opened(function, retry=FixedDelayRetry(2, 1)) as bench:
        await bench.feed("a", "b", "c")
        await function.answer(0, [["A"], ValueError(), ["C"]])
        await bench.clock.advance(1)
        await bench.feed("d", "e")
        assert function.called[1] == ["b", "d", "e"]
        await function.answer(1, [["B"], ["D"], ["E"]])
        assert bench.shown == ["A", "C", "B", "D", "E"]


async def test_a_batch_is_tried_again_after_growing_delays() -> None:
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


async def test_an_error_that_does_not_match_is_not_tried_again() -> None:
    function = Batches()
    async with opened(function, retry=FixedDelayRetry(3, 0, retry_on=OSError), on_error="skip") as bench:
        await bench.feed("a", "b", "c")
        await function.fail(0, ValueError())
        await bench.clock.advance(0)

        assert (len(function.called), bench.operator.statistics().retries) == (1, 0)


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


async def test_a_batch_that_times_out_fails_the_operator_without_a_fallback() -> None:
    function = Batches()
    async with opened(function, timeout=10) as bench:
        await bench.feed("a", "b", "c")
        await bench.clock.advance(10)

        with pytest.raises(AsyncTimeoutError):
            await bench.operator.finish()


async def test_a_batch_that_times_out_may_give_nothing() -> None:
    function = Batches(fallback=lambda _: [])
    async with opened(function, timeout=10) as bench:
        await bench.feed("a", "b", "c")
        await bench.clock.advance(10)

        assert (bench.shown, bench.in_flight, bench.operator.statistics().timeouts) == ([], 0, 3)


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


async def test_a_batch_holds_no_key_twice_where_there_is_state() -> None:
    class Counting(Batches):
        states = (COUNT,)

        async def async_invoke_batch(self, values: Sequence[Any], ctxs: Sequence[InvocationContext]) -> Any:
            self.called.append(list(values))
            results = []
            for ctx in ctxs:
                count = ctx.state(COUNT).value() + 1
                ctx.state(COUNT).update(count)
                results.append([count])
            return results

    function = Counting()
    async with opened(function, mode="ordered", key_by=lambda value: value[0]) as bench:
        await bench.feed("a1", "a2", "b1", "c1")
        assert function.called == [["a1", "b1", "c1"]]
        await bench.clock.advance(5)
        assert function.called[1:] == [["a2"]]
        assert bench.shown == [1, 2, 1, 1]


async def test_close_ends_the_calls_of_batches_before_it_closes_the_function() -> None:
    function = Batches()
    async with opened(function) as bench:
        await bench.feed("a", "b", "c", "d")

    assert (function.called, function.closed_with, bench.clock.timers) == ([["a", "b", "c"]], 1, 0)


@pytest.mark.parametrize(("size", "delay"), [(0, 1), (-1, 1), (1, -1)])
async def test_limits_that_can_never_work_are_refused(size: int, delay: float) -> None:
    function = Batches()
    function.max_batch_size, function.max_batch_delay = size, delay

    with pytest.raises(ConfigError, match="max_batch_size is at least 1"):
        await Bench(function).operator.open()


class Contextual(Batches):
    """Looks at the context of each of its elements."""

    async def async_invoke_batch(self, values: Sequence[Any], ctxs: Sequence[InvocationContext]) -> Any:
        self.seen = [(ctx.attempt, ctx.timestamp, ctx.idempotency_key, ctx.key) for ctx in ctxs]
        assert ctxs[1].timestamp == self.seen[1][1]
        assert [ctx.timestamp for ctx in ctxs[1:]] == [timestamp for _, timestamp, _, _ in self.seen[1:]]
        return await super().async_invoke_batch(values, ctxs)


@BOTH
async def test_each_element_of_a_batch_has_a_context(mode: str) -> None:
    function = Contextual()
    async with opened(function, mode=mode) as bench:
        await bench.operator.process("a", 1, "id a")
        await bench.operator.process_all([("b", 2, None), ("c", 3, "id c")])
        await settle()
        made_up = function.seen[1][2]
        assert function.seen == [(1, 1, "id a", None), (1, 2, made_up, None), (1, 3, "id c", None)]
        captured = (await bench.operator.snapshot()).in_flight
        assert [element.element_id for element in captured] == ["id a", made_up, "id c"]
        await function.answer(0, [["A"], ["B"], ["C"]])
        assert bench.outputs == [Record("A", 1), Record("B", 2), Record("C", 3)]


@BOTH
async def test_elements_taken_in_at_once_are_as_those_taken_in_one_by_one(mode: str) -> None:
    function = Batches()
    async with opened(function, mode=mode, capacity=100) as bench:
        await bench.operator.process_all((number, number, None) for number in range(7))
        await bench.feed(Watermark(6), Record("last", 7))
        await settle()
        assert function.called == [[0, 1, 2], [3, 4, 5]]
        assert [element.timestamp for element in (await bench.operator.snapshot()).in_flight] == [*range(7), 6, 7]
        await bench.clock.advance(5)
        assert function.called[2] == [6, "last"]
        for number in (2, 1, 0):
            await function.answer(number, [[value] for value in function.called[number]])
        assert sorted(bench.outputs[:7]) == [Record(number, number) for number in range(7)]
        assert bench.outputs[7:] == [Watermark(6), Record("last", 7)]


async def test_what_came_before_an_error_of_the_input_is_accepted() -> None:
    def values() -> Any:
        yield ("a", None, None)
        yield ("b", None, None)
        raise OSError("input")

    function = Batches()
    async with opened(function) as bench:
        with pytest.raises(OSError, match="input"):
            await bench.operator.process_all(values())
        assert await bench.queue() == ["a", "b"]


@BOTH
async def test_what_has_left_of_a_batch_that_failed_in_part_is_not_in_the_snapshot(mode: str) -> None:
    function = Batches()
    async with opened(function, mode=mode, retry=FixedDelayRetry(2, 1)) as bench:
        await bench.feed("a", "b", "c")
        await function.answer(0, [["A"], ValueError(), ["C"]])

        assert bench.shown == (["A"] if mode == "ordered" else ["A", "C"])
        assert await bench.queue() == (["b", "c"] if mode == "ordered" else ["b"])


async def test_outputs_that_fail_while_they_are_read_fail_their_element_only() -> None:
    def broken() -> Any:
        yield "never seen"
        raise ValueError("while reading")

    function = Batches()
    async with opened(function, on_error="skip") as bench:
        await bench.feed("a", "b", "c")
        await function.answer(0, [["A"], broken(), iter(["C"])])

        assert (bench.shown, bench.operator.statistics().skipped) == (["A", "C"], 1)


async def test_a_call_that_nobody_waits_for_any_more_is_cancelled() -> None:
    function = Batches(fallback=lambda value: [f"late {value}"])
    async with opened(function, timeout=10) as bench:
        await bench.feed("a", "b")
        await bench.clock.advance(5)
        assert function.called == [["a", "b"]]
        await bench.clock.advance(5)
        assert (bench.shown, function.ended) == (["late a", "late b"], 1)


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


async def test_a_batch_function_is_also_one_for_a_single_element() -> None:
    class Halves(AsyncBatchFunction):
        async def async_invoke_batch(self, values: Sequence[Any], ctxs: Sequence[InvocationContext]) -> Any:
            return [ValueError("odd") if value % 2 else [value // 2] for value in values]

    ctx = InvocationContext()
    assert await Halves().async_invoke(4, ctx) == [2]
    with pytest.raises(ValueError, match="odd"):
        await Halves().async_invoke(3, ctx)
