"""Timers in snapshots: which are stored, what of those in flight is, and how they come back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from async_op import FixedDelayRetry, Watermark
from keygroups.state.timers import Timer
from tests.async_op.kit import BOTH, ManualClock, commit, new_store, opened
from tests.async_op.timers.alarms import NOW, Alarms, by_key


@BOTH
@pytest.mark.parametrize("parallelism", [1, 2, 5])
async def test_timers_fire_after_a_restore_at_any_parallelism(mode: str, parallelism: int) -> None:
    alarms, store, clock = Alarms(waits=True), new_store(), ManualClock()
    keys = [f"key {number}" for number in range(20)]
    async with opened(alarms, mode=mode, key_by=by_key, clock=clock, max_parallelism=16) as bench:
        for number, key in enumerate(keys):
            await bench.feed((key, "register", NOW + 1000 + number), (key, "event register", number))
        await bench.feed(Watermark(4))
        await alarms.answer((keys[1], 1))
        snapshot = await commit(await bench.operator.snapshot(), store=store)
    assert snapshot.in_flight_count == (5 if mode == "unordered" else 6)

    clock.jump(60)
    again = Alarms()
    for index in range(parallelism):
        share = snapshot.restore(index, parallelism)
        options: dict[str, Any] = {"parallelism": parallelism, "subtask_index": index, "max_parallelism": 16}
        async with opened(again, restore=share, mode=mode, key_by=by_key, clock=clock, **options) as bench:
            await clock.advance(0)
            await bench.feed(Watermark(100))
            await bench.operator.finish()
            assert bench.shown[-1] == Watermark(100)
    first = set(alarms.times) - {(keys[1], 1)}
    assert first == {(keys[number], number) for number in (0, 2, 3, 4)}
    everything = {(key, NOW + 1000 + number) for number, key in enumerate(keys)}
    everything |= {(key, number) for number, key in enumerate(keys)} - {(keys[1], 1)}
    assert sorted(again.times) == sorted(everything)
    ids = {timer[:2]: timer[2] for timer in alarms.fired}
    assert all(ids.get(timer[:2], timer[2]) == timer[2] for timer in again.fired)


async def test_a_timer_in_flight_is_restored_as_one_with_its_attempt_and_without_its_state_entry() -> None:
    alarms, store, clock = Alarms(waits=True), new_store(), ManualClock()
    async with opened(alarms, key_by=by_key, clock=clock, retry=FixedDelayRetry(3, 5.0)) as bench:
        await bench.feed(("a", "register", NOW))
        await clock.advance(0)
        await alarms.fail(("a", NOW), OSError())
        cut = await bench.operator.snapshot()
        snapshot = await commit(cut, store=store)
    (element,) = cut.in_flight
    assert (element.value, element.timestamp, element.attempt, element.delay) == (Timer(NOW, False), None, 2, 5.0)
    assert snapshot.to_arrow("keygroups_processing_time_timers").num_rows == 0
    in_flight = await asyncio.to_thread(snapshot.in_flight)
    assert in_flight.column("kind").to_pylist() == ["processing_time_timer"]
    again = Alarms()
    async with opened(again, key_by=by_key, clock=clock, restore=snapshot.restore(0)) as bench:
        await bench.operator.finish(hurry=True)
        assert again.fired == alarms.fired


@BOTH
async def test_a_timer_in_the_queue_stands_before_the_watermark_that_it_was_put_before(mode: str) -> None:
    alarms = Alarms(waits=True)
    async with opened(alarms, mode=mode, key_by=by_key) as bench:
        await bench.feed(("a", "event register", 1), ("b", "event register", 1), Watermark(1), ("c", "slow", 0))
        queue = await bench.queue()
        snapshot = await commit(await bench.operator.snapshot())
    assert queue == [Timer(1, True), Timer(1, True), Watermark(1), ("c", "slow", 0)]

    again = Alarms(waits=True)
    async with opened(again, mode=mode, key_by=by_key, restore=snapshot.restore(0)) as bench:
        assert await bench.queue() == queue
        await again.answer(("a", 1), ("c", "slow", 0))
        assert Watermark(1) not in bench.shown
        await again.answer(("b", 1))
        assert bench.shown == ["a@1", "b@1", Watermark(1)]


@BOTH
async def test_a_restored_watermark_waits_for_the_timers_that_it_makes_due(mode: str) -> None:
    alarms, busy = Alarms(waits=True), ("a", "slow", 0)
    async with opened(alarms, mode=mode, key_by=by_key) as bench:
        await bench.feed(("a", "event register", 10), ("z", "slow", 0), Watermark(10), busy)
        await alarms.answer(("z", "slow", 0))
        snapshot = await commit(await bench.operator.snapshot())
        assert await bench.queue() == [Watermark(10), busy]

    again = Alarms(waits=True)
    async with opened(again, mode=mode, key_by=by_key, restore=snapshot.restore(0)) as bench:
        assert (again.running, bench.shown) == ([busy], [])
        await again.answer(busy)
        assert (again.running, bench.shown) == ([("a", 10)], [])
        await again.answer(("a", 10))
        assert bench.shown == ["a@10", Watermark(10)]


@BOTH
async def test_a_restored_timer_gets_its_key_back_before_the_elements_that_came_earlier(mode: str) -> None:
    alarms, clock, first, second = Alarms(waits=True), ManualClock(), ("a", "slow first", 0), ("a", "slow second", 0)
    async with opened(alarms, mode=mode, key_by=by_key, clock=clock) as bench:
        await bench.feed(("a", "register", NOW + 100), first, second)
        await clock.advance(1)
        await alarms.answer(first)
        assert alarms.running == [("a", NOW + 100)]
        snapshot = await commit(await bench.operator.snapshot())

    again = Alarms(waits=True)
    async with opened(again, mode=mode, key_by=by_key, clock=clock, restore=snapshot.restore(0)) as bench:
        assert again.running == [("a", NOW + 100)]
        await again.answer(("a", NOW + 100), second)
        assert bench.in_flight == 0


async def test_the_end_of_input_fires_what_is_due_and_keeps_the_rest() -> None:
    alarms, store, clock = Alarms(), new_store(), ManualClock()
    alarms.again = {NOW + 1: (NOW + 2, False)}
    async with opened(alarms, key_by=by_key, clock=clock) as bench:
        await bench.feed(("a", "register", NOW + 1), ("b", "register", NOW + 5), ("c", "event register", 7))
        clock.jump(0.001)
        await bench.operator.finish()
        await clock.advance(10)
        assert alarms.times == [("a", NOW + 1)]
        snapshot = await commit(await bench.operator.snapshot(), store=store)
    kept = snapshot.to_arrow("keygroups_processing_time_timers").select(["key", "map_key"]).to_pylist()
    assert sorted((row["key"], row["map_key"]) for row in kept) == [("a", NOW + 2), ("b", NOW + 5)]
    assert snapshot.to_arrow("keygroups_event_time_timers").num_rows == 1


@pytest.mark.parametrize("capacity", [1, 2, 100])
async def test_the_end_of_input_waits_for_a_timer_that_the_last_one_registers_for_the_past(capacity: int) -> None:
    alarms, clock = Alarms(), ManualClock()
    alarms.again = {NOW + 3: (NOW + 2, False), NOW + 2: (NOW + 1, False)}
    async with opened(alarms, key_by=by_key, clock=clock, capacity=capacity) as bench:
        await bench.feed(("a", "register", NOW + 3), ("b", "register", NOW + 1), ("c", "register", NOW + 4))
        clock.jump(0.003)

        async def fired_when_finished() -> list[tuple[Any, int]]:
            await bench.operator.finish()
            return alarms.times

        finishing = asyncio.create_task(fired_when_finished())
        while not finishing.done():
            await clock.advance(0)
        assert finishing.result() == [("b", NOW + 1), ("a", NOW + 3), ("a", NOW + 2), ("a", NOW + 1)]
        assert bench.in_flight == 0
