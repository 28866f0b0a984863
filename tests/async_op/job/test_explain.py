"""What `Job.explain` says of the next run: what that run does, and what it refuses, without a claim and a write."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from async_op import (
    AdaptiveConcurrency,
    BlockingFunction,
    Explanation,
    FixedDelayRetry,
    Job,
    RateLimit,
    Resilience,
    Step,
)
from async_op.connectors import FileSink, FileSource, Sink
from keygroups import KeyGroupsError
from snapshots import SnapshotStore
from tests.async_op.job.kit import AT_ITS_END, Counting, Epochs, Gated, Log, new_job, running, same


def refusals_of(found: Explanation) -> list[str]:
    return [one.advice for one in found.findings if one.is_refusal]


def contents_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_a_first_run_begins_with_nothing_and_nothing_is_done(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text('{"user": "ann"}\n')
    before = contents_of(tmp_path)
    source = FileSource(str(tmp_path / "in" / "*"), "json", bounded=True)
    step = Step(same, key_by="user")
    options: dict[str, Any] = {"snapshots": tmp_path / "state", "parallelism": 2, **AT_ITS_END}
    job = new_job(source, step, FileSink(tmp_path / "out", "json"), **options)

    found = await job.explain()

    facts = found.operators["job"]
    assert facts["source"].endswith(": 1 partition")
    assert facts["next run"] == "begins with nothing"
    assert facts["parallelism"] == "2, as passed"
    assert facts["key groups"] == "128 by xxhash64; 0: 0-63, 1: 64-127"
    assert found.operators["job/same"]["function"] == "same, by key user"
    assert str(found).endswith("nothing looks wrong")
    assert contents_of(tmp_path) == before
    await job.run()
    assert (await job.explain()).operators["job"]["next run"] == "continues from version 1"


async def test_a_later_run_continues_with_what_is_in_flight_and_undelivered(tmp_path: Path) -> None:
    class Broken(Sink[Any]):
        retry = None

        async def write(self, values: list[Any], epoch: int) -> None:
            raise RuntimeError("no")

    gated = Gated()
    gated.gate.set()
    options: dict[str, Any] = {"snapshots": tmp_path, "parallelism": 1, **AT_ITS_END}
    job = new_job(Log([1], bounded=True), Step(gated, "gated"), Broken(), **options)
    with pytest.raises(RuntimeError, match="no"):
        await job.run()

    found = await new_job(Log([1, 2], [3], bounded=True), Step(gated, "gated"), Epochs(), **options).explain()

    assert found.operators["job"]["next run"] == "continues from version 1, gives 1 epoch to the sink"
    assert found.operators["job"]["source"].endswith(": 2 partitions, 1 of them new")
    assert not found.findings

    gated.gate.clear()
    gated.arrived.clear()
    source, sink = Log([1, 2]), Epochs()
    job = new_job(source, Step(gated, "gated"), sink, **options)
    async with running(job):
        await gated.arrived.wait()
        await job.snapshot()
    found = await new_job(source, Step(gated, "gated"), sink, **options | {"parallelism": 2}).explain()
    assert found.operators["job"]["next run"].endswith("makes 1 call in flight again")
    assert [one.problem for one in found.findings] == [
        "the newest snapshot has parallelism 1: the next run rescales to 2"
    ]
    assert not found.is_refused


COUNTED = Step(Counting(), "counted", key_by="user")
ROWS = [{"user": "ann"}, {"user": "bob"}]

REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "max parallelism": (COUNTED, {"max_parallelism": 64}),
    "hash": (COUNTED, {"hash": "flink"}),
    "a step": (Step(Counting(), "other", key_by="user"), {}),
    "a state": (Step(same, "counted", key_by="user"), {}),
    "keys": (Step(Counting(), "counted", key_by="id"), {}),
    "namespace": (COUNTED, {"idempotency_namespace": "mine"}),
    "more subtasks than key groups": (COUNTED, {"parallelism": 200, "max_parallelism": None}),
    "another source": (COUNTED, {"source": Log([])}),
    "fewer elements": (COUNTED, {"source": ROWS[:1]}),
}


@pytest.mark.parametrize("case", list(REFUSED))
async def test_what_a_run_refuses_is_told_before_and_in_its_words(case: str) -> None:
    options: dict[str, Any] = {"snapshots": f"memory://{uuid.uuid4().hex}"}
    await new_job(ROWS, COUNTED, Epochs(), max_parallelism=100, **options).run()
    store = SnapshotStore(options["snapshots"], "job")
    version = store.load().version
    step, changed = REFUSED[case]
    job = new_job(**{"source": ROWS, "steps": step, "sink": Epochs()} | options | changed)

    found = await job.explain()

    (told,) = refusals_of(found)
    assert found.is_refused
    assert store.load().version == version
    with pytest.raises(KeyGroupsError) as raised:
        await job.run()
    assert str(raised.value) in told


async def test_a_source_that_cannot_be_read_is_told_and_closed() -> None:
    class Away(Log):
        closed = 0

        def partitions(self) -> list[Any]:
            raise ConnectionError("no route")

        async def close(self) -> None:
            self.closed += 1

    source = Away([1])
    found = await new_job(source, same, Epochs()).explain()
    assert refusals_of(found) == ["ConnectionError: no route"]
    assert source.closed == 1


async def test_what_can_be_iterated_once_is_left_for_the_run() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    for source in (iter([1, 2]), numbers()):
        sink = Epochs()
        job = new_job(source, same, sink)
        assert not (await job.explain()).findings
        await job.run()
        assert sink.values == [1, 2]


async def test_steps_have_findings_of_their_own() -> None:
    class Blocking(BlockingFunction[Any, Any]):
        def invoke(self, value: Any, ctx: Any) -> list[Any]:
            return [value]

    steps = [Step(same, "first", timeout=1.0, retry=FixedDelayRetry(9, 1.0)), Step(Blocking(), "second", key_by=str)]
    found = await new_job([1], steps, Epochs(), parallelism=3, max_parallelism=4).explain()
    assert [(one.operator_id, one.problem.split(",")[0]) for one in found.findings] == [
        ("job", "of 4 key groups some subtasks own 2 and others 1"),
        ("job/first", "timeout=1 is for all attempts: of 9"),
        ("job/second", "capacity=100"),
    ]
    assert found.operators["job/second"]["function"] == "Blocking, by key str"


async def test_limits_that_the_elements_in_flight_do_not_fit_are_found_as_on_spark() -> None:
    few = Resilience(concurrency=AdaptiveConcurrency(maximum=40))
    slow = Resilience(rate_limit=RateLimit(2, burst=3))
    steps = [Step(same, "few", resilience=few), Step(same, "slow", timeout=5.0, resilience=slow)]
    found = await new_job([1], steps, Epochs(), parallelism=4).explain()
    assert [str(one) for one in found.findings] == [
        "job/few: capacity=100 in each of 4 subtasks, but no more than 40 calls may be under way: the other elements "
        "in flight wait, and their timeout runs; set a capacity of about 10, or a greater maximum, which is the sum "
        "over all subtasks",
        "job/slow: 2 calls/s may begin, so at most 13 elements are called for within the timeout of 5 s, and "
        "capacity=100 in each of 4 subtasks; set a capacity of at most 3, or a longer timeout",
    ]
    steps = [
        Step(same, "few", resilience=few, capacity=10),
        Step(same, "slow", capacity=3, timeout=5.0, resilience=slow),
    ]
    assert not (await new_job([1], steps, Epochs(), parallelism=4).explain()).findings


async def test_a_job_that_runs_looks_at_its_snapshot_only() -> None:
    class Opened(Log):
        opened = 0

        async def open(self) -> None:
            self.opened += 1

    source, sink = Opened([1]), Epochs()
    job = new_job(source, same, sink)
    async with running(job):
        await sink.have(1)
        found = await job.explain()
        assert found.operators["job"]["next run"].startswith("continues from version")
        assert source.opened == 1
        await source.append(0, 2)
        await sink.have(2)


async def test_another_run_goes_on_and_is_not_taken_for_lost_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def job_over(source: Log) -> Job:
        return new_job(source, same, FileSink(tmp_path / "out", "json"), snapshots=tmp_path / "state")

    source = Log([{"n": 0}])
    looked = asyncio.Event()
    loop, look = asyncio.get_running_loop(), FileSink.look_at_target

    def look_late(sink: FileSink) -> None:
        if not looked.is_set():  # the run has delivered another epoch since the snapshot was read
            loop.call_soon_threadsafe(looked.set)
            asyncio.run_coroutine_threadsafe(another_epoch(), loop).result(60)
        look(sink)

    async def another_epoch() -> None:
        before = len(list((tmp_path / "out").glob("epoch-*")))
        await source.append(0, {"n": 1})
        while len(list((tmp_path / "out").glob("epoch-*"))) == before:
            await asyncio.sleep(0.01)

    async with running(job_over(source)) as task:
        while not list((tmp_path / "out").glob("epoch-*")):
            await asyncio.sleep(0.01)
        monkeypatch.setattr(FileSink, "look_at_target", look_late)
        assert not (await job_over(source).explain()).findings
        await another_epoch()
        assert not task.done()


def test_it_shows_as_a_table_in_a_notebook() -> None:
    found = asyncio.run(new_job([1], Step(same, timeout=1.0, retry=FixedDelayRetry(9, 1.0)), Epochs()).explain())
    shown = found._repr_html_()
    assert "job/same" in shown
    assert "looks wrong" in shown
    assert repr(found) == "Explanation(operators=['job', 'job/same'], findings=1)"
