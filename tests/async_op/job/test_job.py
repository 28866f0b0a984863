"""A job from end to end: what reaches the sink, and what a restart, a rescale and a stop make of it."""

from __future__ import annotations

import asyncio
import pickle
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import pytest

from async_op import (
    AsyncFunction,
    AsyncTimeoutError,
    Budget,
    ConnectorCancelled,
    ConnectorInterrupted,
    ElementFailed,
    FixedDelayRetry,
    InvocationContext,
    Job,
    JobAlreadyRunning,
    JobInsideEventLoop,
    JobNotRunning,
    RepartitionUndone,
    Resilience,
    Step,
    StreamAlreadyRead,
)
from async_op.job.committing import Committer
from keygroups import ConfigError
from snapshots import IncompatibleSnapshot, SnapshotStore
from tests.async_op.job.kit import Counting, Epochs, Gated, Log, new_job, running, same
from tests.async_op.kit import eventually

KEYED = Step(Counting(), key_by=lambda value: value % 3)


def expected(count: int) -> set[tuple[int, int]]:
    return {(number % 3, number // 3 + 1) for number in range(count)}


async def test_inside_of_an_event_loop_run_sync_says_what_to_do(recwarn: pytest.WarningsRecorder) -> None:
    job = new_job([1], same, Epochs())

    with pytest.raises(JobInsideEventLoop, match="await job.run()"):
        job.run_sync()

    assert not recwarn.list, "a coroutine was not awaited"
    await job.run()


async def test_a_bounded_source_is_read_to_its_end() -> None:
    sink = Epochs()
    job = new_job(range(50), [same, KEYED], sink, parallelism=2)
    await job.run()
    assert {value[:2] for value in sink.values} == expected(50)
    assert len(sink.values) == 50
    progress = job.progress()
    assert (progress.state, progress.records, progress.outputs, progress.in_flight) == (
        "ended",
        50,
        50,
        {"same": 0, "Counting": 0},
    )
    assert repr(progress).startswith("<JobProgress job: ended")


async def test_ids_come_from_partition_and_position() -> None:
    sink = Epochs()

    async def twice(value: int) -> Any:
        yield value
        yield value

    await new_job(Log([7], [8], bounded=True), [twice, KEYED], sink, parallelism=2).run()
    assert {value[2].split("/", 2)[2] for value in sink.values} == {"0@1/0", "0@1/1", "1@1/0", "1@1/1"}


async def test_a_second_run_continues_where_the_first_has_ended() -> None:
    source, sink = Log(range(6), bounded=True), Epochs()
    job = new_job(source, KEYED, sink)
    await job.run()
    await source.append(0, *range(6, 9))
    await job.run()
    assert {value[:2] for value in sink.values} == expected(9)
    assert source.read_from == [(0, None), (0, 6)]
    await job.run()
    assert len(sink.values) == 9


async def asynchronously(values: Iterable[Any]) -> AsyncIterator[Any]:
    for value in values:
        yield value


@pytest.mark.parametrize("once", [iter, asynchronously])
async def test_an_iterator_that_was_read_beyond_the_snapshot_is_refused(once: Callable[[Any], Any]) -> None:
    gated = Gated()
    job = new_job(once(range(3)), gated, Epochs(), snapshot_interval=60.0)
    run = asyncio.create_task(job.run())
    await gated.arrived.wait()
    run.cancel()  # as a crash, it ends the job without a cut
    with pytest.raises(asyncio.CancelledError):
        await run
    with pytest.raises(StreamAlreadyRead, match="pass what can be iterated again") as refused:
        await job.run()
    assert refused.value.position == 0
    assert 1 <= refused.value.taken <= 3


async def test_a_stop_at_a_cut_keeps_what_is_in_flight() -> None:
    sink, gated, options = Epochs(), Gated(), {"snapshots": "memory://stop"}
    source = Log([1, 2, 3])
    job = new_job(source, [gated, KEYED], sink, **options)
    async with running(job):
        await gated.arrived.wait()
        job.stop(drain=False)
    assert sink.values == []
    gated.gate.set()
    async with running(new_job(source, [gated, KEYED], sink, **options)):
        await sink.have(3)
    assert sorted(value[2].split("/", 2)[2] for value in sink.values) == ["0@1/0", "0@2/0", "0@3/0"]


async def test_a_rescale_before_the_snapshot_is_read_is_held_against_its_key_groups() -> None:
    options = {"snapshots": "memory://early", "max_parallelism": None}
    await new_job([1], same, Epochs(), **options | {"max_parallelism": 4}).run()
    early = asyncio.create_task((job := new_job([1, 2], same, Epochs(), **options)).run())
    await asyncio.sleep(0)
    job.rescale(5)
    with pytest.raises(ConfigError, match="max_parallelism=4"):
        await early
    assert job.progress().state == "new"


@pytest.mark.parametrize("drain", [True, False])
async def test_a_job_that_was_told_to_stop_refuses_a_rescale(drain: bool) -> None:
    job = new_job(Log(range(3)), KEYED, sink := Epochs())
    async with running(job):
        await sink.have(3)
        job.stop(drain=drain)
        with pytest.raises(JobNotRunning, match="told to stop"):
            job.rescale(2)
    async with running(job):
        await asyncio.sleep(0)
        job.rescale(2)


async def test_the_key_groups_of_a_job_are_those_of_its_newest_snapshot() -> None:
    job = new_job(Log(range(9)), KEYED, sink := Epochs(), snapshots="memory://groups")
    async with running(job):
        await sink.have(9)
    store = SnapshotStore("memory://groups", "job")
    await asyncio.to_thread(store.repartition, 2, max_parallelism=4, rewrite=True)
    async with running(job) as task:
        await eventually(lambda: task.done() or job.progress().state == "running")
        with pytest.raises(ConfigError, match="max_parallelism=4"):
            job.rescale(5)


async def test_a_drain_finishes_what_is_in_flight() -> None:
    sink, gated = Epochs(), Gated()
    job = new_job(Log([1, 2, 3]), gated, sink)
    async with running(job) as task:
        await gated.arrived.wait()
        job.stop()
        gated.gate.set()
        await task
    assert sorted(sink.values) == [1, 2, 3]


@pytest.mark.parametrize("parallelism", [1, 3])
async def test_a_rescale_loses_and_repeats_nothing(parallelism: int) -> None:
    source, sink = Log(range(30), range(30)), Epochs()
    job = new_job(source, [same, KEYED], sink, parallelism=2)
    async with running(job):
        await sink.have(10)
        job.rescale(parallelism)
        await source.append(0, *range(30, 60))
        await sink.have(90)
        await eventually(lambda: job.progress().parallelism == parallelism)
    assert len(sink.values) == 90
    assert len({value[2] for value in sink.values}) == 90


async def test_a_snapshot_waits_for_no_call_and_holds_what_is_between_steps() -> None:
    sink, gated = Epochs(), Gated()
    job = new_job(Log(range(40)), [same, Step(gated, capacity=1)], sink, snapshots="memory://between")
    async with running(job):
        await gated.arrived.wait()
        version = await job.snapshot()
        snapshot = SnapshotStore("memory://between", "job").load(version)
        assert snapshot.step_names == ("source", "same", "Gated")
        gated.gate.set()
        await sink.have(40)
    assert sorted(sink.values) == list(range(40))


async def test_a_slow_sink_pauses_the_source_and_no_cut() -> None:
    source, sink = Log(range(3)), Epochs()
    sink.opened.clear()
    job = new_job(source, same, sink)
    async with running(job):
        while job.progress().undelivered < 2:
            await source.append(0, 1)
            await asyncio.sleep(0.01)
        read = job.progress().records
        await source.append(0, *range(100))
        await job.snapshot()
        assert job.progress().records == read
        sink.opened.set()
        await sink.have(len(source.logs[0]))
    assert len(sink.values) == len(source.logs[0])


async def test_undelivered_epochs_come_first_after_a_crash() -> None:
    source, sink = Log(range(5)), Epochs()
    sink.opened.clear()
    job = new_job(source, same, sink, snapshots="memory://undelivered")
    task = asyncio.create_task(job.run())
    await eventually(lambda: sink.writes)
    await job.snapshot()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sink.epochs == {}
    sink.opened.set()
    async with running(new_job(source, same, sink, snapshots="memory://undelivered")):
        await sink.have(5)
    assert sorted(sink.values) == list(range(5))


async def test_dead_letters_have_a_sink_of_their_own() -> None:
    sink, letters = Epochs(), Epochs()

    async def picky(value: int) -> int:
        if value == 2:
            raise ValueError("no twos")
        return value

    job = new_job(range(4), Step(picky, on_error="dead_letter"), sink, dead_letters=letters)
    await job.run()
    assert sorted(sink.values) == [0, 1, 3]
    (letter,) = letters.values
    assert letter | {"attempts": 1} == letter
    assert (letter["step"], letter["value"], letter["error_message"]) == ("picky", "2", "no twos")
    assert letter["idempotency_key"].endswith("/0@3")


async def test_a_failing_element_fails_the_job() -> None:
    async def picky(value: int) -> int:
        raise ValueError(value)

    job = new_job(Log([1]), [same, picky], Epochs())
    with pytest.raises(ElementFailed, match="ValueError: 1"):
        await job.run()
    assert job.progress().state == "failed"


class Failing(AsyncFunction[Any, Any]):
    """Records its calls. That for 5 fails, or takes too long, once all others have returned, until it is repaired."""

    def __init__(self, log: list[Any], others: int, seconds: float = 0.0) -> None:
        self.log = log
        self.others = others
        self.seconds = seconds
        self.is_repaired = False

    def __copy__(self) -> Failing:
        return self  # all subtasks share it

    async def async_invoke(self, value: int, ctx: InvocationContext) -> list[int]:
        self.log.append(value)
        if value == 5:
            await eventually(lambda: len(set(self.log)) == self.others + 1)
            if not self.is_repaired:
                await asyncio.sleep(self.seconds)
                raise OSError("the service is down")
        return [value]


@pytest.mark.parametrize("seconds", [0.0, 3600.0], ids=["fails", "times out"])
@pytest.mark.parametrize("parallelism", [1, 3])
async def test_after_the_failure_of_an_element_no_other_call_is_repeated(parallelism: int, seconds: float) -> None:
    function, sink = Failing([], 9, seconds), Epochs()
    retry = FixedDelayRetry(delay=0.0, max_attempts=2)
    step = Step(function, retry=retry, timeout=0.3 if seconds else None, key_by=lambda value: value)
    job = new_job(range(10), [same, step], sink, parallelism=parallelism, snapshot_interval=3600.0)
    with pytest.raises((ElementFailed, AsyncTimeoutError)):
        await job.run()
    attempts = 1 if seconds else 2
    assert sorted(function.log) == sorted([*range(10), *[5] * (attempts - 1)])
    assert job.progress().state == "failed"
    assert sorted(sink.values) == [0, 1, 2, 3, 4, 6, 7, 8, 9], "what has returned is delivered"

    function.log.clear()
    with pytest.raises((ElementFailed, AsyncTimeoutError)):
        function.others = 0
        await job.run()
    assert function.log == [5] * attempts, "it has all its attempts and all its time again"

    function.is_repaired = True
    await job.run()
    assert function.log == [5] * (attempts + 1)
    assert sorted(sink.values) == list(range(10))


async def test_a_budget_that_is_spent_loses_no_call_and_counts_on_with_a_larger_one() -> None:
    async def called(value: int) -> int:
        log.append(value)
        return value

    def job(limit: int) -> Job:
        budget = Resilience(budget=Budget(limit, unit="calls", cost=lambda value: 1))
        return new_job(range(10), Step(called, resilience=budget), sink, snapshots=snapshots, snapshot_interval=3600.0)

    log: list[int] = []
    sink, snapshots = Epochs(), f"memory://{uuid.uuid4().hex}"
    for limit, calls in ((4, 4), (7, 7), (7, 7), (20, 10)):
        if calls < 10:
            with pytest.raises(ElementFailed, match="budget"):
                await job(limit).run()
        else:
            await job(limit).run()
        assert sorted(log) == list(range(calls))
        assert sorted(sink.values) == log


async def test_the_failure_of_an_element_is_raised_also_if_the_last_cut_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError("the disk is full")

    monkeypatch.setattr(Committer, "commit_cut", full)
    job = new_job([5], Failing([], 0), Epochs(), snapshot_interval=3600.0)
    with pytest.raises(ElementFailed) as failed:
        await job.run()
    assert str(failed.value.__context__) == "the disk is full"


async def test_a_sink_that_does_not_close_hides_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        raise OSError("no")

    async def picky(value: int) -> int:
        raise ValueError(value)

    sink = Epochs()
    sink.close = broken  # type: ignore[method-assign]
    with pytest.raises(ElementFailed):
        await new_job([1], picky, sink).run()
    assert "did not close well" in caplog.text
    with pytest.raises(OSError, match="no"):
        await new_job([1], same, sink).run()


@pytest.mark.parametrize("of_its_own_task", [False, True])
@pytest.mark.parametrize("where", ["read", "partitions", "write"])
async def test_a_cancellation_by_a_client_is_heard(where: str, of_its_own_task: bool) -> None:
    async def cancelled(*_: Any) -> Any:
        task = asyncio.current_task()
        if task is None or not of_its_own_task:
            raise asyncio.CancelledError
        task.cancel()
        await asyncio.sleep(0)

    source, sink = Log(range(3)), Epochs()
    setattr(sink if where == "write" else source, where, cancelled)
    if where == "read":

        async def read(*_: Any) -> Any:
            yield 1, None, 1
            await cancelled()

        source.read = read  # type: ignore[method-assign]
    with pytest.raises(ConnectorCancelled):
        async with asyncio.timeout(30):
            await new_job(source, same, sink).run()


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("read", "reading partition 0 of Log"),
        ("partitions", "looking for partitions of Log"),
        ("write", "writing epoch 1 to Epochs"),
        ("open", "opening Epochs"),
    ],
)
@pytest.mark.parametrize("way", ["coroutine", "plain"])
async def test_an_exit_in_a_source_or_sink_names_it(where: str, told: str, way: str) -> None:
    def plain(*_: Any) -> Any:
        raise SystemExit(3)

    async def coroutine(*_: Any) -> Any:
        raise SystemExit(3)

    source, sink = Log(range(3)), Epochs()
    setattr(source if hasattr(source, where) and where != "open" else sink, where, locals()[way])
    if where == "read":

        def blocking(*_: Any) -> Iterator[Any]:
            yield 1, None, 1
            raise SystemExit(3)

        async def asynchronous(*_: Any) -> AsyncIterator[Any]:
            yield 1, None, 1
            raise SystemExit(3)

        source.read = blocking if way == "plain" else asynchronous  # type: ignore[assignment,method-assign]
    with pytest.raises(ConnectorInterrupted, match=f"^{told} ended with SystemExit: 3.* start again") as raised:
        await new_job(source, same, sink).run()
    assert isinstance(raised.value.__cause__, SystemExit)
    assert pickle.loads(pickle.dumps(raised.value)).what == told


