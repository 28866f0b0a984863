"""The line in which calls wait for their turn."""

from __future__ import annotations

import asyncio

from async_op.resilience.line import Line
from tests.async_op.kit import ManualClock, settle


async def test_a_turn_that_comes_too_late_goes_to_the_next() -> None:
    line, lost = Line(ManualClock()), []
    first_one, second = (asyncio.create_task(line.wait(lambda: lost.append(line.admit()))) for _ in range(2))
    await settle()
    line.admit()
    first_one.cancel()
    await settle()

    assert lost == [True]
    assert first_one.cancelled()
    assert second.done()
    assert len(line) == 0
