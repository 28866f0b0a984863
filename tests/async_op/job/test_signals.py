"""Signals that ask the process to end: the first stops a job at a cut, the second gives up."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from async_op import Job
from async_op.job.signals import EndingSignals
from tests.async_op.job.kit import Log, same

ENDINGS = [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[dict[int, Any]]:
    """Handlers of the program: none of them is called while a job runs, and they are back afterwards."""
    before = {number: signal.getsignal(number) for number, _ in ENDINGS}
    mine = {number: lambda *_: pytest.fail("the job has not handled its signal") for number in before}
    for number, handler in mine.items():
        signal.signal(number, handler)
    yield mine
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == mine


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def job_of(step: Any, sink: Any) -> Job:
    return Job(Log([1]), step, sink, snapshots=f"memory://{uuid.uuid4().hex}", job_id="job", snapshot_interval=0.01)


@pytest.mark.parametrize("number", [number for number, _ in ENDINGS])
def test_the_first_signal_stops_at_a_cut(number: int) -> None:
    async def slow(value: int) -> None:
        send(number)
        await asyncio.Event().wait()

    job = job_of(slow, lambda values, epoch: None)
    job.run_sync()

    assert job.progress().state == "ended"


@pytest.mark.parametrize(("number", "error"), ENDINGS)
def test_the_second_signal_gives_up(number: int, error: type[BaseException]) -> None:
    async def sink(values: Any, epoch: int) -> None:
        send(number)
        while job.progress().state != "stopping":
            await asyncio.sleep(0)
        send(number)
        await asyncio.Event().wait()

    job = job_of(same, sink)
    with pytest.raises(error) as raised:
        job.run_sync()

    assert job.progress().state == "failed"
    if isinstance(raised.value, SystemExit):
        assert raised.value.code == 143


def test_on_another_thread_a_job_runs_without_signals(own_handlers: dict[int, Any]) -> None:
    seen = []

    def sink(values: Any, epoch: int) -> None:
        seen.append(signal.getsignal(signal.SIGTERM))

    job = Job([1], same, sink, snapshots=f"memory://{uuid.uuid4().hex}", job_id="job")
    thread = threading.Thread(target=job.run_sync)
    thread.start()
    thread.join()

    assert seen == [own_handlers[signal.SIGTERM]]


def test_a_cancellation_that_no_signal_has_caused_is_raised() -> None:
    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        await EndingSignals(lambda: None).wait_for(asyncio.sleep(1000))

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
