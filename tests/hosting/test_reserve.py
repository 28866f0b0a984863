"""How many elements wait for a call while Spark fetches the next rows."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op.hosting import messages as say
from async_op.subtask.inbox import Reserve
from tests.hosting.virtual_host import ROW_BYTES, Kit, Run, hosted, outputs, restored, stored

CAPACITY = 10
CALL_SECONDS = 1.0


@given(taken=st.integers(0, 1000), least=st.integers(1, 50))
def test_a_reserve_lasts_until_the_next_rows_and_is_no_more_than_twice_as_many(taken: int, least: int) -> None:
    reserve = Reserve(least, 10_000, 2**24)
    for _ in range(20):
        reserve.cut(reserve.size)
        reserve.fed(max(0, reserve.size - taken), 1000, 1000)

    reserve.cut(reserve.size)
    assert reserve.size >= taken
    assert reserve.size <= max(2 * taken, least)


@given(
    borders=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 3), st.integers(0, 10**9))),
    least=st.integers(1, 10**6),
    elements_max=st.integers(0, 1000),
    bytes_max=st.integers(0, 10**6),
)
def test_a_reserve_keeps_to_its_limits_whatever_comes(
    borders: list[tuple[int, int, int, int]], least: int, elements_max: int, bytes_max: int
) -> None:
    reserve = Reserve(least, elements_max, bytes_max)
    for waiting, left, rows, rows_bytes in borders:
        reserve.cut(waiting)
        reserve.fed(left, rows, rows_bytes)

        assert 0 <= reserve.size <= elements_max
        if rows:
            assert reserve.size * rows_bytes / rows <= bytes_max


def test_a_reserve_shrinks_slowly_where_less_is_taken() -> None:
    reserve = Reserve(1, 10_000, 2**24)
    sizes = []
    for taken in (400, 0, 0, 400):
        reserve.cut(1000)
        reserve.fed(1000 - taken, 1, 1)
        sizes.append(reserve.size)

    assert sizes == [600, 450, 337, 600]


def full(size: int) -> list[float]:
    return [CALL_SECONDS] * size


async def wait_for_room(run: Run) -> None:
    """Run the epoch that a driver runs before it takes the next rows."""
    await run.hello(end=say.EpochEnd(1000.0, "room"))
    await run.settle()
    await run.cut()


def test_calls_begin_at_all_times_while_rows_are_fetched() -> None:
    """Each border takes as long as two calls, in which an operator without a reserve would do nothing."""
    numbers = count()
    kit = Kit(options={"capacity": CAPACITY, "key_by": lambda value: next(numbers), "max_parallelism": 128})

    async def test(run: Run) -> None:
        idle = []
        for _ in range(6):
            await run.epoch(*full(20 * CAPACITY), timeout=0.0)
            await asyncio.sleep(2 * CALL_SECONDS)
            await wait_for_room(run)
            await asyncio.sleep(1.9 * CALL_SECONDS)
            idle.append((await run.status()).in_flight < CAPACITY)
        assert idle[2:] == [False] * 4

    hosted(test, kit)


def test_an_epoch_that_waits_for_room_waits_for_no_call() -> None:
    async def test(run: Run) -> None:
        loop = asyncio.get_running_loop()
        await run.epoch(*[50.0] * 8, timeout=1.0)
        assert not run.metrics["has_room"]
        await wait_for_room(run)

        assert run.metrics["has_room"]
        assert (await run.status()).has_room
        assert loop.time() == pytest.approx(300.0)
        assert run.metrics["waiting"] == run.metrics["in_flight"] - 1 == 1

    hosted(test, Kit(options={"capacity": 1, "key_by": lambda value: 0}))


def test_wide_rows_have_a_reserve_of_as_many_bytes() -> None:
    async def test(run: Run) -> None:
        await run.epoch(*map(float, range(50, 58)), timeout=1.0)
        assert run.metrics["waiting"] == 4
        assert not run.metrics["has_room"]
        await asyncio.sleep(60.0)
        assert (await run.status()).has_room

    hosted(test, Kit(options={"capacity": 4, "max_parallelism": 128}), reserve_bytes_max=3 * ROW_BYTES)


def test_what_is_restored_counts_as_waiting() -> None:
    async def test(run: Run) -> None:
        await asyncio.sleep(0.1)
        status = await run.status()
        assert (status.in_flight, status.waiting, status.has_room) == (1, 3, False)

    hosted(test, Kit(options={"capacity": 1}), restore=restored(*[stored(value) for value in (10.0, 20.0, 11.0, 12.0)]))


def test_rows_in_reserve_are_called_for_in_their_order_and_with_all_their_time() -> None:
    kit = Kit(options={"capacity": 1, "mode": "ordered", "timeout": 15.0})

    async def test(run: Run) -> None:
        first = await run.epoch(10.0, 11.0, 12.0, timeout=1.0)
        assert [one.remaining for one in first.snapshot.in_flight] == [14.0, None, None]
        assert outputs(await run.epoch(13.0)) == [10.0, 11.0, 12.0, 13.0]

    hosted(test, kit)


def test_an_epoch_without_a_barrier_timeout_leaves_nothing_in_reserve() -> None:
    async def test(run: Run) -> None:
        part = await run.epoch(*full(5 * CAPACITY), timeout=None)
        assert part.snapshot.in_flight == ()

    hosted(test, Kit(options={"capacity": CAPACITY}))
