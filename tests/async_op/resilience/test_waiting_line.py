"""The line in which calls wait for their turn."""

from __future__ import annotations

import asyncio

from async_op.resilience.waiting_line import Guest, Line
from tests.async_op.kit import ManualClock, settle


async def test_a_turn_that_comes_too_late_goes_to_the_next() -> None:
    line, guest, lost = Line(ManualClock()), Guest(), list[bool]()
    first_one, second = (asyncio.create_task(line.wait(lambda: lost.append(line.admit()), guest)) for _ in range(2))
    await settle()
    line.admit()
    first_one.cancel()
    await settle()

    assert lost == [True]
    assert first_one.cancelled()
    assert second.done()
    assert len(line) == 0


async def test_the_turns_of_an_operator_that_stops_go_to_the_others() -> None:
    line, stopping, staying = Line(ManualClock()), Guest(), Guest()
    waiting = [asyncio.create_task(line.wait(lambda: None, guest)) for guest in (stopping, staying, stopping)]
    await settle()
    stopping.is_stopped = True

    assert (line.admit(), line.admit(), stopping.waiting, staying.waits) == (True, False, 2, 1)
    await settle()
    assert [task.done() for task in waiting] == [False, True, False]
    for task in waiting:
        task.cancel()
