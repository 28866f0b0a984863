"""What a run of a job does beside its elements: cuts, looks for partitions, watermarks, timers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from async_op import AsyncBatchFunction, AsyncFunction, InvocationContext, Job, JobNotRunning, Step
from async_op.connectors import FileSink, FileSource, Reached, UnwritableValue, conformance
from async_op.errors import ElementFailed, OperatorInterrupted
from async_op.job import job as job_module
from async_op.job import outputs as job_outputs
from async_op.job import positions
from async_op.job.channels import FINAL, Inlet
from async_op.job.committing import Committer
from async_op.job.errors import DeadLettersUnclaimed, JobAlreadyRunning
from keygroups import ListState, OperatorListState
from snapshots import SnapshotStore
from snapshots.filesystem import MemoryFolder
from tests.async_op.job.kit import Counting, Epochs, Gated, Log, new_job, running, same
from tests.async_op.job.virtual_job_loop import in_virtual_time
from tests.async_op.kit import eventually

CLICKS = ListState("clicks")


class Sessions(AsyncFunction[Any, Any]):
    """Emits all elements of a key a second of event time after the first of them."""

    states = (CLICKS,)

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        if not ctx.state(CLICKS).get():
            assert ctx.timestamp is not None
            ctx.timers.register(ctx.timestamp + 1000, event_time=True)
        ctx.state(CLICKS).add(value[1])
        return []

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[Any]:
        found = ctx.state(CLICKS).get()
        ctx.state(CLICKS).clear()
        return [(ctx.key, found)]


SESSIONS = Step(Sessions(), "sessions", key_by=lambda value: value[0])


@pytest.mark.parametrize("mode", ["unordered", "ordered", "key_ordered"])
def test_a_place_that_becomes_free_is_filled_at_once(mode: Any) -> None:
    begun: dict[int, float] = {}

    async def call(value: int) -> int:
        begun[value] = asyncio.get_running_loop().time()
        await asyncio.sleep(10 + value)
        return value

    key_by = {"key_by": lambda value: value} if mode == "key_ordered" else {}
    job = new_job(range(8), Step(call, mode=mode, capacity=4, **key_by), Epochs(), snapshot_interval=1000)
    in_virtual_time(job.run())

    assert [round(begun[value] - begun[0], 6) for value in range(8)] == [0, 0, 0, 0, 10, 11, 12, 13]


async def test_the_only_subtask_of_a_keyed_step_gets_its_elements_without_a_look_at_their_keys() -> None:
    looked_at: list[int] = []

    def key_by(value: int) -> int:
        looked_at.append(value)
        return value

    steps = [Step(same, "first"), Step(same, "second", key_by=key_by)]
    await new_job(range(9), steps, Epochs(), parallelism=1).run()

    assert sorted(looked_at) == list(range(9))  # only its operator asks for the key


async def test_elements_that_need_not_wait_go_past_the_inlet_and_others_wait_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[int] = []
    put = Inlet.put

    def noted(self: Inlet, channel: int, elements: Sequence[Any]) -> None:
        waited.extend(value for value, _, _ in elements)
        put(self, channel, elements)

    monkeypatch.setattr(Inlet, "put", noted)
    sink, gated = Epochs(), Gated()
    await new_job(range(100), Step(same, mode="ordered", capacity=100), sink).run()
    assert (sink.values, waited) == (list(range(100)), [])

    sink = Epochs()
    job = new_job(range(100), Step(gated, mode="ordered", capacity=16), sink, snapshots="memory://gated")
    async with running(job):
        await eventually(lambda: len(waited) == 16)
        gated.gate.set()
        await sink.have(100)
    assert sink.values == list(range(100))
    assert waited[:16] == list(range(16, 32))  # the first 16 have all places


@pytest.mark.parametrize(
    ("raised", "expected"), [(ValueError("no key"), ElementFailed), (SystemExit(3), OperatorInterrupted)]
)
async def test_an_error_for_a_key_is_one_of_the_step_and_not_of_the_source_that_hands_the_element_on(
    raised: BaseException, expected: type[Exception]
) -> None:
    def key_by(value: int) -> int:
        raise raised

    with pytest.raises(expected) as caught:
        await new_job(range(4), Step(same, key_by=key_by), Epochs()).run()
    assert caught.value.__cause__ is raised


class Quotes(Gated):
    """Returns a mutable output at once, but for the first element, and changes it after the call."""

    def __init__(self) -> None:
        super().__init__()
        self.returned: list[dict[str, Any]] = []

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        for one in self.returned:
            one["tags"].append("later")
        if value == 0:
            await super().async_invoke(value, ctx)
        self.called.append(value)
        self.returned.append({"item": value, "tags": ["new"]})
        return self.returned[-1:]


async def test_outputs_that_wait_for_their_turn_are_stored_as_they_were_returned() -> None:
    first, second, sink = Quotes(), Quotes(), Epochs()
    second.gate.set()
    jobs = [
        new_job(range(4), Step(function, "quotes", mode="ordered"), sink, snapshots="memory://quotes")
        for function in (first, second)
    ]
    async with running(jobs[0]):
        await eventually(lambda: len(first.called) == 4)
    await jobs[1].run()

    assert sink.values == [{"item": item, "tags": ["new"]} for item in range(4)]
    assert first.called == [0, 1, 2, 3]
    assert second.called == [0, 0]


@pytest.mark.parametrize(("stores_objects", "seconds"), [(False, 1.0), (True, 10.0)])
def test_by_default_outputs_wait_for_a_second_and_on_an_object_store_for_ten(
    stores_objects: bool, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if stores_objects:
        monkeypatch.setattr("async_op.job.job.ObjectFolder", MemoryFolder)

    async def work() -> None:
        sink = Epochs()
        async with running(new_job(Log([1]), same, sink, snapshot_interval=None)):
            await sink.have(1)
            assert asyncio.get_running_loop().time() == pytest.approx(seconds)

    in_virtual_time(work())


async def passed(condition: Any) -> None:
    """Let virtual time pass until a condition holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it never came")