@pytest.mark.parametrize("raised", [GeneratorExit, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["open", "write", "close"])
@pytest.mark.parametrize("kind", [Log, Epochs])
async def test_whatever_a_source_or_sink_raises_fails_the_job_by_name(
    kind: type[Any], where: str, raised: type[BaseException]
) -> None:
    async def interrupted(*_: Any) -> Any:
        raise raised("no")

    source, sink = Log(range(3), bounded=True), Epochs()
    one: Any = source if kind is Log else sink
    where = "read" if (kind, where) == (Log, "write") else where
    setattr(one, where, reads(raised) if where == "read" else interrupted)
    with pytest.raises(ConnectorInterrupted, match=rf"ing .*{kind.__name__} ended with {raised.__name__}: no"):
        await new_job(source, same, sink).run()


def reads(raised: type[BaseException]) -> Any:
    async def read(*_: Any) -> AsyncIterator[Any]:
        yield 1, None, 1
        raise raised("no")

    return read


async def test_unknown_steps_are_refused() -> None:
    await new_job(range(3), Step(Counting(), name="old", key_by=str), Epochs(), snapshots="memory://renamed").run()
    with pytest.raises(IncompatibleSnapshot, match="old"):
        await new_job(range(3), Step(Counting(), key_by=str), Epochs(), snapshots="memory://renamed").run()


async def test_a_step_that_holds_nothing_may_go() -> None:
    source, sink, options = Log(range(3), bounded=True), Epochs(), {"snapshots": "memory://shorter"}
    await new_job(source, [same, KEYED], sink, **options).run()
    await source.append(0, 3, 4, 5)
    await new_job(source, [KEYED], sink, **options).run()
    assert {value[:2] for value in sink.values} == expected(6)


async def test_the_parallelism_of_a_repartition_stays() -> None:
    options: dict[str, Any] = {"snapshots": "memory://repartitioned"}
    await new_job(range(3), KEYED, Epochs(), parallelism=2, **options).run()
    SnapshotStore("memory://repartitioned", "job").repartition(5)
    job = new_job(range(3), KEYED, Epochs(), **options)
    await job.run()
    assert job.progress().parallelism == 5
    SnapshotStore("memory://repartitioned", "job").repartition(3)
    with pytest.warns(RepartitionUndone, match="3 subtasks"):
        await new_job(range(3), KEYED, Epochs(), parallelism=2, **options).run()


async def test_a_first_start_beside_others_warns_of_nothing() -> None:
    options: dict[str, Any] = {"snapshots": "memory://beside"}
    await new_job(range(3), KEYED, Epochs(), job_id="jobs", **options).run()
    with warnings.catch_warnings(record=True) as warned:
        await new_job(range(3), KEYED, sink := Epochs(), **options).run()

    assert warned == []
    assert len(sink.values) == 3


def test_arguments() -> None:
    for source, steps, sink, options in (
        (3, same, print, {}),
        ([], [], print, {}),
        ([], same, 7, {}),
        ([], [KEYED, KEYED], print, {}),
        ([], same, print, {"dead_letters": 7}),
        ([], Step(same, on_error="dead_letter"), print, {}),
        ([], same, print, {"parallelism": 0}),
        ([], same, print, {"snapshot_interval": 0}),
        ([], same, print, {"retention": 7}),
    ):
        with pytest.raises(ConfigError):
            new_job(source, steps, sink, **options)


async def test_what_needs_a_running_job() -> None:
    source = Log()
    job = new_job(source, same, Epochs())
    with pytest.raises(JobNotRunning):
        job.stop()
    with pytest.raises(JobNotRunning):
        await job.snapshot()
    async with running(job):
        await asyncio.sleep(0)
        with pytest.raises(JobAlreadyRunning):
            await job.run()
        await eventually(lambda: job.progress().state == "running")
