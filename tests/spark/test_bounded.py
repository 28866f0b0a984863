"""Bounded runs: they fill the state through the pipeline itself, exactly once, and a query goes on afterwards."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction
from async_op.spark import AsyncPipeline, UnfinishedRun, UnrelatedHistories, bounded
from async_op.spark.epoch import runner as runners
from keygroups import ConfigError, ValueState
from snapshots import Snapshot, WriterFenced
from snapshots.inputs import begin_storing, load_input
from tests.quick import first_is_quick
from tests.spark.runs import Gate, PipelineRun, pipeline_of_ids

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

COUNT = ValueState("count", pa.int64(), default=0)
ROWS, KEYS, CHUNK = 100, 7, 40


class Count(AsyncFunction):
    """Numbers the rows of each key; every tenth call outlasts the epoch of its chunk. Calls are logged."""

    states = (COUNT,)

    def __init__(self, log: Path, gate: Gate) -> None:
        self.log = log
        self.gate = gate

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        with self.log.open("a") as log:
            log.write(json.dumps([value["id"], ctx.idempotency_key]) + "\n")
        count = ctx.state(COUNT)
        if value["id"] % 10 == 0:
            await self.gate.passed(1 + value["id"] // CHUNK)
        count.update(count.value() + 1)
        return [(value["id"], value["user"], count.value())]


class Run(PipelineRun):
    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.log = folder / "calls"
        self.log.touch()
        super().__init__(
            spark,
            folder,
            Count(self.log, Gate(folder / "sinks", ROWS // CHUNK)),  # the last chunk waits for its calls
            "id bigint, user string",
            key_by="user",
            output_schema="id bigint, user string, count bigint",
            operator_id="count",
            barrier_timeout=0.1,
            max_parallelism=16,
        )

    def rows_of(self, first: int, end: int) -> DataFrame:
        return self.spark.range(first, end, 1, 3).selectExpr("id", f"concat('u', id % {KEYS}) as user")

    def backfill(self, pipeline: AsyncPipeline | None = None, **options: Any) -> None:
        arguments: dict[str, Any] = {"df": self.rows_of(0, ROWS), "run_id": "history", "chunk_rows": CHUNK}
        (pipeline or self.pipeline()).run(sink=self.sink, **(arguments | options))

    def calls(self) -> list[tuple[int, str]]:
        return [tuple(json.loads(line)) for line in self.log.read_text().splitlines()]

    def assert_exact(self, rows: int = ROWS) -> None:
        """Every row is delivered once, with its number in the order of ids; nothing is in flight."""
        found = sorted(row for epoch in self.delivered.values() for row in epoch)
        assert found == [(n, f"u{n % KEYS}", n // KEYS + 1) for n in range(rows)]
        latest = self.store.latest()
        assert latest is not None
        assert latest.in_flight_count == 0

    def inputs(self) -> list[str]:
        """Return what is left of stored inputs."""
        files = (self.folder / "snapshots" / "count").rglob("*")
        return [
            path.name for path in files if path.is_file() and ("input" in path.name or path.parent.name == "inputs")
        ]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    run = Run(spark, tmp_path)
    yield run
    run.stop()


def test_a_run_fills_the_state_once_and_a_query_continues_without_adopting(run: Run) -> None:
    pipeline = run.pipeline()
    run.backfill(pipeline)
    run.assert_exact()
    epochs = pipeline.progress()
    chunks = [epoch.rows for epoch in epochs if epoch.kind == "chunk"]
    assert (len(chunks), sum(chunks)) == (3, ROWS)
    assert max(chunks) <= CHUNK
    assert epochs[-1].in_flight == 0
    assert run.inputs() == []
    versions, calls = run.store.versions(), run.calls()
    run.backfill()
    assert (run.store.versions(), run.calls()) == (versions, calls), "a finished run does nothing, and claims nothing"

    run.write_file(run.rows_of(ROWS, ROWS + 20))
    run.run(parallelism=3)
    run.assert_exact(ROWS + 20)
    position = run.store.load().source_position
    assert position is not None
    assert position["finished_runs"] == ["history"]
    versions = run.store.versions()
    run.backfill()
    assert run.store.versions() == versions


def test_while_some_calls_of_a_run_take_long_the_others_are_delivered_and_a_retry_repeats_none_of_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "_DRAIN_SECONDS", 1.0)
    log, gate = tmp_path / "calls", Gate(tmp_path / "sinks")

    async def held(row: dict[str, Any]) -> tuple[int]:
        with log.open("a") as calls:
            calls.write(f"{row['id']}\n")
        if row["id"] % 2:
            await gate.passed(2)
        return (row["id"],)

    delivered: list[int] = []

    def sink(batch: DataFrame, epoch: int) -> None:
        gate.count()
        if gate.counted() == 2:
            raise ConnectionError("away")
        delivered.extend(row["id"] for row in batch.collect())

    def run() -> None:
        pipeline_of_ids(held, tmp_path, "held").run(spark.range(20), sink, run_id="history")

    with pytest.raises(ConnectionError):
        run()
    assert set(delivered) >= set(range(0, 20, 2))
    run()
    assert sorted(delivered) == list(range(20))
    calls = log.read_text().split()
    assert all(calls.count(str(even)) == 1 for even in range(0, 20, 2))


DRIVER_POINTS = [
    "while the input is stored",
    "after the input is stored",
    "before the subtasks",
    "after the subtasks",
    "after the manifest",
    "in the sink",
    "after the sink",
    "before the input is removed",
]


class Crash(RuntimeError):
    """The driver is gone."""


class Fault:
    """Raises at one point, once: of an epoch, in the n-th one."""

    def __init__(self, point: str, epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.point, self.epoch, self.now, self.happened = point, epoch, 0, False
        wrapped = monkeypatch.setattr
        stored_input, remove_input = bounded.stored_input, bounded.remove_input
        run, subtasks, commit = (getattr(runners.EpochRunner, name) for name in ("_run", "_run_subtasks", "_commit"))

        def storing(*arguments: Any) -> Any:
            if self.point == "while the input is stored" and not self.happened:
                begin_storing(arguments[0], arguments[2], "0123456789abcdef")
                self.at("while the input is stored", once=True)
            stored = stored_input(*arguments)
            self.at("after the input is stored", once=True)
            return stored

        def removing(*arguments: Any) -> None:
            self.at("before the input is removed", once=True)
            remove_input(*arguments)

        def before(*arguments: Any) -> None:
            self.now += 1
            self.at("before the subtasks")
            run(*arguments)

        def after(function: Callable[..., Any], point: str) -> Callable[..., Any]:
            def traced(*arguments: Any) -> Any:
                result = function(*arguments)
                self.at(point)
                return result

            return traced

        wrapped(bounded, "stored_input", storing)
        wrapped(bounded, "remove_input", removing)
        wrapped(runners.EpochRunner, "_run", before)
        wrapped(runners.EpochRunner, "_run_subtasks", after(subtasks, "after the subtasks"))
        wrapped(runners.EpochRunner, "_commit", after(commit, "after the manifest"))

    def at(self, point: str, *, once: bool = False) -> None:
        if not self.happened and point == self.point and (once or self.now == self.epoch):
            self.happened = True
            raise Crash(point)

    def around(self, sink: Callable[..., None]) -> Callable[..., None]:
        def traced(batch: DataFrame, epoch: int) -> None:
            self.at("in the sink")
            sink(batch, epoch)
            self.at("after the sink")

        return traced


@pytest.mark.parametrize("point", first_is_quick(DRIVER_POINTS))
def test_a_run_that_is_stopped_anywhere_continues_exactly_once(
    run: Run, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = 1 + DRIVER_POINTS.index(point) % 3
    fault = Fault(point, epoch, monkeypatch)
    sink = run.sink
    run.sink = fault.around(sink)  # type: ignore[method-assign]
    with pytest.raises(Crash):
        run.backfill()
    run.store.latest() and run.store.collect_garbage(keep_last=1, min_age=0, dry_run=False)
    other = run.rows_of(0, ROWS).orderBy("user")  # other rows in other chunks, if they were not stored
    run.backfill(run.pipeline(parallelism=3), df=other, chunk_rows=30)
    run.assert_exact()
    ids = dict[int, set[str]]()
    for row, key in run.calls():
        ids.setdefault(row, set()).add(key)
    # What is stored has ids; input that was not stored yet has made no calls.
    assert {len(found) for found in ids.values()} == {1}
    assert run.inputs() == []


def test_a_retry_has_the_same_rows_as_the_first_attempt(run: Run) -> None:
    run.fail_sink_at = 1
    with pytest.raises(OSError, match="the sink is down"):
        run.backfill()
    assert load_input(run.store.folder, "history") is not None
    with pytest.raises(ConfigError, match="other columns"):
        run.backfill(df=run.rows_of(0, ROWS).selectExpr("*", "1 as more"))
    run.backfill(df=run.rows_of(0, 5))
    run.assert_exact()


@pytest.mark.thorough
def test_what_an_unfinished_run_does_not_allow(run: Run) -> None:
    run.fail_sink_at = 1
    with pytest.raises(OSError, match="the sink is down"):
        run.backfill()
    with pytest.raises(UnfinishedRun, match=r"1 of 3 chunks of run 'history'.*run_id='history'"):
        run.backfill(run_id="another")
    run.write_file(run.rows_of(ROWS, ROWS + 10))
    unfinished = r"1 of 3 chunks of run 'history'.*finish the run: run\(…, run_id='history'\), or .*adopt='state'"
    with pytest.raises(UnrelatedHistories, match=unfinished):
        run.run()
    arguments = {"checkpoint_location": run.folder / "checkpoint", "trigger": {"availableNow": True}}
    run.pipeline().start(run.stream(), run.sink, adopt="state", **arguments).awaitTermination()
    run.backfill(df=run.rows_of(0, 0), run_id="another")
    run.store.collect_garbage(keep_last=1, min_age=0, dry_run=False)
    assert run.store.verify().ok


@pytest.mark.thorough
def test_a_run_between_two_queries_keeps_the_place_of_the_query_and_fences_it(run: Run) -> None:
    run.write_file(run.rows_of(0, 50))
    first = run.pipeline()
    query = first.start(run.stream(), run.sink, checkpoint_location=run.folder / "checkpoint")
    while not run.delivered:
        query.awaitTermination(1)
    run.backfill(df=run.rows_of(50, ROWS))
    run.write_file(run.rows_of(ROWS, ROWS + 10))
    with pytest.raises(WriterFenced):
        query.awaitTermination(240)
    run.run()
    run.assert_exact(ROWS + 10)


def test_a_run_without_rows_finishes_and_its_dead_state_is_collected(run: Run) -> None:
    run.backfill(df=run.rows_of(0, 0))
    assert run.store.load().in_flight_count == 0
    assert run.store.load().source_position["finished_runs"] == ["history"]  # type: ignore[index]
    assert run.inputs() == []


def test_collections_keep_the_input_of_runs_that_continue(run: Run) -> None:
    run.fail_sink_at = 1
    with pytest.raises(OSError, match="the sink is down"):
        run.backfill()
    before = run.inputs()
    assert len(before) >= 4
    begin_storing(run.store.folder, "next", "0123456789abcdef")
    report = run.store.collect_garbage(keep_last=1, min_age=0, dry_run=False)
    assert not [name for name in report.files if "input" in name]
    assert len(run.inputs()) == len(before) + 1


WRONG: dict[str, tuple[Callable[[Run], dict[str, Any]], str]] = {
    "no DataFrame": (lambda _: {"df": None}, "df=None: pass a DataFrame"),
    "a stream": (lambda run: {"df": run.stream()}, "it is streaming"),
    "no sink": (lambda _: {"sink": "table"}, "sink='table'"),
    "a path": (lambda _: {"run_id": "../x"}, r"run_id='../x'"),
    "no name": (lambda _: {"run_id": ""}, "run_id=''"),
    "no rows in a chunk": (lambda _: {"chunk_rows": 0}, "chunk_rows=0"),
    "no key column": (lambda run: {"df": run.spark.range(3)}, "key_by='user'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_can_never_work_is_refused_by_run(run: Run, case: str) -> None:
    wrong, reason = WRONG[case]
    right: dict[str, Any] = {"df": run.rows_of(0, 3), "sink": run.sink, "run_id": "r"}
    (run.folder / "in").mkdir()
    with pytest.raises(ConfigError, match=reason):
        run.pipeline().run(**(right | wrong(run)))
    assert run.store.versions() == []


def test_a_run_may_have_event_time_without_a_watermark(run: Run) -> None:
    rows = run.rows_of(0, ROWS).selectExpr("*", f"timestamp_seconds({ROWS} - id) as at")
    pipeline = run.pipeline(event_time="at", order_by=None)
    run.backfill(pipeline, df=rows)
    chunks = [epoch for epoch in pipeline.progress() if epoch.kind == "chunk"]
    assert [epoch.watermark for epoch in chunks] == [None, CHUNK * 1000, 2 * CHUNK * 1000]
    latest: Snapshot = run.store.load()
    assert latest.in_flight_count == 0