def test_new_partitions_are_found_while_the_job_is_quiet() -> None:
    async def work() -> None:
        source, sink = Log([1]), Epochs()
        async with running(new_job(source, same, sink)):
            await passed(lambda: sink.values == [1])
            await asyncio.sleep(100)
            source.logs["new"] = [2]
            await passed(lambda: sink.values == [1, 2])

    in_virtual_time(work())


def test_positions_of_partitions_that_have_gone_stay_until_somebody_removes_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stored() -> list[Any]:
        return store.load().restore(0, step="source").operator_state("positions")

    monkeypatch.setattr(positions, "GONE_MAX", 2)
    store = SnapshotStore("memory://gone", "job")
    source = Log([("a", 1)], [("b", 2)], [("c", 3)], bounded=True)
    job = new_job(source, same, Epochs(), snapshots="memory://gone", watermark_delay=0)
    in_virtual_time(job.run())
    del source.logs[0], source.logs[1]
    in_virtual_time(job.run())
    assert stored() == [(0, 1), (1, 1), (2, 1)]
    assert store.load().to_arrow("source.positions").num_rows == 3
    assert "the source no longer has 2 partitions" in caplog.text

    store.edit().put_items(OperatorListState("positions"), [(2, 1)], step="source").commit()
    in_virtual_time(job.run())
    assert stored() == [(2, 1)]


def test_a_partition_that_comes_back_is_read_on_from_its_position() -> None:
    class Ending(Log):
        async def read(self, partition: Any, position: Any) -> AsyncIterator[Any]:
            self.read_from.append((partition, position))
            for place, value in enumerate(self.logs[partition][position or 0 :], (position or 0) + 1):
                yield value, None, place

    async def work() -> None:
        source = Ending([1])
        async with running(new_job(source, same, sink := Epochs())):
            await asyncio.sleep(30)
            log = source.logs.pop(0)
            await asyncio.sleep(30)
            source.logs[0] = [*log, 2]
            await asyncio.sleep(30)
            assert sink.values == [1, 2]
            assert source.read_from == [(0, None), (0, 1)]

    in_virtual_time(work())


