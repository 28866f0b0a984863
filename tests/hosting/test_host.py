"""A host in this loop, on virtual time: what it takes, keeps and cuts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from async_op.hosting import messages as say
from async_op.subtask.inbox import INBOX_MAX
from tests.hosting.virtual_host import (
    GENERATION,
    Alarmed,
    Kit,
    Run,
    Ticking,
    hosted,
    outputs,
    restored,
    stored,
)


def test_results_between_two_epochs_belong_to_the_next_part() -> None:
    async def test(run: Run) -> None:
        first = await run.epoch(1.0, 5.0, timeout=2.0)
        await asyncio.sleep(10.0)
        assert (await run.status()).ready == 1
        second = await run.epoch(timeout=0.0)

        assert (outputs(first), outputs(second)) == ([1.0], [5.0])
        assert [element.value for element in first.snapshot.in_flight] == [5.0]
        assert second.snapshot.in_flight == ()
        assert run.metrics["calls"] == 0

    hosted(test)


def test_calls_continue_while_a_part_is_written() -> None:
    async def test(run: Run) -> None:
        part = await run.epoch(1.0, timeout=0.0)
        assert outputs(part) == []
        assert (await run.status()).ready == 1

    hosted(test, Kit(write_seconds=30.0))


def test_what_has_no_room_by_the_barrier_timeout_waits_uncalled() -> None:
    kit = Kit(options={"capacity": 2, "timeout": 50.0})

    async def test(run: Run) -> None:
        first = await run.epoch(10.0, 20.0, 11.0, 12.0, timeout=5.0)
        assert kit.function.made == [10.0, 20.0]
        assert [(one.value, one.remaining) for one in first.snapshot.in_flight] == [
            (10.0, 45.0),
            (20.0, 45.0),
            (11.0, None),
            (12.0, None),
        ]
        assert [one.element_id for one in first.snapshot.in_flight] == ["0-0", "0-1", "0-2", "0-3"]
        assert run.metrics["waiting"] == 2
        second = await run.epoch(timeout=None)
        assert sorted([*outputs(second)]) == [10.0, 11.0, 12.0, 20.0]

    hosted(test, kit)


def test_feeding_more_than_fits_waits_no_longer_than_the_barrier_timeout() -> None:
    async def test(run: Run) -> None:
        loop = asyncio.get_running_loop()
        await run.epoch(*[100.0] * 3000, timeout=7.0)
        assert loop.time() == pytest.approx(7.0)

    hosted(test, Kit(options={"capacity": 1}))


def test_a_restore_respects_the_capacity() -> None:
    kit = Kit(options={"capacity": 2, "timeout": 50.0})

    async def test(run: Run) -> None:
        await asyncio.sleep(1.0)
        status = await run.status()
        assert (status.in_flight, status.waiting) == (2, 2)
        assert kit.function.made == [10.0, 20.0]
        await asyncio.sleep(40.0)
        assert kit.function.made == [10.0, 20.0, 11.0, 12.0]

    hosted(test, kit, restore=restored(*[stored(value) for value in (10.0, 20.0, 11.0, 12.0)]))


@pytest.mark.parametrize(
    "begun",
    [{"remaining": 3.0}, {"attempt": 2}, {"delay": 1.0}, {"completed": True, "outputs": ()}],
)
def test_what_has_begun_is_taken_over_beyond_the_capacity(begun: dict[str, Any]) -> None:
    kit = Kit(options={"capacity": 1, "timeout": 50.0})

    async def test(run: Run) -> None:
        assert (await run.status()).waiting == 1

    hosted(test, kit, restore=restored(stored(30.0), stored(20.0), stored(10.0, **begun), stored(40.0)))


def test_watermarks_never_wait_for_room_and_adjacent_ones_merge() -> None:
    async def test(run: Run) -> None:
        await run.hello(1.0)
        await run.feed(100.0, 100.0)
        for timestamp in range(1000):
            assert await run.host.answer(run.feeder, say.FeedWatermark(timestamp)) == say.Done()
        queue = (await run.cut()).snapshot.in_flight
        assert [one.timestamp for one in queue if one.is_watermark] == [999]

    hosted(test, Kit(options={"capacity": 1}))


def test_timers_that_a_watermark_makes_due_fire_behind_the_calls_before_it() -> None:
    async def test(run: Run) -> None:
        await run.hello(None)
        await run.feed(30.0)
        await run.host.answer(run.feeder, say.FeedWatermark(100))
        await run.feed(200.0)
        await run.settle()
        assert outputs(await run.cut()) == [30.0, "timer 30", 200.0]

    hosted(test, Kit(Alarmed(), {"capacity": 1}))


def test_clock_timers_fire_when_they_are_due_but_not_without_end() -> None:
    async def test(run: Run) -> None:
        await run.epoch(0.0)
        await asyncio.sleep(3.5)
        assert (await run.status()).ready == 3
        await asyncio.sleep(1000.0)
        assert (await run.status()).ready == 5
        part = await run.epoch(timeout=0.0)
        assert len(outputs(part)) > 5
        assert part.next_timer is not None
        await asyncio.sleep(1000.0)
        assert (await run.status()).ready == 5

    hosted(test, Kit(Ticking()), outputs_max=5)


def test_nothing_that_waits_is_called_for_while_outputs_pile_up() -> None:
    kit = Kit(options={"capacity": 1})

    async def test(run: Run) -> None:
        await run.epoch(10.0, 11.0, 12.0, 13.0, timeout=1.0)
        await asyncio.sleep(1000.0)
        assert (await run.status()).ready == 2
        assert outputs(await run.epoch()) == [10.0, 11.0, 12.0, 13.0]

    hosted(test, kit, outputs_max=2)


def test_an_epoch_may_have_more_outputs_than_are_kept_between_two() -> None:
    async def test(run: Run) -> None:
        assert len(outputs(await run.epoch(*[0.0] * 500))) == 500

    hosted(test, outputs_max=5)


@pytest.mark.parametrize(
    ("end", "seconds", "left"),
    [(say.EpochEnd(0.0), 30.0, [40.0]), (say.EpochEnd(5.0, "calls in time"), 5.0, [30.0, 40.0])],
)
def test_calls_in_time_are_also_those_that_a_host_in_its_task_took_over(
    end: say.EpochEnd, seconds: float, left: list[float]
) -> None:
    async def test(run: Run) -> None:
        began = asyncio.get_running_loop().time()
        await run.hello(end=end)
        await run.feed(40.0)
        await run.settle()
        part = await run.cut()
        assert asyncio.get_running_loop().time() - began == seconds
        assert [element.value for element in part.snapshot.in_flight] == left

    hosted(test, is_resident=False, restore=restored(stored(30.0)))


async def concluded(run: Run, waiting: Any, seconds: float) -> None:
    """Have the host told after some seconds that it is to wait no longer."""
    loop, work = asyncio.get_running_loop(), asyncio.ensure_future(waiting)
    began = loop.time()
    await asyncio.sleep(seconds)
    assert not work.done()
    assert await run.host.answer("the driver", say.Conclude(GENERATION)) == say.Done()
    await work
    assert loop.time() - began <= seconds + 1.0


@pytest.mark.parametrize("timeout", [None, 500.0])
def test_an_epoch_that_is_concluded_waits_for_no_call_and_the_next_one_waits_again(timeout: float | None) -> None:
    kit = Kit(options={"capacity": 2})

    async def test(run: Run) -> None:
        assert await run.host.answer("the driver", say.Conclude("another")) == say.Refused("foreign")
        assert await run.host.answer("the driver", say.Conclude(GENERATION)) == say.Done()
        await run.hello(timeout)
        await run.feed(1.0, 100.0, 200.0, 300.0)
        await concluded(run, run.settle(), 5.0)
        part = await run.cut()
        assert outputs(part) == [1.0]
        assert [element.value for element in part.snapshot.in_flight] == [100.0, 200.0, 300.0]
        assert outputs(await run.epoch()) == [100.0, 200.0, 300.0]

    hosted(test, kit)


def test_an_epoch_that_is_concluded_takes_in_the_rest_of_its_rows_at_once() -> None:
    kit = Kit(options={"capacity": 1})
    rows = [float(number) for number in range(100, 100 + 3 * INBOX_MAX)]

    async def test(run: Run) -> None:
        await run.hello()
        await concluded(run, run.feed(*rows[:-1]), 5.0)
        await run.feed(rows[-1])
        await run.settle()
        part = await run.cut()
        assert [element.value for element in part.snapshot.in_flight] == rows

    hosted(test, kit)
