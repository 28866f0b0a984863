"""What a job counts from cut to cut, and stores with each of them."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from typing import Any

import pytest

from async_op import Cache, FixedDelayRetry, Resilience, Step
from async_op.in_flight.in_flight import InFlight
from async_op.job.counters import counts_of, counts_of_written
from snapshots import SnapshotStore
from snapshots.inspection.activity import COUNTED
from tests.async_op.job.kit import Counting, Epochs, Gated, Log, new_job, running, same
from tests.async_op.job.test_run import passed
from tests.async_op.job.virtual_job_loop import in_virtual_time
from tests.async_op.kit import eventually

CALLS = ("rows", "outputs", "calls", "retries", "reinvoked", "reemitted", "skipped", "dead_letters", "in_flight")


@pytest.fixture
def place() -> dict[str, Any]:
    """A place whose versions all stay."""
    return {"snapshots": f"memory://{uuid.uuid4().hex}", "retention": None, "snapshot_interval": 3600.0}


def counted(place: dict[str, Any]) -> list[dict[str, int]]:
    """Return what each cut has counted."""
    store = SnapshotStore(place["snapshots"], "job")
    manifests = [store.load(version).manifest for version in store.versions()]
    return [one.metrics for one in manifests if one.operation == "write"]


def named(names: tuple[str, ...], metrics: dict[str, int]) -> dict[str, int]:
    """Return those of some counters that are not 0."""
    return {name: metrics[name] for name in names if metrics[name]}


def test_a_job_stores_what_others_show_of_epochs() -> None:
    names = {*counts_of(0, 0, [], [{"oldest_call_seconds": 0.0}]), *counts_of_written([], 0.0)}

    assert {*COUNTED, "oldest_call_milliseconds", "in_flight"} <= names


async def test_each_cut_counts_what_has_happened_since_the_one_before(place: dict[str, Any]) -> None:
    failed = Counter[int]()

    async def moody(value: int) -> int:
        failed[value] += 1
        if value % 10 == 9 or (value % 2 and failed[value] == 1):
            raise ValueError(value)
        return value

    source, sink, letters = Log([]), Epochs(), Epochs()
    first = Step(moody, retry=FixedDelayRetry(2, 0.0), on_error="dead_letter")
    job = new_job(source, [first, Step(Counting(), key_by=lambda value: value)], sink, dead_letters=letters, **place)
    async with running(job):
        for start in (0, 10, 20):
            await source.append(0, *range(start, start + 10))
            await eventually(lambda end=start + 10: job.progress().outputs + job.progress().dead_letters == end)
            await job.snapshot()
        await job.snapshot()

    # Of ten values five are called for again. One of these fails again, and the others reach the second step.
    once = {"rows": 10, "outputs": 10, "calls": 15 + 9, "retries": 5, "dead_letters": 1}
    assert [named(CALLS, one) for one in counted(place)] == [once, once, once, {}]
    progress = job.progress()
    assert (progress.calls, progress.retries, progress.timeouts, progress.dead_letters) == (3 * 24, 3 * 5, 0, 3)
    assert [one["state_rows"] >= 9 and one["state_bytes"] > 0 for one in counted(place)] == [True, True, True, False]


async def test_a_rescale_and_a_restart_count_calls_that_are_repeated(place: dict[str, Any]) -> None:
    source, sink, gated = Log(range(6)), Epochs(), Gated()
    async with running(job := new_job(source, [same, gated], sink, **place)):
        await eventually(lambda: len(gated.called) == 6)
        job.rescale(3)
        await eventually(lambda: len(gated.called) == 12)
    gated.gate.set()
    async with running(job := new_job(source, [same, gated], sink, **place)):
        await eventually(lambda: job.progress().outputs == 6)

    assert [named(CALLS, one) for one in counted(place)] == [
        {"rows": 6, "calls": 6 + 6, "in_flight": 6},
        {"calls": 6, "reinvoked": 6, "in_flight": 6},
        {"calls": 6, "reinvoked": 6, "outputs": 6},
    ]
    assert len(gated.called) == 18


async def test_results_that_wait_at_a_cut_are_emitted_once_more(place: dict[str, Any]) -> None:
    async def slow_at_first(value: int) -> int:
        if value == 0:
            await gate.wait()
        returned.append(value)
        return value

    gate, source, sink = asyncio.Event(), Log(range(4)), Epochs()
    returned: list[int] = []
    step = Step(slow_at_first, mode="ordered")
    async with running(job := new_job(source, step, sink, **place)):
        await eventually(lambda: returned == [1, 2, 3])
    gate.set()
    async with running(job := new_job(source, step, sink, **place)):
        await eventually(lambda: job.progress().outputs == 4)

    first, last = counted(place)
    assert named(CALLS, first) == {"rows": 4, "calls": 4, "in_flight": 4}
    assert named(CALLS, last) == {"calls": 1, "reinvoked": 1, "reemitted": 3, "outputs": 4}


def test_the_age_of_the_oldest_call_is_stored_also_after_a_restart(place: dict[str, Any]) -> None:
    async def work() -> None:
        source, sink, gated = Log([1]), Epochs(), Gated()
        async with running(job := new_job(source, [same, gated], sink, **place)):
            await asyncio.sleep(5)
            await source.append(0, 2)
            await asyncio.sleep(2)
            await job.snapshot()
        gated.arrived.clear()
        async with running(job := new_job(source, [same, gated], sink, **place)):
            await asyncio.sleep(3)
            await job.snapshot()
            gated.gate.set()
            await passed(lambda: job.progress().outputs == 2)

    in_virtual_time(work())
    oldest = [one["oldest_call_milliseconds"] for one in counted(place)]
    # A call that is made again is as old as the operator that makes it.
    assert oldest == pytest.approx([7000, 7000, 3000, 0], abs=200)


async def test_what_limits_do_is_counted_for_all_steps(place: dict[str, Any]) -> None:
    steps = [
        Step(same, name, resilience=Resilience(cache=Cache(max_entries=10, key=lambda value: value)))
        for name in ("first", "second")
    ]
    source = Log([])
    async with running(job := new_job(source, steps, Epochs(), **place)):
        for outputs in (2, 4):
            await source.append(0, 5, 6)
            await eventually(lambda outputs=outputs: job.progress().outputs == outputs)
            await job.snapshot()

    names = ("rows", "calls", "cache_misses", "cache_hits")
    assert [named(names, one) for one in counted(place)] == [
        {"rows": 2, "calls": 4, "cache_misses": 4},
        {"rows": 2, "cache_hits": 4},
    ]


async def test_a_cut_looks_at_no_element_to_count(place: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(InFlight, "counters")  # it counts elements one by one
    await new_job(range(3), same, Epochs(), **place).run()

    assert sum(one["calls"] for one in counted(place)) == 3