def test_a_stop_stops_the_run_that_has_begun_and_not_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def slowly_shown(progress: Any) -> AsyncIterator[None]:
        await asyncio.sleep(1)
        yield

    async def work() -> None:
        job = new_job(Log([1]), same, sink := Epochs())
        async with running(job):
            await passed(lambda: sink.values == [1])
        task = asyncio.create_task(job.run(show_progress=True))
        await asyncio.sleep(0.5)
        job.stop()
        await asyncio.wait_for(task, 60)

    monkeypatch.setattr(job_module, "shown", slowly_shown)
    in_virtual_time(work())


def test_a_start_that_is_cancelled_leaves_no_claim_behind_that_fences_the_next_run() -> None:
    async def work() -> None:
        store = SnapshotStore("memory://cancelled", "job")
        job = new_job(Log([1], bounded=True), same, Epochs(), snapshots="memory://cancelled")
        await job.run()
        task = asyncio.create_task(job.run())
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.wait({task})
        version = store.newest_version()
        await asyncio.sleep(10)
        assert store.newest_version() == version

    in_virtual_time(work(), storage_seconds=1.0)


def test_a_look_for_partitions_that_fails_is_heard() -> None:
    async def work() -> None:
        source = Log([1])
        task = asyncio.create_task(new_job(source, same, Epochs()).run())
        await asyncio.sleep(5)
        source.partitions = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
        await asyncio.wait({task}, timeout=20)
        with pytest.raises(ZeroDivisionError):
            await task

    in_virtual_time(work())


def test_a_quiet_job_commits_nothing() -> None:
    async def work() -> None:
        job = new_job(Log([1]), same, sink := Epochs(), snapshot_interval=1)
        async with running(job):
            await passed(lambda: sink.values == [1])
            version = job.progress().version
            await asyncio.sleep(1000)
            assert job.progress().version == version

    in_virtual_time(work())


def test_a_position_without_an_element_is_stored() -> None:
    class Later(Log):
        async def read(self, partition: Any, position: Any) -> AsyncIterator[Any]:
            self.read_from.append((partition, position))
            await asyncio.sleep(50)  # the first snapshot of a run is there
            while True:
                yield Reached(7)
                await asyncio.sleep(1)

    async def work() -> None:
        job = new_job(log := Later([]), same, Epochs())
        async with running(job):
            await asyncio.sleep(100)
            assert job.progress().version == 2
        async with running(job):
            await asyncio.sleep(100)
        assert log.read_from == [(0, None), (0, 7)]

    in_virtual_time(work())


def test_a_quiet_partition_holds_back_no_watermark_if_it_is_idle() -> None:
    async def work(idle_timeout: float | None, expected: list[Any]) -> None:
        source = Log([("a", 1000), ("a", 1500), ("b", 9000)], [("a", 1200)])
        options: dict[str, Any] = {"watermark_delay": 0, "idle_timeout": idle_timeout, "parallelism": 2}
        async with running(new_job(source, [same, SESSIONS], sink := Epochs(), **options)):
            await asyncio.sleep(60)
            assert [(key, sorted(found)) for key, found in sink.values] == expected

    in_virtual_time(work(5.0, [("a", [1000, 1200, 1500])]))
    in_virtual_time(work(None, []))


def test_a_partition_whose_elements_wait_for_room_is_not_quiet() -> None:
    async def work() -> None:
        source = Log([("a", n) for n in range(100)], [("b", 1_000_000 + n) for n in range(100)])
        slow, sink = Gated(), Epochs()
        steps = [Step(slow, mode="ordered", capacity=1), SESSIONS]
        async with running(new_job(source, steps, sink, watermark_delay=0, idle_timeout=5, snapshot_interval=30)):
            await asyncio.sleep(100)
            slow.gate.set()
            await passed(lambda: sink.values)
            assert sink.values == [("a", list(range(100)))]

    in_virtual_time(work())


def test_a_restart_continues_with_the_watermarks_of_the_partitions() -> None:
    async def work() -> None:
        source, sink = Log([("b", 1000), ("b", 9000)], [("a", 1000)]), Epochs()
        options: dict[str, Any] = {"watermark_delay": 0, "snapshots": "memory://marks"}
        for parallelism in (1, 2, 2, 1):
            job = new_job(source, [same, SESSIONS], sink, parallelism=parallelism, **options)
            async with running(job):
                await asyncio.sleep(5)
                assert sink.values == []
        async with running(new_job(source, [same, SESSIONS], sink, **options)):
            await source.append(1, ("a", 1500), ("c", 9500))
            await asyncio.sleep(5)
        assert sorted(sink.values) == [("a", [1000, 1500]), ("b", [1000, 9000])]

    in_virtual_time(work())


