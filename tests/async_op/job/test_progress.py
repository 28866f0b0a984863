"""What `progress()` says of a job that is slow: which call is the oldest, and where time is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from async_op import AsyncFunction, BlockingFunction, InvocationContext, Step
from tests.async_op.job.kit import Epochs, Gated, Log, new_job, running, same
from tests.async_op.job.test_run import passed
from tests.async_op.job.virtual_job_loop import in_virtual_time
from tests.async_op.kit import eventually


def test_a_call_that_does_not_return_is_in_flight_and_grows_old() -> None:
    async def work() -> None:
        gated = Gated()
        async with running(job := new_job(Log([1]), Step(gated, "slow"), Epochs(), snapshot_interval=1)):
            await passed(lambda: gated.called)
            await asyncio.sleep(7)
            assert job.progress().in_flight == {"slow": 1}
            assert job.progress().oldest_call_seconds == pytest.approx(7, abs=0.5)
            gated.gate.set()
            await asyncio.sleep(2)
            assert (job.progress().in_flight, job.progress().oldest_call_seconds) == ({"slow": 0}, 0.0)

    in_virtual_time(work())


def test_time_lost_to_the_capacity_is_told_from_time_lost_to_the_sink() -> None:
    async def work() -> None:
        gated, sink = Gated(), Epochs()
        source, steps = Log(range(100)), Step(gated, capacity=1)
        async with running(job := new_job(source, steps, sink, snapshot_interval=1)):
            await asyncio.sleep(10)
            full = job.progress()
            assert full.back_pressured_seconds == pytest.approx(10, abs=2)
            assert full.undelivered_seconds == 0
            sink.opened.clear()
            gated.gate.set()
            await passed(lambda: job.progress().undelivered == 2)
            before = job.progress()
            await asyncio.sleep(10)
            assert job.progress().undelivered_seconds == pytest.approx(10, abs=2)
            assert job.progress().back_pressured_seconds == pytest.approx(before.back_pressured_seconds, abs=2)
            sink.opened.set()

    in_virtual_time(work())


async def test_the_results_of_threads_are_counted_as_mails_of_the_event_loop() -> None:
    class Fetch(BlockingFunction[Any, Any]):
        def invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            return [value]

    counts = []
    for function in (Fetch(), same):
        async with running(job := new_job(Log(range(20)), function, sink := Epochs())):
            await sink.have(20)
            await job.snapshot()
            await eventually(lambda job=job: job.progress().version > 0)  # type: ignore[misc]
            counts.append((job.progress().mails, job.progress().mailbox_wait_seconds))
    (mails, waited), of_coroutines = counts
    assert 1 <= mails <= 20
    assert waited >= 0
    assert of_coroutines == (0, 0.0)


async def test_a_job_whose_function_cannot_be_closed_has_failed() -> None:
    class Unclosable(AsyncFunction[int, int]):
        async def async_invoke(self, value: int, ctx: InvocationContext) -> list[int]:
            return [value]

        async def close(self) -> None:
            raise RuntimeError("unclosable")

    job = new_job([1], Unclosable(), Epochs())
    with pytest.raises(RuntimeError, match="unclosable"):
        await job.run()
    assert job.progress().state == "failed"
