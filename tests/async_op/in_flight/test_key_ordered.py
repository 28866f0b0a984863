"""Mode "key_ordered": the order of the input within a key, one call per key at a time, keys beside each other."""

from __future__ import annotations

from typing import Any

import pytest

from async_op import AsyncDataStream, AsyncFunction, InvocationContext, Record, Watermark
from keygroups import ConfigError
from tests.async_op.kit import Bench, Service, commit, opened

OPTIONS: dict[str, Any] = {"mode": "key_ordered", "key_by": lambda value: value[0]}


async def test_one_call_runs_per_key_and_keys_run_beside_each_other() -> None:
    service = Service()
    async with opened(service, **OPTIONS) as bench:
        await bench.feed("a1", "a2", "b1", "c1", "b2")
        assert service.running == ["a1", "b1", "c1"]

        await service.answer("b1", "c1")
        assert service.running == ["a1", "b2"]
        await service.answer("b2", "a1", "a2")
        assert bench.shown == ["b1", "c1", "b2", "a1", "a2"]


async def test_no_element_passes_a_watermark() -> None:
    service = Service()
    async with opened(service, **OPTIONS) as bench:
        await bench.feed(Record("a1", 1), Record("b1", 2), Watermark(5), Record("b2", 6), Record("c1", 7))
        await service.answer("b1", "b2", "c1")
        assert bench.shown == ["b1"]

        await service.answer("a1")
        assert bench.shown == ["b1", "a1", Watermark(5), "b2", "c1"]


async def test_a_hot_key_leaves_room_for_the_others() -> None:
    service = Service()
    async with opened(service, capacity=2, **OPTIONS) as bench:
        async with bench.feeding(*[f"a{number}" for number in range(1, 100)], "b1") as feeding:
            await feeding
        assert service.running == ["a1", "b1"]


async def test_as_many_calls_run_as_fit_and_then_the_input_waits() -> None:
    service = Service()
    async with opened(service, capacity=2, **OPTIONS) as bench:
        await bench.feed("a1", "b1")
        async with bench.feeding("c1") as feeding:
            assert (feeding.done(), service.running) == (False, ["a1", "b1"])
            await service.answer("b1")
            await feeding
        assert service.running == ["a1", "c1"]


async def test_what_waits_for_a_key_has_a_limit_too() -> None:
    """Else a single key would take in the whole input."""
    service = Service()
    async with opened(service, capacity=1, **OPTIONS) as bench, bench.feeding(*["a1"] * 100_000) as feeding:
        assert not feeding.done()
        assert bench.in_flight < 10_000


async def test_keys_take_turns() -> None:
    """Elements that wait for their key are called in the order in which their keys become free."""
    service = Service()
    async with opened(service, capacity=2, **OPTIONS) as bench:
        await bench.feed("a1", "b1")
        async with bench.feeding("b2", "a2", "b3"):
            await service.answer("a1")
            await service.answer("b1")
            assert sorted(service.running) == ["a2", "b2"]
            await service.answer("b2", "a2", "b3")
    assert bench.shown == ["a1", "b1", "b2", "a2", "b3"]


@pytest.mark.behaviour("after a rescale the order of a key and the place of a watermark are kept")
async def test_the_order_within_a_key_survives_a_restart_at_another_parallelism() -> None:
    values = [f"{key}{number}" for number in range(5) for key in "abcdef"]
    service = Service()
    async with opened(service, max_parallelism=8, **OPTIONS) as bench:
        await bench.feed(*values)
        await service.answer("a0", "b0")
        snapshot = await commit(await bench.operator.snapshot())

    shown = list(bench.shown)
    for index in range(3):
        service = Service()
        options = {"subtask_index": index, "parallelism": 3, "max_parallelism": 8} | OPTIONS
        async with opened(service, restore=snapshot.restore(index, 3), **options) as bench:
            while service.running:
                await service.answer(service.running[-1])
            shown += bench.shown
    assert sorted(shown) == sorted(values)
    for key in "abcdef":
        assert [value for value in shown if value[0] == key] == [f"{key}{number}" for number in range(5)]


async def test_a_stream_keeps_the_order_of_each_key() -> None:
    class Uneven(AsyncFunction):
        async def async_invoke(self, value: int, ctx: InvocationContext) -> list[int]:
            import asyncio

            for _ in range(value * 7 % 5):
                await asyncio.sleep(0)
            return [value]

    stream = AsyncDataStream.key_ordered_wait(range(60), Uneven(), key_by=lambda value: value % 4, capacity=7)
    outputs = [output async for output in stream]

    assert sorted(outputs) == list(range(60))
    for key in range(4):
        assert [output for output in outputs if output % 4 == key] == list(range(key, 60, 4))


def test_without_a_key_there_is_no_order_of_keys() -> None:
    with pytest.raises(ConfigError, match="key_by=None"):
        Bench(Service(), mode="key_ordered")