async def test_the_final_watermark_fires_all_timers_and_is_in_no_snapshot() -> None:
    source, sink = Log([("a", 1000), ("b", 9000)], bounded=True), Epochs()
    options: dict[str, Any] = {"snapshots": "memory://final", "watermark_delay": 0, "parallelism": 2}
    await new_job(source, [same, SESSIONS], sink, **options).run()
    assert sorted(sink.values) == [("a", [1000]), ("b", [9000])]
    channels = SnapshotStore("memory://final", "job").load().manifest.channels
    assert FINAL not in {channel.watermark for channel in channels}
    await source.append(0, ("a", 9500))
    await new_job(source, [same, SESSIONS], sink, **options | {"parallelism": 3}).run()
    assert sink.values[2:] == [("a", [9500])]


def test_a_drain_ends_although_timers_register_timers_and_keeps_the_later_ones() -> None:
    class Ticking(Sessions):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            ctx.timers.register(ctx.timers.processing_time)
            ctx.timers.register(1000 + (ctx.timestamp or 0), event_time=True)
            return []

        async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[Any]:
            ctx.timers.register(timestamp + 1)
            return [timestamp]

    async def work() -> None:
        job = new_job(Log([("a", 1)]), Step(Ticking(), key_by=lambda value: value[0]), sink := Epochs())
        async with running(job) as task:
            await passed(lambda: len(sink.values) > 2)
            job.stop()
            await asyncio.wait_for(task, 60)
        assert 1001 not in sink.values

    in_virtual_time(work())


async def test_outputs_beyond_a_bound_are_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_outputs, "MEMORY_BYTES", 100)
    sink = Epochs()
    await new_job(range(1000), Step(same, mode="ordered"), sink, snapshot_interval=1000).run()
    assert sink.epochs == {1: list(range(1000))}


def test_the_rows_of_an_epoch_keep_their_order_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_outputs, "MEMORY_BYTES", 100)
    epoch = job_outputs.EpochOutputs()
    for number in range(300):
        epoch.add([number], are_dead_letters=number % 7 == 0)
        if number % 50 == 0:
            epoch.spill()
            assert not epoch.is_large
    outputs, letters = job_outputs.values_in(epoch.tables())
    assert letters == list(range(0, 300, 7))
    assert outputs == [number for number in range(300) if number % 7]
    assert epoch.table().num_rows == 300
    epoch.close()


@pytest.mark.parametrize("memory_bytes", [1, job_outputs.MEMORY_BYTES])
async def test_outputs_that_cannot_be_decoded_fail_the_job(monkeypatch: pytest.MonkeyPatch, memory_bytes: int) -> None:
    def read(*_: Any) -> Any:
        raise ValueError("made by a newer release")

    monkeypatch.setattr(job_outputs, "MEMORY_BYTES", memory_bytes)
    monkeypatch.setattr(job_outputs, "unpack_all", read)
    with pytest.raises(ValueError, match="newer release"):
        await asyncio.wait_for(new_job(range(9), same, Epochs()).run(), 120)


def test_who_is_in_the_middle_of_an_epochs_rows_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_outputs, "MEMORY_BYTES", 0)
    epoch = job_outputs.EpochOutputs()
    for number in range(3):
        epoch.add([number], are_dead_letters=False)
    epoch.spill()
    epoch.add([3], are_dead_letters=False)
    tables = epoch.tables()
    found, _ = job_outputs.values_in([next(tables)])

    epoch.spill()
    assert job_outputs.values_in(tables) == ([1, 2, 3], [])

    tables = epoch.tables()
    next(tables)
    epoch.close()
    with pytest.raises(ValueError, match="closed"):
        next(tables)
    assert found == [0]


async def test_an_epoch_ends_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_outputs, "EPOCH_OUTPUTS", 50)
    sink = Epochs()
    job = new_job(Log(range(500)), same, sink, snapshot_interval=1000)
    async with running(job):
        await sink.have(451)  # what is left fits into an epoch that is not full
        await eventually(lambda: job.progress().outputs == 500)  # its last elements may not have been read yet
    assert sorted(sink.values) == list(range(500))
    assert max(map(len, sink.epochs.values())) < 400


