"""The time budget of an element in snapshots: what is left of it after a restore."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from async_op import InvocationContext
from tests.async_op.kit import Service, commit, opened


@pytest.mark.behaviour("after a restore an element keeps its attempts, its time and the rest of its delay")
async def test_a_restored_element_continues_with_the_time_that_was_left() -> None:
    first = Service()
    async with opened(first, timeout=10) as bench:
        await bench.feed("slow")
        await bench.clock.advance(7)
        await bench.feed("slower")
        snapshot = await commit(await bench.operator.snapshot())

    second = Service(fallback=lambda value: [f"late {value}"])
    async with opened(second, timeout=10, restore=snapshot.restore(0)) as bench:
        assert [call.ctx.remaining for call in second.calls] == [3, 10]
        await bench.feed("new")

        await bench.clock.advance(2.5)
        assert second.timed_out == []
        await bench.clock.advance(0.5)
        assert second.timed_out == ["slow"]
        await bench.clock.advance(7)
        assert sorted(second.timed_out) == ["new", "slow", "slower"]


@pytest.mark.behaviour("after a restore an element keeps its attempts, its time and the rest of its delay")
async def test_a_restored_element_whose_time_is_over_is_not_called_again() -> None:
    class Stuck(Service):
        async def timeout(self, value: Any, ctx: InvocationContext) -> list[Any]:
            await asyncio.Event().wait()
            return []

    async with opened(Stuck(), timeout=10) as bench:
        await bench.feed("slow")
        await bench.clock.advance(11)
        snapshot = await commit(await bench.operator.snapshot())

    service = Service(fallback=lambda value: [f"late {value}"])
    async with opened(service, timeout=10, restore=snapshot.restore(0)) as bench:
        await bench.clock.advance(0)

        assert bench.shown == ["late slow"]
        assert service.timed_out == ["slow"]


async def test_an_element_restored_without_a_budget_gets_a_whole_one() -> None:
    async with opened(Service()) as bench:
        await bench.feed("old")
        snapshot = await commit(await bench.operator.snapshot())

    service = Service(fallback=lambda value: [f"late {value}"])
    async with opened(service, timeout=10, restore=snapshot.restore(0)) as bench:
        await bench.clock.advance(9)
        assert service.timed_out == []
        await bench.clock.advance(1)
        assert service.timed_out == ["old"]


async def test_a_budget_is_forgotten_where_the_timeout_is_taken_away() -> None:
    async with opened(Service(), timeout=10) as bench:
        await bench.feed("old")
        snapshot = await commit(await bench.operator.snapshot())

    service = Service()
    async with opened(service, restore=snapshot.restore(0)) as bench:
        await bench.clock.advance(1000)

        assert (service.calls[0].ctx.remaining, service.running, bench.clock.timers) == (None, ["old"], 0)
