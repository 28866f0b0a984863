"""`process_all`: as long as the operator is full, workers take the next element themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from async_op import AsyncTimeoutError, ElementFailed, OperatorClosed
from keygroups import NullKey
from tests.async_op.kit import BOTH, Bench, Service, opened, settle


class Source:
    """An input that tells how much of it was taken."""

    def __init__(self, *values: Any) -> None:
        self.values = values
        self.taken = 0

    def __iter__(self) -> Iterator[tuple[Any, int | None, str | None]]:
        for value in self.values:
            self.taken += 1
            if isinstance(value, Exception):
                raise value
            yield value, None, None


async def feeding(bench: Bench, *values: Any) -> tuple[Source, asyncio.Task[None]]:
    source = Source(*values)
    task = asyncio.create_task(bench.operator.process_all(source))
    await settle()
    return source, task


@BOTH
async def test_one_more_is_taken_than_there_is_room_for(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode, capacity=3) as bench:
        source, task = await feeding(bench, *"abcdefg")
        assert (source.taken, service.called) == (4, ["a", "b", "c"])
        await service.answer("a")
        assert (source.taken, service.called) == (5, ["a", "b", "c", "d"])
        await service.answer("d", "c", "b")
        assert (source.taken, service.called[4:]) == (7, ["e", "f", "g"])
        await task
        await service.answer("g", "e", "f")
        assert sorted(bench.shown) == list("abcdefg")


async def test_several_places_that_become_free_at_once_are_all_taken() -> None:
    service = Service()
    async with opened(service, mode="ordered", capacity=4) as bench:
        source, task = await feeding(bench, *range(10))
        await service.answer(1, 2)
        assert source.taken == 5
        await service.answer(0)
        assert (source.taken, service.called) == (8, [*range(7)])
        await service.answer(3, 4, 5, 6)
        await service.answer(7, 8, 9)
        await task


async def test_an_error_of_the_input_is_raised_where_it_was_put_in() -> None:
    service = Service()
    async with opened(service, capacity=2) as bench:
        _, task = await feeding(bench, "a", "b", OSError("input"))
        await service.answer("a")
        with pytest.raises(OSError, match="input"):
            await task
        await service.answer("b")
        assert (bench.shown, bench.in_flight) == (["a", "b"], 0)


async def test_an_element_that_is_refused_is_told_where_it_was_put_in() -> None:
    service = Service()
    async with opened(service, capacity=2, key_by=lambda value: None if value == "none" else value) as bench:
        _, task = await feeding(bench, "a", "b", "none", "c")
        await service.answer("a")
        with pytest.raises(NullKey):
            await task
        await service.answer("b")
        assert (bench.shown, bench.in_flight) == (["a", "b"], 0)


async def test_a_failure_ends_the_wait_for_room() -> None:
    service = Service()
    async with opened(service, capacity=2, timeout=10) as bench:
        _, task = await feeding(bench, "a", "b", "c")
        await bench.clock.advance(10)
        with pytest.raises(AsyncTimeoutError):
            await task


async def test_a_failed_call_ends_the_wait_for_room() -> None:
    service = Service()
    async with opened(service, capacity=2) as bench:
        _, task = await feeding(bench, "a", "b", "c")
        await service.fail("a", ValueError("no"))
        with pytest.raises(ElementFailed, match="no"):
            await task


async def test_close_ends_the_wait_for_room() -> None:
    async with opened(Service(), capacity=2) as bench:
        _, task = await feeding(bench, "a", "b", "c")
        await bench.operator.close()
        with pytest.raises(OperatorClosed):
            await task


async def test_whoever_gives_up_waiting_has_put_in_what_he_has_taken_and_leaves_the_rest() -> None:
    service = Service()
    async with opened(service, capacity=2) as bench:
        source, task = await feeding(bench, *"abcd")
        task.cancel()
        await settle()
        await service.answer("a", "b", "c")
        assert (source.taken, bench.shown, bench.in_flight) == (3, ["a", "b", "c"], 0)


@pytest.mark.parametrize("fails", [False, True])
async def test_calls_that_return_at_once_let_others_have_their_turn(fails: bool) -> None:
    class Mostly(Service):
        async def async_invoke(self, value: Any, ctx: Any) -> Any:
            if not isinstance(value, int):
                return await super().async_invoke(value, ctx)
            if fails:
                raise ValueError(value)
            return [value]

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    service, turns, count = Mostly(), 0, 20_480
    async with opened(service, capacity=2, on_error="skip") as bench:
        _, task = await feeding(bench, "slow", "first", *range(count))
        others = asyncio.create_task(count_turns())
        service.calls[1].reply.set_result(["first"])
        await task
        others.cancel()
        await service.answer("slow")

    assert turns >= count // 1024
