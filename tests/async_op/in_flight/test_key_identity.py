"""What is one key is so everywhere: all NaN are, 0.0 and -0.0 are, 1, True and 1.0 are three."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest

from async_op import AsyncFunction, Cache, InvocationContext, Resilience, SingleFlight
from keygroups import ValueState, key_group_of
from tests.async_op.kit import BOTH, Instant, Service, commit, opened, settle

COUNT = ValueState("count", default=0)
ONE_KEY: list[tuple[Any, ...]] = [
    (math.nan, float("nan"), struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0], np.float64("nan")),
    (("a", float("nan")), ("a", float("nan")), ("a", np.float64("nan"))),
    (0.0, -0.0, np.float64(-0.0)),
    (7, np.int64(7), np.int32(7)),
]
THREE_KEYS = (1, True, 1.0)


class Counting(Service):
    """Counts the elements of each key: reads before the call, writes after it."""

    states = (COUNT,)

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> Any:
        count = ctx.state(COUNT).value() + 1
        await super().async_invoke(value, ctx)
        ctx.state(COUNT).update(count)
        return [count]


@BOTH
@pytest.mark.parametrize("keys", ONE_KEY, ids=str)
async def test_elements_of_one_key_are_called_for_one_after_the_other(mode: str, keys: tuple[Any, ...]) -> None:
    service = Counting()
    async with opened(service, mode=mode, key_by=lambda number: keys[number]) as bench:
        await bench.feed(*range(len(keys)))
        for number in range(len(keys)):
            assert service.running == [number]
            await service.answer(number)

        assert bench.shown == [number + 1 for number in range(len(keys))]


async def test_elements_of_one_key_wait_for_each_other_after_a_restart() -> None:
    async with opened(Counting(), key_by=lambda _: float("nan")) as bench:
        await bench.feed(0, 1)
        snapshot = await commit(await bench.operator.snapshot())
    service = Counting()
    async with opened(service, key_by=lambda _: float("nan"), restore=snapshot.restore(0)) as bench:
        await bench.feed(2)
        for number in range(3):
            assert service.running == [number]
            await service.answer(number)

        assert bench.shown == [1, 2, 3]


async def test_keys_that_are_equal_in_python_only_do_not_wait_for_each_other() -> None:
    service = Counting()
    async with opened(service, key_by=lambda number: THREE_KEYS[number % 3]) as bench:
        await bench.feed(*range(6))
        assert service.running == [0, 1, 2]
        await service.answer(*range(6))

        assert bench.shown == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("keys", [THREE_KEYS, (True, 1, 1.0), (1.0, True, 1), ("1", 1), (0.0, 0, False)], ids=str)
async def test_a_key_that_equals_another_has_a_key_group_of_its_own(keys: tuple[Any, ...]) -> None:
    class Grouped(AsyncFunction):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> Any:
            return [(type(ctx.key), ctx.key_group)]

    async with opened(Grouped(), mode="ordered", key_by=lambda number: keys[number], max_parallelism=128) as bench:
        await bench.feed(*range(len(keys)), *range(len(keys)))

        assert bench.shown == [(type(key), key_group_of(key, 128)) for key in (*keys, *keys)]


class Alarmed(Counting):
    """Registers a timer for each element, some seconds from now; the name of a timer is its key's."""

    def __init__(self) -> None:
        super().__init__()
        self.fired: list[str] = []

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> Any:
        ctx.timers.register(2_000_000)
        return await super().async_invoke(value, ctx)

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> Any:
        self.fired.append(repr(ctx.key))
        return [ctx.idempotency_key]


@pytest.mark.parametrize("keys", ONE_KEY, ids=str)
async def test_a_timer_waits_while_its_key_is_busy_however_the_key_was_written(keys: tuple[Any, ...]) -> None:
    service = Alarmed()
    async with opened(service, key_by=lambda number: keys[number % len(keys)]) as bench:
        await bench.feed(*range(len(keys)))
        await service.answer(*range(len(keys)))
        await bench.feed(len(keys))
        await bench.clock.advance(1_500)
        assert (service.running, service.fired) == ([len(keys)], [])
        await service.answer(len(keys))

        assert len(service.fired) == 1


async def test_timers_of_keys_that_are_equal_in_python_only_do_not_wait_for_each_other() -> None:
    service = Alarmed()
    async with opened(service, key_by=lambda number: THREE_KEYS[number % 3]) as bench:
        await bench.feed(*range(3))
        await service.answer(*range(3))
        await bench.feed(0)
        await bench.clock.advance(1_500)
        assert service.fired == ["True", "1.0"]
        await service.answer(0)

        assert len(set(bench.shown[3:])) == len(bench.shown[3:]), "each timer has an id of its own"


async def test_the_outputs_of_one_call_are_kept_for_its_own_key_only() -> None:
    function = Instant(lambda number: [number])
    keys = (*THREE_KEYS, *THREE_KEYS, float("nan"), float("nan"), 0.0, -0.0)
    cache = Resilience(cache=Cache(key=lambda number: keys[number], max_entries=100))
    async with opened(function, resilience=cache, mode="ordered") as bench:
        for number in range(len(keys)):
            await bench.feed(number)

        assert bench.shown == [0, 1, 2, 0, 1, 2, 6, 6, 8, 8]


async def test_only_calls_of_one_key_are_one_flight() -> None:
    service = Service()
    keys = (*THREE_KEYS, *THREE_KEYS, float("nan"), float("nan"), 0.0, -0.0)
    shared = Resilience(single_flight=SingleFlight(lambda number: keys[number]))
    async with opened(service, resilience=shared, mode="ordered") as bench:
        await bench.feed(*range(len(keys)))
        assert service.running == [0, 1, 2, 6, 8]
        await service.answer(0, 1, 2, 6, 8)
        await settle()

        assert bench.shown == [0, 1, 2, 0, 1, 2, 6, 6, 8, 8]
