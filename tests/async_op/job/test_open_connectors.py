"""`open` and `close` of a source or a sink run in one task; what breaks in between fails the job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from async_op import ConnectorBroken, RestartPolicy
from tests.async_op.job.kit import Epochs, Log, new_job, running, same
from tests.async_op.kit import eventually, settle

seen: list[str] = []
"""What sources and sinks have done, in order; each test clears it."""

tenant_now: ContextVar[str] = ContextVar("tenant", default="none")


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


class Scoped:
    """Enters in `open` what can only be left in the same task, as the cancel scopes of many clients."""

    failures = 0

    async def open(self) -> None:
        name = type(self).__name__
        if self.failures:
            self.failures -= 1
            seen.append(f"{name} not opened")
            raise ConnectionRefusedError
        self.task = asyncio.current_task()
        seen.append(f"{name} opened")
        tenant_now.set(name)

    async def close(self) -> None:
        assert asyncio.current_task() is self.task, "left in another task"
        seen.append(f"{type(self).__name__} closed")


class ScopedSource(Scoped, Log):
    def __init__(self) -> None:
        super().__init__([1, 2, 3], bounded=True)


class ScopedSink(Scoped, Epochs):
    pass


OPENED = ["ScopedSink opened", "ScopedSource opened"]
CLOSED = ["ScopedSource closed", "ScopedSink closed"]


async def test_what_open_enters_close_may_leave() -> None:
    await new_job(ScopedSource(), same, ScopedSink()).run()
    assert seen == OPENED + CLOSED


async def test_what_open_enters_close_may_leave_after_a_failure() -> None:
    async def refuse(value: int) -> int:
        raise ValueError(value)

    with pytest.raises(Exception, match="1"):
        await new_job(ScopedSource(), refuse, ScopedSink()).run()
    assert seen == OPENED + CLOSED


async def test_what_open_enters_close_may_leave_after_a_cancellation() -> None:
    source = ScopedSource()
    source.bounded = False
    job = new_job(source, same, ScopedSink())
    task = asyncio.create_task(job.run())
    await eventually(lambda: job.progress().state == "running")
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == OPENED + CLOSED


async def test_what_did_not_open_is_not_closed() -> None:
    source, sink = ScopedSource(), ScopedSink()
    source.failures, source.retry = 1, None
    with pytest.raises(ConnectionError):
        await new_job(source, same, sink).run()
    assert seen == ["ScopedSink opened", "ScopedSource not opened", "ScopedSink closed"]


async def test_each_attempt_to_open_has_a_task_of_its_own() -> None:
    source, sink = ScopedSource(), ScopedSink()
    source.failures = sink.failures = 1
    await new_job(source, same, sink).run()
    assert seen == ["ScopedSink not opened", OPENED[0], "ScopedSource not opened", OPENED[1], *CLOSED]


async def test_what_opens_although_it_was_cancelled_is_closed() -> None:
    class Deaf(ScopedSink):
        async def open(self) -> None:
            try:
                seen.append("opening")
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await settle()
            await super().open()

    task = asyncio.create_task(new_job(ScopedSource(), same, Deaf()).run())
    await eventually(lambda: bool(seen))
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["opening", "Deaf opened", "Deaf closed"]


async def test_writes_see_the_context_variables_of_open_and_functions_do_not() -> None:
    class Tenants(ScopedSink):
        async def write(self, values: Sequence[Any], epoch: int) -> None:
            seen.append(f"written by {tenant_now.get()}: {sorted(set(values))}")

    async def tenant(value: int) -> str:
        return tenant_now.get()

    await new_job(Log([1], bounded=True), tenant, Tenants()).run()
    assert seen == ["Tenants opened", "written by Tenants: ['none']", "Tenants closed"]


class Breaking(Scoped):
    """Has a task in the background which fails, in a group that ends with it."""

    async def open(self) -> None:
        self.is_broken = asyncio.Event()
        self.group = asyncio.TaskGroup()
        await self.group.__aenter__()
        self.listener = self.group.create_task(self.listen())
        await super().open()

    async def listen(self) -> None:
        await self.is_broken.wait()
        raise ConnectionResetError("the broker has gone")

    async def close(self) -> None:
        await super().close()
        self.listener.cancel()
        await self.group.__aexit__(None, None, None)


class BreakingSource(Breaking, Log):
    pass


class BreakingSink(Breaking, Epochs):
    pass


@pytest.mark.parametrize("is_source", [True, False])
async def test_what_breaks_in_the_background_fails_the_job_and_is_told(is_source: bool) -> None:
    source, sink = (BreakingSource([1]), Epochs()) if is_source else (Log([1]), BreakingSink())
    broken = source if is_source else sink
    with pytest.raises(ConnectorBroken, match=f"{type(broken).__name__}.* the broker has gone") as raised:
        async with running(new_job(source, same, sink)) as task:
            await sink.have(1)
            broken.is_broken.set()
            await task
    assert isinstance(raised.value.__cause__, ExceptionGroup)
    assert seen == [f"{type(broken).__name__} {what}" for what in ("opened", "closed")]


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 10])
async def test_what_broke_in_the_background_is_told_too_if_a_write_fails_first(
    turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(BreakingSink):
        async def write(self, values: Sequence[Any], epoch: int) -> None:
            self.is_broken.set()
            for _ in range(turns):
                await asyncio.sleep(0)
            raise ValueError("not connected")

        async def close(self) -> None:
            await settle()
            await super().close()

    with pytest.raises((ValueError, ConnectorBroken)) as raised:
        await new_job(Log([1]), same, Failing()).run()
    assert "the broker has gone" in f"{raised.value} {caplog.text}"


async def test_a_job_restarts_when_a_sink_breaks_in_the_background() -> None:
    source, sink = Log([1]), BreakingSink()
    policy = RestartPolicy(max_restarts=1, initial_delay=0.0, max_delay=0.0)
    async with running(new_job(source, same, sink, restart=policy)):
        await sink.have(1)
        sink.is_broken.set()
        await eventually(lambda: len(seen) == 3)
        await source.append(0, 2)
        await sink.have(2)
    assert sink.values == [1, 2]
    assert seen == ["BreakingSink opened", "BreakingSink closed"] * 2