async def test_a_function_that_occupies_all_threads_of_the_loop_stops_nothing() -> None:
    release = threading.Event()

    async def blocking(value: int) -> int:
        if value < 100:
            await asyncio.to_thread(release.wait)
        return value

    sink = Epochs()
    job = new_job(Log(range(50), range(100, 120)), blocking, sink, parallelism=2)
    try:
        async with running(job):
            await sink.have(20)
            await job.snapshot()
            job.rescale(3)
            await eventually(lambda: job.progress().parallelism == 3 and job.progress().state == "running")
            await job.snapshot()
            release.set()
            await sink.have(70)
    finally:
        release.set()
    assert sorted(sink.values) == [*range(50), *range(100, 120)]


async def test_functions_hear_of_commits_and_each_subtask_has_its_own() -> None:
    items = OperatorListState("items")
    told: list[tuple[int, int]] = []

    class Acknowledging(AsyncFunction[Any, Any]):
        operator_states = (items,)

        async def open(self, runtime: Any) -> None:
            self.index, self.items = runtime.subtask_index, runtime.operator_state(items)

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            self.items.add(value)
            return [value]

        async def snapshot_complete(self, version: int) -> None:
            told.append((self.index, version))

    options: dict[str, Any] = {"snapshots": "memory://told"}
    sink = Epochs()
    await new_job(Log([1], [2], bounded=True), Acknowledging(), sink, parallelism=2, **options).run()
    assert {index for index, _ in told} == {0, 1}
    snapshot = SnapshotStore("memory://told", "job").load()
    stored = [snapshot.restore(index, 3, step="Acknowledging").operator_state("items") for index in range(3)]
    assert sorted(item for found in stored for item in found) == [1, 2]  # type: ignore[type-var]


async def test_the_outputs_of_a_batch_function_have_ids_for_the_next_step() -> None:
    class Twice(AsyncBatchFunction[Any, Any]):
        async def async_invoke_batch(self, values: Any, ctxs: Any) -> Any:
            return [[value, value] for value in values]

    class Named(AsyncFunction[Any, Any]):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            return [(value, ctx.idempotency_key)]

    sink = Epochs()
    steps = [Step(Twice(), "twice", mode="ordered"), Step(Named(), "named", mode="ordered")]
    await new_job(Log("abc", bounded=True), steps, sink, idempotency_namespace="ns").run()
    assert sink.values == [
        (value, f"ns/named/0@{position}/{output}") for position, value in enumerate("abc", 1) for output in (0, 1)
    ]


