"""Operators that outlive micro-batches: what they save, what ends them, and what is left when they are killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import SparkFiles, cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction, ElementFailed
from async_op.hosting.process.host_files import files_of
from async_op.spark import AsyncPipeline, PipelineQuery
from async_op.spark.epoch import fleet
from keygroups import ValueState
from snapshots.host_logs import new_run_id
from tests.hosting.kit import is_running, wait_until
from tests.spark.runs import Gate, PipelineRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = ValueState("count", pa.int64(), default=0)
ROWS = 12
"""Of each file."""


class Count(AsyncFunction):
    """Numbers the rows of each key. What it does is logged.

    The call of a row in `held` lasts until the sink has been called so often.
    """

    states = (COUNT,)

    def __init__(self, log: Path, gate: Gate) -> None:
        self.log = log
        self.gate = gate
        self.held: dict[int, int] = {}
        self.endless: frozenset[int] = frozenset()
        self.wrong: frozenset[int] = frozenset()
        self.property: Any = None
        self.shared_file: str | None = None

    def note(self, what: object) -> None:
        with self.log.open("a") as log:
            log.write(json.dumps(what) + "\n")

    def read_shared(self) -> str:
        return Path(SparkFiles.get(self.shared_file)).read_text()

    async def open(self, runtime: Any) -> None:
        self.note("open" if self.shared_file is None else self.read_shared())

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        number = value["id"]
        self.note(number)
        await asyncio.sleep(3600 if number in self.endless else 0)
        await self.gate.passed(self.held.get(number, 0))
        if number in self.wrong:
            raise ValueError("the service said no")
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        self.note(["returned", number])
        return [(number, count.value())]

    async def close(self) -> None:
        self.note("close")


class Run(PipelineRun):
    """Counts rows of users, of a file at a time."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.log = folder / "log"
        self.log.touch()
        (folder / "in").mkdir()
        self.count = Count(self.log, Gate(folder / "sinks"))
        settings = {"key_by": "user", "output_schema": "id bigint, count bigint", "operator_id": "count"}
        settings |= {"barrier_timeout": 0.05, "capacity": 100}
        super().__init__(spark, folder, self.count, "id bigint, user string", **settings)
        self.files = 0

    def write_rows(self) -> None:
        ids = range(self.files * ROWS, (self.files + 1) * ROWS)
        users = [self.user_of(n) for n in ids]
        columns = {"id": pa.array(ids, pa.int64()), "user": pa.array(users, pa.string())}
        # Spark must not find half a file.
        path = self.folder / f"{self.files}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (self.files, self.files))
        path.rename(self.folder / "in" / path.name)
        self.files += 1

    def user_of(self, number: int) -> str:
        """Return the key of a row; a call that never returns holds up nobody else."""
        return "alone" if number in self.count.endless else f"u{number % 5}"

    def start_endless(self, pipeline: AsyncPipeline) -> PipelineQuery:
        checkpoint = self.folder / "checkpoint"
        return pipeline.start(self.stream(maxFilesPerTrigger=1), self.sink, checkpoint_location=checkpoint)

    def wait_for(self, rows: int) -> None:
        wait_until(lambda: len(self.rows) >= rows, seconds=120)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(row for epoch in list(self.delivered.values()) for row in epoch)

    def hold_all(self, sinks: int = 1) -> None:
        """Hold the calls of each file until its epoch is delivered, or so many epochs are."""
        self.count.held = {n: max(sinks, 1 + n // ROWS) for n in range(self.files * ROWS)}

    def logged(self) -> list[Any]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def calls(self) -> Counter[int]:
        return Counter(what for what in self.logged() if isinstance(what, int))

    def assert_exact(self) -> None:
        users = [self.user_of(n) for n in range(self.files * ROWS)]
        numbered = [(n, users[: n + 1].count(user)) for n, user in enumerate(users)]
        assert self.rows == [row for row in numbered if row[0] not in self.count.endless]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    run = Run(spark, tmp_path)
    yield run
    run.stop()


def hosts_of(pipeline: AsyncPipeline) -> list[int]:
    wait_until(lambda: len(pipeline.progress()) > 0, seconds=120)  # it is told after the sink
    processes = [host.rsplit(":", 1) for host in pipeline.progress()[-1].hosts]
    assert {machine for machine, _ in processes} <= {socket.gethostname()}
    return [int(number) for _, number in processes]


def test_calls_longer_than_micro_batches_are_made_once(run: Run) -> None:
    for _ in range(6):
        run.write_rows()
    run.hold_all()
    pipeline = run.run()

    run.assert_exact()
    assert set(run.calls().values()) == {1}
    epochs = pipeline.progress()
    assert any(epoch.in_flight for epoch in epochs[:-1])
    assert {epoch.overtime_milliseconds for epoch in epochs} == {0}


@pytest.mark.thorough
def test_rows_that_have_no_room_hold_up_the_next_batch(run: Run) -> None:
    for _ in range(3):
        run.write_rows()
    # So many epochs could bring all rows, if none waited for room.
    run.hold_all(sinks=4)
    pipeline = run.run(capacity=1)

    run.assert_exact()
    assert set(run.calls().values()) == {1}
    batches = [epoch.in_flight for epoch in pipeline.progress() if epoch.kind == "batch"]
    assert max(batches) <= 2 * ROWS + 4, "rows of one batch, what the operators have room for, and a reserve"


def test_a_rescale_takes_effect_while_rows_wait_for_room(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write_rows()
    run.write_rows()
    run.hold_all(sinks=6)
    pipeline = run.pipeline(parallelism=1, capacity=1)
    sink = run.sink

    def rescaling(batch: DataFrame, epoch: int) -> None:
        sink(batch, epoch)
        if epoch == 2:  # the rows of epoch 1 wait for room, and the second file for them
            pipeline.rescale(2)

    monkeypatch.setattr(run, "sink", rescaling)
    run.start(pipeline).awaitTermination()

    run.assert_exact()
    epochs = [(epoch.kind, epoch.parallelism) for epoch in pipeline.progress()]
    assert epochs[0] == ("batch", 1)
    assert ("drain", 2) in epochs[: epochs.index(("batch", 2))]


def test_a_function_is_opened_once_for_each_host_and_closed_at_its_end(run: Run) -> None:
    for _ in range(5):
        run.write_rows()
    pipeline = run.run()

    run.assert_exact()
    assert len({epoch.hosts for epoch in pipeline.progress()}) == 1
    hosts = hosts_of(pipeline)
    assert len(hosts) == 2
    wait_until(lambda: not any(map(is_running, hosts)))
    assert Counter(what for what in run.logged() if isinstance(what, str)) == {"open": 2, "close": 2}


@pytest.mark.thorough
def test_there_may_be_more_subtasks_than_tasks_at_once(run: Run) -> None:
    for _ in range(3):
        run.write_rows()
    pipeline = run.run(parallelism=5)

    run.assert_exact()
    assert {epoch.resident for epoch in pipeline.progress()} == {5}
    assert run.logged().count("open") == 5


@pytest.mark.thorough
def test_results_that_come_without_input_have_an_epoch_of_their_own(run: Run) -> None:
    run.write_rows()
    run.hold_all()
    pipeline = run.pipeline()
    query = run.start_endless(pipeline)
    run.wait_for(ROWS)
    query.stop()

    run.assert_exact()
    assert [epoch.kind for epoch in pipeline.progress()] == ["batch", *["drain"] * (len(pipeline.progress()) - 1)]
    assert set(run.calls().values()) == {1}


def test_a_host_that_is_killed_is_replaced_and_only_its_calls_are_repeated(run: Run) -> None:
    run.count.endless = frozenset({3})
    run.write_rows()
    pipeline = run.pipeline()
    query = run.start_endless(pipeline)
    run.wait_for(ROWS - 1)
    lost = hosts_of(pipeline)
    for pid in lost:
        os.kill(pid, signal.SIGKILL)
    run.write_rows()
    run.wait_for(2 * ROWS - 1)
    query.stop()

    assert not set(hosts_of(pipeline)) & set(lost)
    run.assert_exact()
    calls = run.calls()
    assert calls.pop(3) >= 2
    assert set(calls.values()) == {1}


def test_a_query_that_is_stopped_leaves_no_process_and_delivers_what_has_come(run: Run) -> None:
    run.write_rows()
    run.hold_all()
    pipeline = run.pipeline()
    query = run.start_endless(pipeline)
    hosts = hosts_of(pipeline)
    wait_until(lambda: sum(isinstance(what, list) for what in run.logged()) == ROWS)
    query.stop()

    run.assert_exact()
    assert set(run.calls().values()) == {1}
    wait_until(lambda: not any(map(is_running, hosts)))


def test_who_waits_for_a_query_that_is_stopped_makes_no_call_again(run: Run) -> None:
    run.write_rows()
    run.count.endless = frozenset({ROWS - 1})  # the last one: no other waits behind it
    query = run.start_endless(run.pipeline())
    run.wait_for(ROWS - 1)
    query.stop()

    assert query.awaitTermination(120)
    run.assert_exact()
    assert run.calls()[ROWS - 1] == 1


@pytest.mark.thorough
def test_a_failure_between_two_epochs_fails_the_query(run: Run) -> None:
    run.write_rows()
    run.count.wrong, run.count.held = frozenset({5}), {5: 1}
    query = run.start_endless(run.pipeline())

    with pytest.raises(ElementFailed, match="the service said no"):
        query.awaitTermination()
    assert isinstance(query.exception(), ElementFailed)
    assert run.calls()[5] == 1


def test_a_start_that_fails_leaves_a_pipeline_that_can_be_started(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write_rows()
    pipeline = run.pipeline()

    def refuse(*_: object) -> None:
        raise TypeError("Spark refuses the query")

    with monkeypatch.context() as patch, pytest.raises(TypeError, match="Spark refuses"):
        patch.setattr(PipelineQuery, "start", refuse)
        run.start(pipeline)
    run.start(pipeline).awaitTermination()

    run.assert_exact()


def test_with_another_parallelism_only_calls_under_way_are_repeated(run: Run) -> None:
    for _ in range(3):
        run.write_rows()
    run.hold_all(sinks=2)
    pipeline = run.pipeline()
    sink = run.sink

    def rescaling(batch: DataFrame, epoch: int) -> None:
        sink(batch, epoch)
        pipeline.rescale(3)

    run.sink = rescaling  # type: ignore[method-assign]
    run.start(pipeline).awaitTermination()

    run.assert_exact()
    epochs = pipeline.progress()
    assert {epoch.parallelism for epoch in epochs} == {2, 3}
    repeated = sum(epoch.reinvoked for epoch in epochs)
    assert 0 < repeated <= ROWS
    # Some of them had waited for their key, and were not called for before.
    assert 3 * ROWS < run.calls().total() <= 3 * ROWS + repeated


def test_operators_that_are_not_resident_run_in_tasks(run: Run) -> None:
    run.write_rows()
    run.write_rows()
    pipeline = run.run(resident=False)

    run.assert_exact()
    assert {(epoch.resident, epoch.hosts) for epoch in pipeline.progress()} == {(0, ())}


def test_where_no_host_starts_operators_run_in_tasks_and_the_log_says_so_once(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = new_run_id("a folder that others can write to")
    monkeypatch.setattr(fleet, "new_run_id", lambda uri: run_id)
    folder = files_of(run_id, "", 0).folder
    folder.chmod(0o777)
    for _ in range(3):
        run.write_rows()
    pipeline = run.run()
    folder.rmdir()

    run.assert_exact()
    assert {(epoch.resident, epoch.hosts) for epoch in pipeline.progress()} == {(0, ())}
    assert caplog.text.count(f"{folder} is open to others") == 1


def test_files_of_the_session_are_there_for_the_function(run: Run) -> None:
    file = run.folder / f"{run.folder.name}.txt"
    file.write_text("of the session")
    run.spark.sparkContext.addFile(str(file))
    run.count.shared_file = file.name
    run.write_rows()
    pipeline = run.run()

    run.assert_exact()
    assert {epoch.resident for epoch in pipeline.progress()} == {2}
    assert run.logged().count("of the session") == 2


def test_a_function_with_what_only_tasks_have_runs_in_tasks(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.write_rows()
    run.count.property = run.spark.sparkContext.broadcast([1, 2, 3])
    pipeline = run.run()

    run.assert_exact()
    assert {epoch.resident for epoch in pipeline.progress()} == {0}
    assert "a broadcast variable" in caplog.text


def test_a_restart_continues_with_what_was_in_flight_though_no_input_comes(run: Run) -> None:
    run.write_rows()
    run.hold_all(sinks=run.gate.sinks_max)
    pipeline = run.pipeline()
    query = run.start_endless(pipeline)
    for pid in hosts_of(pipeline):
        os.kill(pid, signal.SIGKILL)
    query.stop()

    run.gate.open()
    query = run.start_endless(run.pipeline())
    run.wait_for(ROWS)
    query.stop()
    run.assert_exact()
