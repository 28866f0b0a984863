"""A job that has failed restarts from its newest snapshot, by its policy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from async_op import ElementFailed, Job, RestartPolicy, Step
from async_op.metrics.watch import Watches
from keygroups import ConfigError
from snapshots import SnapshotStore, WriterFenced
from tests.async_op.job.kit import Counting, Epochs, Log, new_job, same
from tests.async_op.job.virtual_job_loop import in_virtual_time

POLICY = RestartPolicy(max_restarts=3, initial_delay=10.0, max_delay=25.0, reset_after=1000.0)


class Fragile(Log):
    """A bounded source that breaks before some of its elements, each time they are about to be read."""

    def __init__(self, *values: Any, breaks: dict[int, int]) -> None:
        super().__init__(values, bounded=True)
        self.breaks = breaks

    async def read(self, partition: Any, position: Any) -> AsyncIterator[Any]:
        async for item in super().read(partition, position):
            if self.breaks.get(item[2], 0) > 0:
                await asyncio.sleep(1)  # so that a snapshot has what came before
                self.breaks[item[2]] -= 1
                raise ValueError(f"broken before {item[2]}")
            yield item


def test_a_failed_job_continues_from_its_newest_snapshot_after_growing_delays(caplog: pytest.LogCaptureFixture) -> None:
    source, sink = Fragile("a", "b", "a", "a", breaks={3: 3}), Epochs()
    job = new_job(source, Step(Counting(), key_by=lambda value: value), sink, restart=POLICY)
    with caplog.at_level(logging.WARNING, "async_op.epochs.restarts"):
        seconds = in_virtual_time(job.run())

    assert sorted(value[:2] for value in sink.values) == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
    assert [position for _, position in source.read_from] == [None, 2, 2, 2]
    assert 57.9 < seconds < 65  # 10 + 20 + 25, and a second before each failure
    assert job.progress().restarts == 3
    assert job.progress().newest_failure == "ValueError: broken before 3"
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        f"job job failed and restarts from its newest snapshot in {delay} s, restart {number} of 3"
        for number, delay in ((1, "10.0"), (2, "20.0"), (3, "25.0"))
    ]


def test_the_failure_after_the_last_restart_is_raised() -> None:
    job = new_job(Fragile("a", breaks={1: 100}), same, Epochs(), restart=POLICY)
    with pytest.raises(ValueError, match="broken before 1") as raised:
        in_virtual_time(job.run())
    assert raised.value.__notes__[-1] == "job job was restarted 3 times in a row (max_restarts), and failed again"
    assert (job.progress().state, job.progress().restarts) == ("failed", 3)


def test_without_a_policy_the_first_failure_is_raised() -> None:
    with pytest.raises(ValueError, match="broken before 1"):
        in_virtual_time(new_job(Fragile("a", breaks={1: 1}), same, Epochs()).run())


def test_an_element_that_fails_is_called_again_after_the_restart_and_finished_calls_are_not() -> None:
    calls: list[int] = []

    async def call(value: int) -> int:
        calls.append(value)
        if value == 2 and calls.count(2) < 3:
            await asyncio.sleep(1)
            raise OSError("the service is away")
        return value

    sink = Epochs()
    in_virtual_time(new_job([1, 2, 3], call, sink, restart=POLICY).run())
    assert sorted(calls) == [1, 2, 2, 2, 3]
    assert sorted(sink.values) == [1, 2, 3]


def test_a_fenced_job_does_not_restart() -> None:
    async def work() -> None:
        source = Log([1])
        job = new_job(source, same, sink := Epochs(), restart=POLICY, snapshots="memory://fenced")
        running = asyncio.create_task(job.run())
        while not sink.values:
            await asyncio.sleep(0.1)
        SnapshotStore("memory://fenced", "job").claim()
        await source.append(0, 2)
        with pytest.raises(WriterFenced):
            await running
        assert job.progress().restarts == 0

    in_virtual_time(work())


def test_a_wrong_argument_does_not_lead_to_restarts() -> None:
    in_virtual_time(new_job([1], same, Epochs(), snapshots="memory://wrong", max_parallelism=8).run())
    job = new_job([1], same, Epochs(), snapshots="memory://wrong", parallelism=2, max_parallelism=16, restart=POLICY)
    assert in_virtual_time(_refused(job)) == 0


async def _refused(job: Job) -> None:
    with pytest.raises(ValueError, match="max.parallelism"):
        await job.run()


def test_a_stop_ends_the_pause_and_the_job_starts_once_more_to_drain() -> None:
    async def work() -> None:
        source, sink = Fragile("a", "b", breaks={2: 1}), Epochs()
        job = new_job(source, same, sink, restart=RestartPolicy(initial_delay=500.0, max_delay=500.0))
        running = asyncio.create_task(job.run())
        while job.progress().state != "restarting":
            await asyncio.sleep(0.1)
        assert (job.progress().records, job.progress().restarts) == (1, 1)
        job.stop(drain=False)
        await running
        assert asyncio.get_running_loop().time() < 10
        assert sink.values == ["a"]
        assert job.progress().state == "ended"

    in_virtual_time(work())


def test_a_failure_after_a_stop_is_raised() -> None:
    async def call(value: str) -> str:
        await asyncio.sleep(2)
        raise OSError("away")

    async def work() -> None:
        job = new_job(Log(["a"]), call, Epochs(), restart=POLICY)
        running = asyncio.create_task(job.run())
        await asyncio.sleep(0.5)
        job.stop()
        with pytest.raises(ElementFailed, match="away"):
            await running
        assert job.progress().restarts == 0

    in_virtual_time(work())


def test_a_restart_keeps_the_parallelism_that_rescale_has_chosen() -> None:
    async def work() -> None:
        source = Fragile("a", "b", breaks={2: 1})
        job = new_job(source, same, Epochs(), parallelism=2, restart=POLICY)
        running = asyncio.create_task(job.run())
        await asyncio.sleep(0.1)
        job.rescale(3)
        await running
        assert (job.progress().parallelism, job.progress().restarts) == (3, 1)

    in_virtual_time(work())


def test_metrics_count_restarts() -> None:
    job = new_job(Fragile("a", breaks={1: 2}), same, Epochs(), restart=POLICY)
    in_virtual_time(job.run())
    watches = Watches()
    watches.add_job(job)
    (family,) = [family for family in watches.families() if family.name == "keygroups_job_restarts"]
    watches.close()
    assert [sample.value for sample in family.samples] == [2]


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="restart=3"):
        new_job([1], same, Epochs(), restart=3)
