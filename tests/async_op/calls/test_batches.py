"""`AsyncBatchFunction`: which elements share a call, and when it begins."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from async_op import AsyncBatchFunction, InvocationContext, Record, Watermark
from keygroups import ConfigError, ValueState
from tests.async_op.batches import Batches
from tests.async_op.kit import BOTH, Bench, opened, settle

COUNT = ValueState("count", default=0)


@pytest.mark.behaviour("a batch is called when it is full, after its delay, and at the end of the input")
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


@pytest.mark.behaviour("a batch is called when it is full, after its delay, and at the end of the input")
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


@pytest.mark.behaviour("at most one timer runs for a batch")
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


@pytest.mark.behaviour("a batch is called when it is full, after its delay, and at the end of the input")
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


@pytest.mark.behaviour("batches are unordered, with another operator ordered")
async def test_batches_run_beside_each_other() -> None:
    function = Batches()
    async with opened(function, mode="unordered") as bench:
        await bench.feed(*"abcdef")
        assert function.called == [["a", "b", "c"], ["d", "e", "f"]]
        await function.answer(1, [["D"], ["E"], ["F"]])
        assert bench.shown == ["D", "E", "F"]
        await function.answer(0, [["A"], ["B"], ["C"]])
        assert bench.shown == ["D", "E", "F", "A", "B", "C"]


@pytest.mark.behaviour("batches are unordered, with another operator ordered")
async def test_ordered_batches_leave_in_the_order_of_the_input() -> None:
    function = Batches()
    async with opened(function, mode="ordered") as bench:
        await bench.feed("a", "b", "c", Watermark(1), "d", "e", "f")
        await function.answer(1, [["D"], ["E"], ["F"]])
        assert bench.shown == []
        await function.answer(0, [["A"], ["B"], ["C"]])
        assert bench.shown == ["A", "B", "C", Watermark(1), "D", "E", "F"]


@pytest.mark.behaviour("the capacity bounds batches, too")
async def test_a_batch_is_never_larger_than_what_may_be_in_flight() -> None:
    """It would wait for company that cannot come in."""
    function = Batches()
    async with opened(function, capacity=2) as bench, bench.feeding("a", "b", "c"):
        assert function.called == [["a", "b"]]


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


@pytest.mark.behaviour("the size of a batch must be positive")
@pytest.mark.parametrize(("size", "delay"), [(0, 1), (-1, 1), (1, -1)])
async def test_limits_that_can_never_work_are_refused(size: int, delay: float) -> None:
    function = Batches()
    function.max_batch_size, function.max_batch_delay = size, delay

    with pytest.raises(ConfigError, match="max_batch_(size=.*: must be at least 1|delay=.*: must be a finite number)"):
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


async def test_a_batch_function_is_also_one_for_a_single_element() -> None:
    class Halves(AsyncBatchFunction):
        async def async_invoke_batch(self, values: Sequence[Any], ctxs: Sequence[InvocationContext]) -> Any:
            return [ValueError("odd") if value % 2 else [value // 2] for value in values]

    ctx = InvocationContext()
    assert await Halves().async_invoke(4, ctx) == [2]
    with pytest.raises(ValueError, match="odd"):
        await Halves().async_invoke(3, ctx)
