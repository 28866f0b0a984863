"""Rules of jobs that the simulation cannot see, because nothing is lost and nothing repeated when they are broken."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from typing import Any

import pytest

from async_op import AsyncFunction, InvocationContext, Runtime, Step
from async_op.job.positions import Positions
from snapshots import SnapshotStore
from tests.async_op.job.kit import Counting, Epochs, Gated, Log, new_job, running, same
from tests.async_op.job.test_run import passed
from tests.async_op.job.virtual_job_loop import in_virtual_time


def test_a_snapshot_waits_for_no_call_and_no_sink() -> None:
    async def work() -> None:
        sink, gated = Epochs(), Gated()
        sink.opened.clear()
        job = new_job(Log(range(100)), [same, Step(gated, capacity=1)], sink, snapshot_interval=1000)
        async with running(job):
            await passed(lambda: gated.called)
            async with asyncio.timeout(100):
                assert await job.snapshot() == 1
                gated.gate.set()
                await asyncio.sleep(1)
                for version in (2, 3, 4):
                    assert await job.snapshot() == version
            sink.opened.set()

    in_virtual_time(work())


def test_two_epochs_that_wait_for_the_sink_pause_the_source() -> None:
    async def work() -> None:
        source, sink = Log(range(3)), Epochs()
        sink.opened.clear()
        job = new_job(source, same, sink, snapshot_interval=1)
        async with running(job):
            await asyncio.sleep(5)
            await source.append(0, 3)
            await passed(lambda: job.progress().undelivered == 2)
            await source.append(0, *range(4, 20))
            await asyncio.sleep(50)
            assert job.progress().records == 4
            sink.opened.set()
            await passed(lambda: sorted(sink.values) == list(range(20)))

    in_virtual_time(work())


def test_two_epochs_that_wait_for_the_sink_pause_periodic_timers() -> None:
    class Beats(AsyncFunction[Any, Any]):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            ctx.timers.register(ctx.timers.processing_time + 1000)
            return []

        async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[Any]:
            ctx.timers.register(timestamp + 1000)
            return [timestamp]

    async def work() -> None:
        sink = Epochs()
        sink.opened.clear()
        job = new_job(Log([1]), Step(Beats(), "beats", key_by=lambda value: value), sink, snapshot_interval=1)
        async with running(job):
            await asyncio.sleep(100)
            assert job.progress().undelivered == 2
            job.rescale(2)
            await asyncio.sleep(100)  # a restore fires the timers that are due, once
            assert job.progress().parallelism == 2
            assert job.progress().undelivered <= 3
            assert job.progress().outputs < 10
            sink.opened.set()
            await asyncio.sleep(100)
            assert job.progress().outputs > 250
            assert sink.values == sorted(set(sink.values))

    in_virtual_time(work())


def test_epochs_that_the_sink_gets_while_a_job_opens_hold_back_nothing_afterwards() -> None:
    class Beats(AsyncFunction[Any, Any]):
        async def open(self, runtime: Runtime) -> None:
            await asyncio.sleep(100)

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            ctx.timers.register(ctx.timers.processing_time + 1000)
            return [value]

        async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[Any]:
            ctx.timers.register(timestamp + 1000)
            return [timestamp]

    async def work() -> None:
        source, sink = Log([1]), Epochs()
        sink.opened.clear()
        place = f"memory://{uuid.uuid4().hex}"
        job = new_job(source, Step(Beats(), "beats", key_by=lambda value: value), sink, snapshots=place)
        run = asyncio.create_task(job.run())
        await passed(lambda: job.progress().undelivered == 2)
        run.cancel()
        await asyncio.wait({run})
        sink.opened.set()
        async with running(job):
            await passed(lambda: len(sink.epochs) > 10)
            await source.append(0, 2)
            await passed(lambda: 2 in sink.values)

    in_virtual_time(work())


def test_a_slow_step_holds_up_the_steps_before_it_and_the_source() -> None:
    async def work() -> None:
        gated = Gated()
        steps = [Step(same, capacity=1), Step(gated, "slow", capacity=1)]
        job = new_job(Log(range(1000)), steps, Epochs(), snapshot_interval=1000)
        async with running(job):
            await asyncio.sleep(100)
            assert len(gated.called) == 1
            assert job.progress().records < 50

    in_virtual_time(work())


def test_a_function_that_never_stops_hearing_of_a_commit_holds_up_no_stop(caplog: pytest.LogCaptureFixture) -> None:
    class Deaf(AsyncFunction[Any, Any]):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            return [value]

        async def snapshot_complete(self, version: int) -> None:
            await asyncio.Event().wait()

    async def work() -> None:
        job = new_job(Log([1]), Deaf(), sink := Epochs(), snapshot_interval=1)
        async with asyncio.timeout(1000), running(job):
            await passed(lambda: sink.values == [1])
            job.rescale(2)
            await passed(lambda: job.progress().parallelism == 2)

    in_virtual_time(work())
    assert "snapshot_complete(1) of Deaf was cancelled after 60 s" in caplog.text


def test_a_step_without_a_key_gets_the_elements_of_its_own_subtask() -> None:
    class Where(AsyncFunction[Any, Any]):
        async def open(self, runtime: Runtime) -> None:
            self.subtask = runtime.subtask_index

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            return [(value, self.subtask)]

    async def work() -> None:
        source, sink = Log([0] * 9, [1] * 9, bounded=True), Epochs()
        await new_job(source, Where(), sink, parallelism=2).run()
        assert sorted(sink.values) == [(0, 0)] * 9 + [(1, 1)] * 9

    in_virtual_time(work())


def test_new_partitions_go_to_the_emptiest_subtasks() -> None:
    async def work() -> None:
        job = new_job(Log([1], [2], [3], [4], bounded=True), same, Epochs(), parallelism=2, snapshots="memory://dealt")
        await job.run()
        snapshot = SnapshotStore("memory://dealt", "job").load()
        shares = [snapshot.restore(index, step="source").operator_state("positions") for index in range(2)]
        assert list(map(len, shares)) == [2, 2]

    in_virtual_time(work())


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4, 7])
def test_a_rescale_of_a_running_job_reassigns_partitions_as_a_restart_does(parallelism: int) -> None:
    async def work() -> None:
        partitions = Log(*([n] for n in range(7)), bounded=True)
        await new_job(partitions, same, Epochs(), parallelism=3, snapshots="memory://reassigned").run()
        snapshot = SnapshotStore("memory://reassigned", "job").load()
        restarted, rescaled = (Positions(None, None, "") for _ in range(2))
        restarted.restore(snapshot, parallelism)
        rescaled.restore(snapshot, 3)
        rescaled.deal_out(parallelism)
        owners = [{name: one.subtask for name, one in of.partitions.items()} for of in (restarted, rescaled)]
        assert owners[0] == owners[1]
        assert sorted(owners[0].values()) == list(owners[0].values())

    in_virtual_time(work())


class Looks(dict[Any, Any]):
    """Partitions that count how many of them were looked at."""

    count = 0

    def values(self) -> Any:
        self.count += len(self)
        return super().values()

    def items(self) -> Any:
        self.count += len(self)
        return super().items()


def test_many_partitions_are_dealt_out_evenly_and_looked_at_a_few_times_each() -> None:
    positions = Positions(None, None, "")
    positions.partitions = looks = Looks()
    positions._parallelism = 3

    found = positions.found(range(3000), 0.0)

    assert sorted(Counter(one.subtask for one in found).values()) == [1000] * 3
    assert looks.count <= 5 * len(found)


def test_a_key_has_its_state_in_one_place() -> None:
    async def work() -> None:
        source, sink = Log([n % 5 for n in range(50)], bounded=True), Epochs()
        await new_job(source, Step(Counting(), "count", key_by=lambda value: value), sink, parallelism=3).run()
        assert {(key, count) for key, count, _ in sink.values} == {(key, n) for key in range(5) for n in range(1, 11)}

    in_virtual_time(work())