async def test_a_source_and_a_sink_that_never_close_are_given_up_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Endless(Log):
        async def close(self) -> None:
            await asyncio.Event().wait()

    class Bottomless(Epochs):
        async def close(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(conformance, "CLOSE_SECONDS", 0.01)
    sink = Bottomless()
    await new_job(Endless([1], bounded=True), same, sink).run()
    assert len(sink.values) == 1
    assert "closing Endless was given up after 0.01 s" in caplog.text
    assert "closing Bottomless was given up after 0.01 s" in caplog.text


def test_the_log_says_what_a_job_waits_for_if_that_takes_long(caplog: pytest.LogCaptureFixture) -> None:
    class SlowLog(Log):
        async def open(self) -> None:
            await asyncio.sleep(40)

    class SlowEpochs(Epochs):
        async def write(self, values: Any, epoch: int) -> None:
            await asyncio.sleep(130)
            await super().write(values, epoch)

    class SlowFunction(AsyncFunction[Any, Any]):
        async def open(self, runtime: Any) -> None:
            await asyncio.sleep(40)

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            return [value]

    async def run() -> None:
        await new_job(SlowLog([1], bounded=True), SlowFunction(), SlowEpochs()).run()

    in_virtual_time(run(), storage_seconds=35.0)

    told = [record.getMessage() for record in caplog.records if "has taken" in record.getMessage()]
    writing = "writing epoch 1 to SlowEpochs has taken {} s so far, and the job waits for it"
    assert told == [
        "taking over the snapshots of job job has taken 30 s so far, and the job waits for it",
        "opening SlowLog has taken 30 s so far, and the job waits for it",
        "opening the steps of job job has taken 30 s so far, and the job waits for it",
        "committing version 1 of job job has taken 30 s so far, and the job waits for it",
        *(writing.format(seconds) for seconds in (30, 60, 120)),
    ]


async def test_a_failed_commit_fails_the_job_and_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unstorable:
        pass

    async def odd(value: int) -> Any:
        return value

    sink = Epochs()
    source = Log([1])
    source.read = lambda *_: iter([(1, None, Unstorable())])  # type: ignore[assignment, method-assign, return-value]
    with pytest.raises(Exception, match="Unstorable"):
        await new_job(source, odd, sink).run()
    assert sink.values == []


async def test_who_asks_for_a_snapshot_is_told_why_its_commit_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    job = new_job(Log([1]), same, Epochs(), snapshot_interval=1000)
    task = asyncio.create_task(job.run())
    await eventually(lambda: job.progress().records == 1)
    monkeypatch.setattr(Committer, "commit_cut", fail)
    with pytest.raises(OSError, match="the disk is full"):
        await job.snapshot()
    with pytest.raises(OSError, match="the disk is full"):
        await task


async def test_a_cancelled_snapshot_continues_and_its_outputs_are_delivered() -> None:
    sink = Epochs()
    job = new_job(Log(range(5)), same, sink, snapshot_interval=1000)
    async with running(job):
        await eventually(lambda: job.progress().outputs == 5)
        task = asyncio.create_task(job.snapshot())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        await sink.have(5)


def test_an_iterable_on_threads_and_a_blocking_sink() -> None:
    found: list[Any] = []
    job = Job(
        (number for number in range(10)),
        Step(Counting(), key_by=lambda value: value % 2),
        lambda values, epoch: found.extend(values),
        snapshots="memory://plain",
        job_id="job",
    )
    job.run_sync()
    assert len(found) == 10


async def test_files_to_files(tmp_path: Any) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        lines = "".join(f'{{"user": "u{(number + line) % 4}"}}\n' for line in range(10))
        (tmp_path / "in" / f"{number}.json").write_text(lines)
    source, sink = FileSource(f"{tmp_path}/in/*.json", "json"), FileSink(f"{tmp_path}/out", "json")
    counting = Step(Counting(), key_by="user")
    await new_job(source, [same, counting, as_row], sink, parallelism=2).run()
    rows = [json.loads(line) for file in (tmp_path / "out").rglob("epoch*") for line in file.read_text().splitlines()]
    assert len(rows) == 30
    assert sum(row["count"] == 1 for row in rows) == 4


async def test_an_epoch_that_the_sink_cannot_write_can_be_changed_on_its_way(tmp_path: Any) -> None:
    class Mended(FileSink):
        async def write(self, values: Sequence[Any], epoch: int) -> None:
            await super().write([sorted(value) if isinstance(value, set) else value for value in values], epoch)

    async def as_set(value: Any) -> Any:
        return {value}

    async def as_list(value: Any) -> Any:
        return [value]

    snapshots = f"{tmp_path}/snapshots"
    for step in (as_set, as_list):  # the outputs of the first run are committed
        with pytest.raises(UnwritableValue, match="in a subclass of the sink"):
            await new_job(
                [1, 2], Step(step, "step", mode="ordered"), FileSink(f"{tmp_path}/out", "json"), snapshots=snapshots
            ).run()
    await new_job(
        [1, 2], Step(as_list, "step", mode="ordered"), Mended(f"{tmp_path}/out", "json"), snapshots=snapshots
    ).run()
    lines = [line for file in (tmp_path / "out").rglob("epoch*") for line in file.read_text().splitlines()]
    assert lines == ["[1]", "[2]"]


async def as_row(value: Any) -> Any:
    return {"key": value[0], "count": value[1]}


async def test_no_collection_of_old_versions_outlives_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    closed, finished = threading.Event(), []

    class Closing(Epochs):
        async def close(self) -> None:
            closed.set()

    def collect(*_: object, **__: object) -> None:
        closed.wait(60)
        threading.Event().wait(0.2)  # only a run that does not wait for it could end meanwhile
        finished.append(True)
        raise OSError("a collection that fails harms nobody")

    await new_job([1, 2, 3], same, Epochs(), snapshots="memory://collected").run()
    monkeypatch.setattr("async_op.epochs.retention.collect_garbage", collect)

    await new_job([1, 2, 3, 4], same, Closing(), snapshots="memory://collected").run()

    assert finished == [True]


async def test_a_stop_at_a_cut_stays_one() -> None:
    gated, sink = Gated(), Epochs()
    job = new_job(range(3), gated, sink, snapshots="memory://stays")
    task = asyncio.create_task(job.run())
    await eventually(lambda: sum(job.progress().in_flight.values()) >= 3)  # the end of the source counts, too

    job.stop(drain=False)
    job.stop()
    await asyncio.wait_for(task, 120)

    snapshot = SnapshotStore("memory://stays", "job").latest()
    assert snapshot is not None
    assert snapshot.in_flight_count == 3
    assert sink.values == []


async def test_dead_letters_wait_for_a_sink() -> None:
    async def picky(value: int) -> int:
        raise ValueError(value)

    class Full(Epochs):
        async def write(self, values: Any, epoch: int) -> None:
            raise OSError("no space left")

    letters, where = Epochs(), "memory://unclaimed"
    with pytest.raises(OSError, match="no space"):
        await new_job(
            [1], Step(picky, "picky", on_error="dead_letter"), Epochs(), dead_letters=Full(), snapshots=where
        ).run()

    with pytest.raises(DeadLettersUnclaimed, match="1 dead letters"):
        await new_job([1], Step(same, "picky"), Epochs(), snapshots=where).run()
    await new_job([1], Step(same, "picky"), Epochs(), dead_letters=letters, snapshots=where).run()

    assert [letter["value"] for letter in letters.values] == ["1"]


async def test_nothing_is_cut_while_a_job_gives_up() -> None:
    closing, may_close = asyncio.Event(), asyncio.Event()

    class Slow(AsyncFunction[Any, Any]):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            await asyncio.Event().wait()
            return []

        async def close(self) -> None:
            closing.set()
            await may_close.wait()

    job = new_job(range(3), Slow(), Epochs(), snapshots="memory://gives-up")
    task = asyncio.create_task(job.run())
    await eventually(lambda: sum(job.progress().in_flight.values()) >= 3)  # the end of the source counts, too
    task.cancel()
    await closing.wait()

    with pytest.raises(JobNotRunning):
        await asyncio.wait_for(job.snapshot(), 120)

    may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_who_asks_for_a_snapshot_at_the_very_end_is_told_that_there_is_none() -> None:
    for turns in range(60):  # the end of a job takes fewer turns of the loop than that
        job = new_job(Log([1]), same, Epochs(), snapshots=f"memory://end-{turns}", snapshot_interval=1000)
        task = asyncio.create_task(job.run())
        await eventually(lambda job=job: job.progress().state == "running")  # type: ignore[misc]
        task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        asked = asyncio.create_task(job.snapshot())
        with suppress(JobNotRunning, asyncio.CancelledError):
            await asyncio.wait_for(asked, 120)
        await asyncio.wait({task})


async def test_the_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    await new_job(range(1200), same, Epochs()).run(show_progress=True)

    assert "job: ended, 1,200 in, 0 in flight, 1,200 out, snapshot" in capsys.readouterr().err


async def test_a_sink_may_ask_its_job_for_anything() -> None:
    versions: list[int] = []

    class Asking(Epochs):
        async def write(self, values: Sequence[Any], epoch: int) -> None:
            await super().write(values, epoch)
            if job.progress().state in ("stopping", "draining"):
                return
            versions.append(await job.snapshot())
            if len(versions) == 1:
                job.rescale(2)
            elif job.progress().parallelism == 2:
                job.stop()
            with pytest.raises(JobAlreadyRunning):
                await job.run()

    source, sink = Log(range(20)), Asking()
    job = new_job(source, same, sink)

    async def grow() -> None:
        for value in range(20, 200):
            await source.append(0, value)
            await asyncio.sleep(0.05)

    growing = asyncio.create_task(grow())
    await asyncio.wait_for(job.run(), 120)
    growing.cancel()
    assert versions == sorted(versions)
    assert job.progress().parallelism == 2
    assert sink.values == list(range(len(sink.values)))
