"""Timers: when they fire, in which order, and what they may do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from async_op import AsyncFunction, FixedDelayRetry, InvocationContext, Record, Watermark
from async_op.errors import AsyncTimeoutError, TimersUnavailable
from keygroups import ConfigError
from keygroups.state.timers import STALE_MIN, Timer
from tests.async_op.kit import BOTH, Bench, Instant, ManualClock, opened, settle
from tests.async_op.timers.alarms import NOW, Alarms, by_key
from tests.backends import ON_DISK


@BOTH
async def test_timers_of_processing_time_fire_when_they_are_due_in_order(mode: str) -> None:
    alarms = Alarms()
    async with opened(alarms, mode=mode, key_by=by_key) as bench:
        await bench.feed(("a", "register", NOW + 300), ("b", "register", NOW + 100), ("a", "register", NOW + 200))
        await bench.clock.advance(0.099)
        assert alarms.times == []
        await bench.clock.advance(0.001)
        assert alarms.times == [("b", NOW + 100)]
        await bench.clock.advance(10)
        assert alarms.times == [("b", NOW + 100), ("a", NOW + 200), ("a", NOW + 300)]
        assert bench.outputs[-1] == Record(f"a@{NOW + 300}", None)
        assert bench.operator.statistics().timers_fired == 3
        assert bench.operator.statistics().accepted == 3
        assert bench.clock.timers == 0


@BOTH
async def test_there_is_one_timer_for_a_timestamp_and_none_once_it_is_deleted(mode: str) -> None:
    alarms = Alarms()
    async with opened(alarms, mode=mode, key_by=by_key) as bench:
        for _ in range(3):
            await bench.feed(("a", "register", NOW + 100), ("b", "register", NOW + 100), ("c", "register", NOW + 200))
        await bench.feed(("b", "delete", NOW + 100), ("c", "delete", NOW + 999))
        await bench.feed(("c", "delete", NOW + 200), ("c", "register", NOW + 200))
        await bench.clock.advance(1)
        assert alarms.times == [("a", NOW + 100), ("c", NOW + 200)]


@pytest.mark.parametrize("state_backend", ["memory", ON_DISK], ids=["memory", "disk"])
async def test_a_key_that_has_timers_registers_more_of_them(state_backend: Any) -> None:
    alarms = Alarms()
    async with opened(alarms, key_by=by_key, state_backend=state_backend) as bench:
        for timestamp in (NOW + 200, NOW + 100, NOW + 300):
            await bench.feed(("a", "register", timestamp), ("a", "event register", timestamp))
        await bench.clock.advance(1)
        await bench.feed(Watermark(NOW + 300))
        await bench.operator.finish()
        assert alarms.times == [("a", NOW + late) for _ in range(2) for late in (100, 200, 300)]


@BOTH
async def test_one_that_is_registered_for_the_past_fires_at_once(mode: str) -> None:
    alarms = Alarms()
    async with opened(alarms, mode=mode, key_by=by_key) as bench:
        await bench.feed(("a", "register", NOW - 5))
        await bench.clock.advance(0)
        assert alarms.times == [("a", NOW - 5)]


@BOTH
async def test_a_registration_counts_once_its_invocation_has_completed(mode: str) -> None:
    alarms = Alarms()
    async with opened(alarms, mode=mode, key_by=by_key) as bench:
        await bench.feed(("a", "slow register", NOW + 100))
        await bench.clock.advance(1)
        assert alarms.times == []
        await alarms.answer(("a", "slow register", NOW + 100))
        await bench.clock.advance(0)
        assert alarms.times == [("a", NOW + 100)]


@BOTH
async def test_a_timer_waits_for_its_key_and_can_be_deleted_until_it_runs(mode: str) -> None:
    alarms = Alarms()
    async with opened(alarms, mode=mode, key_by=by_key) as bench:
        await bench.feed(("a", "register", NOW + 100), ("b", "register", NOW + 100), ("b", "register", NOW + 200))
        deletes, keeps = ("a", "slow delete", NOW + 100), ("b", "slow", 0)
        await bench.feed(deletes, keeps, ("b", "nothing", 0))
        await bench.clock.advance(1)
        assert alarms.times == []

        await alarms.answer(deletes, keeps)
        assert alarms.times == [("b", NOW + 100), ("b", NOW + 200)]
        assert bench.in_flight == 0


@BOTH
async def test_a_timer_goes_before_the_elements_that_wait_for_its_key(mode: str) -> None:
    alarms = Alarms(waits=True)
    async with opened(alarms, mode=mode, key_by=by_key) as bench:
        await bench.feed(("a", "register", NOW + 100), ("a", "slow first", 0), ("a", "slow second", 0))
        await bench.clock.advance(1)
        await alarms.answer(("a", "slow first", 0))
        assert alarms.running == [("a", NOW + 100)]
        await alarms.answer(("a", NOW + 100))
        assert alarms.running == [("a", "slow second", 0)]
        await alarms.answer(("a", "slow second", 0))


@BOTH
async def test_timers_of_event_time_fire_before_the_watermark_leaves(mode: str) -> None:
    alarms = Alarms(waits=True)
    async with opened(alarms, mode=mode, key_by=by_key) as bench:
        await bench.feed(*[(key, "event register", number) for number, key in ((30, "a"), (10, "b"), (20, "b"))])
        await bench.feed(("c", "slow", 0), Watermark(20), ("d", "nothing", 0))
        assert (alarms.times, bench.shown) == ([], [])

        await alarms.answer(("c", "slow", 0))
        assert alarms.times == [("b", 10)]
        assert bench.shown == []
        assert (await bench.queue())[:2] == [Timer(10, True), Watermark(20)]
        await alarms.answer(("b", 10))
        assert bench.shown == ["b@10"]
        await alarms.answer(("b", 20))
        assert bench.outputs == [Record("b@10", 10), Record("b@20", 20), Watermark(20)]

        await bench.feed(Watermark(29))
        assert bench.shown[-1] == Watermark(29)
        await bench.feed(Watermark(30))
        await alarms.answer(("a", 30))
        assert bench.shown[-2:] == ["a@30", Watermark(30)]


@BOTH
async def test_what_a_timer_registers_up_to_the_watermark_fires_before_it_too_in_order(mode: str) -> None:
    alarms = Alarms()
    alarms.again = {10: (15, True), 15: (16, True), 20: (5, True), 5: (21, True)}
    async with opened(alarms, mode=mode, key_by=by_key) as bench:
        await bench.feed(*[("a", "event register", number) for number in (10, 18, 20)])
        await bench.feed(Watermark(20), Watermark(40))
        assert [timestamp for _, timestamp in alarms.times] == [10, 15, 16, 18, 20, 5, 21]
        assert bench.shown == [
            *[f"a@{number}" for number in (10, 15, 16, 18, 20, 5)],
            Watermark(20),
            "a@21",
            Watermark(40),
        ]


@BOTH
async def test_a_watermark_waits_for_a_timer_whose_key_is_busy_with_a_later_element(mode: str) -> None:
    alarms = Alarms()
    async with opened(alarms, mode=mode, key_by=by_key) as bench:
        await bench.feed(("a", "event register", 10), ("b", "event register", 10), ("z", "slow", 0))
        later = ("a", "slow event delete", 10), ("b", "slow", 0)
        await bench.feed(Watermark(10), *later)
        await alarms.answer(("z", "slow", 0))
        assert (alarms.times, bench.shown) == ([], [])
        await alarms.answer(later[1])
        assert alarms.times == [("b", 10)]
        assert bench.shown == ["b@10"]
        await alarms.answer(later[0])
        assert alarms.times == [("b", 10)]
        assert bench.shown == ["b@10", Watermark(10)]


@BOTH
async def test_more_timers_than_capacity_fire_a_bounded_number_at_a_time(mode: str) -> None:
    alarms = Alarms(waits=True)
    async with opened(alarms, mode=mode, key_by=by_key, capacity=3) as bench:
        for number in range(10):
            await bench.feed((number, "register", NOW + number), (number, "event register", number))
        await bench.clock.advance(1)
        assert len(alarms.running) == 3
        async with bench.feeding(("x", "nothing", 0), Watermark(100)) as feeding:
            assert not feeding.done()
            while alarms.running:
                assert len(alarms.running) <= 3
                await alarms.answer(alarms.running[0])
            await feeding
        assert len(alarms.times) == 20
        assert bench.shown[-1] == Watermark(100)


@BOTH
async def test_a_timer_is_retried_and_has_the_same_id_in_every_attempt(mode: str) -> None:
    alarms = Alarms(waits=True)
    retry = FixedDelayRetry(3, 1.0)
    async with opened(alarms, mode=mode, key_by=by_key, retry=retry) as bench:
        await bench.feed(("a", "register", NOW), ("b", "event register", NOW), Watermark(NOW))
        await bench.clock.advance(0)
        await alarms.fail(("a", NOW), OSError("once"))
        await bench.clock.advance(1)
        await alarms.answer(("a", NOW), ("b", NOW))
        ids = [(key, id_) for key, _, id_ in alarms.fired]
        assert len(ids) == 3
        assert len(set(ids)) == len({id_ for _, id_ in ids}) == 2


@BOTH
async def test_a_timer_has_the_operators_timeout(mode: str) -> None:
    alarms = Alarms(waits=True, fallback=lambda value: [value])
    async with opened(alarms, mode=mode, key_by=by_key, timeout=2) as bench:
        await bench.feed(("a", "event register", 1), ("z", "slow", 0))
        await bench.clock.advance(1)
        await bench.feed(Watermark(1))
        await bench.clock.advance(1)  # the element before it
        assert alarms.timed_out == [("z", "slow", 0)]
        await bench.clock.advance(1.9)
        assert alarms.running == [("a", 1)]
        await bench.clock.advance(0.1)
        assert alarms.timed_out[1:] == [Timer(1, True)]
        assert bench.shown[-2:] == [Timer(1, True), Watermark(1)]
        assert bench.clock.timers == 0


class SetBackClock(ManualClock):
    """A clock whose wall time the test sets back, as an administrator or a time server does."""

    set_back = 0

    def wall_time(self) -> int:
        return super().wall_time() - self.set_back


@BOTH
@pytest.mark.parametrize("passed", [0.0, 0.05, 5.0])
async def test_the_end_of_the_input_fires_what_is_due_although_the_wall_clock_was_set_back(
    mode: str, passed: float
) -> None:
    clock, alarms = SetBackClock(), Alarms()
    async with opened(alarms, clock=clock, mode=mode, key_by=by_key) as bench:
        await bench.operator.process(("a", "register", NOW + round(1000 * passed)))
        await bench.operator.process(("b", "register", NOW + 60_000))
        while bench.operator.statistics().calls < 2:
            await asyncio.sleep(0)
        clock.set_back = 30_000
        await bench.clock.advance(passed)
        await bench.operator.finish()
        assert alarms.times == [("a", NOW + round(1000 * passed))]


async def test_a_timer_that_waits_for_its_key_at_the_end_fires_although_the_wall_clock_is_set_back_then() -> None:
    clock, alarms = SetBackClock(), Alarms()
    async with opened(alarms, clock=clock, key_by=by_key) as bench:
        await bench.feed(("a", "register", NOW + 100), ("a", "slow", 0))
        await bench.clock.advance(1)
        finishing = asyncio.create_task(bench.operator.finish())
        await settle()
        clock.set_back = 30_000
        await alarms.answer(("a", "slow", 0))
        await finishing
        assert alarms.times == [("a", NOW + 100)]


async def test_a_timer_is_at_most_a_minute_late_after_the_wall_clock_was_set_forward() -> None:
    clock, alarms = SetBackClock(), Alarms()
    hours = NOW + 6 * 3_600_000
    async with opened(alarms, clock=clock, key_by=by_key) as bench:
        await bench.feed(("a", "register", hours))
        clock.set_back = -6 * 3_600_000  # as after a sleep of the machine, which a monotonic clock does not count
        await bench.clock.advance(60)
        assert alarms.times == [("a", hours)]


@pytest.mark.parametrize("later", [1, 999])
async def test_the_end_of_the_input_fires_nothing_that_is_due_later(later: int) -> None:
    alarms = Alarms()
    async with opened(alarms, key_by=by_key) as bench:
        await bench.feed(("a", "register", NOW + later), ("a", "register", NOW - 1))
        alarms.again[NOW - 1] = NOW + 1, False
        await bench.operator.finish()
        assert alarms.times == [("a", NOW - 1)]


async def test_a_timer_that_fails_for_good_fails_the_operator() -> None:
    alarms = Alarms(waits=True)
    async with opened(alarms, key_by=by_key, timeout=2) as bench:
        await bench.feed(("a", "register", NOW))
        await bench.clock.advance(2)
        with pytest.raises(AsyncTimeoutError, match="Timer"):
            await bench.operator.finish()


async def test_timers_without_on_timer_or_without_a_key_are_refused() -> None:
    class Asks(AsyncFunction):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
            ctx.timers.register(1)
            return []

    async with opened(Asks(), key_by=by_key) as bench:
        await bench.feed(("a", "register", NOW))
        with pytest.raises(Exception, match="on_timer") as caught:
            await bench.operator.finish()
        assert isinstance(caught.value.__cause__, TimersUnavailable)
    with pytest.raises(ConfigError, match="on_timer"):
        Bench(Alarms())


@pytest.mark.parametrize("command", ["register", "delete"])
@pytest.mark.parametrize("timestamp", [1.5, "1", True, 2**63, -(2**63) - 1, None])
async def test_a_timestamp_is_an_integer_of_64_bits(command: str, timestamp: Any) -> None:
    async with opened(Alarms(), key_by=by_key, on_error="skip") as bench:
        await bench.feed(("a", command, timestamp))
        assert bench.operator.statistics().skipped == 1


async def test_a_timestamp_of_numpy_is_the_integer_that_it_equals() -> None:
    alarms = Alarms()
    async with opened(alarms, key_by=by_key) as bench:
        await bench.feed(("a", "register", np.int64(NOW + 100)), ("a", "register", NOW + 200))
        await bench.feed(("a", "delete", np.int64(NOW + 200)))
        await bench.clock.advance(1)
        assert [(key, type(timestamp), timestamp) for key, timestamp in alarms.times] == [("a", int, NOW + 100)]


async def test_timers_are_not_to_be_used_after_the_invocation() -> None:
    class Keeps(Instant):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
            self.timers = ctx.timers
            return []

        async def on_timer(self, timestamp: int, ctx: InvocationContext) -> Iterable[Any]:
            return []

    function = Keeps()
    async with opened(function, key_by=by_key) as bench:
        await bench.feed(("a",))
        with pytest.raises(Exception, match="has ended"):
            function.timers.register(1)


async def test_many_deleted_timers_are_forgotten() -> None:
    alarms = Alarms()
    async with opened(alarms, key_by=by_key) as bench:
        for number in range(5000):
            await bench.operator.process(("a", "register", NOW + 10_000 + number))
            await bench.operator.process(("a", "delete", NOW + 10_000 + number - 1))
        await settle()
        assert len(bench.operator._parts.timers._processing._heap) < 2500  # type: ignore[union-attr]
        await bench.clock.advance(60)
        assert alarms.times == [("a", NOW + 14_999)]


async def test_no_timer_that_is_kept_is_forgotten_with_the_deleted_ones() -> None:
    alarms = Alarms()
    kept = [(key, NOW + 1_000 + number) for number in range(3) for key in ("a", "b")]
    async with opened(alarms, key_by=by_key) as bench:
        await bench.feed(*[(key, "register", timestamp) for key, timestamp in kept])
        for number in range(STALE_MIN + 1):
            await bench.feed(("a", "register", NOW + 9_000 + number), ("a", "delete", NOW + 9_000 + number))
        assert bench.operator._parts.timers._processing._stale == 0, "the index was made anew"  # type: ignore[union-attr]
        await bench.clock.advance(60)

        assert sorted(alarms.times) == sorted(kept)


async def test_a_blocked_loop_fires_all_timers_in_order_when_it_continues() -> None:
    alarms = Alarms()
    async with opened(alarms, key_by=by_key) as bench:
        for number in range(300):
            await bench.operator.process((number % 7, "register", NOW + 1 + number))
        await settle()
        bench.clock.jump(10)
        await bench.clock.advance(0)
        await asyncio.sleep(0)
        assert [timestamp for _, timestamp in alarms.times] == [NOW + 1 + number for number in range(300)]
