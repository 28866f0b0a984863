"""Chains: the outputs of one pipeline are the input of the next, epoch by epoch, exactly once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction
from async_op.epochs.position import BEGINNING, EpochRef, SourcePosition
from async_op.spark import AsyncPipeline, UnrelatedHistories, UnrelatedPipelines
from async_op.spark.epoch import delivery
from async_op.spark.epoch import runner as runners
from async_op.spark.epoch.history import missed_epochs
from keygroups import ConfigError, ValueState
from snapshots import SnapshotStore
from tests.snapshot_kit import new_store, parts
from tests.spark.runs import Gate, PipelineRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = ValueState("count", pa.int64(), default=0)
TOTAL = ValueState("total", pa.int64(), default=0)
FILES, ROWS_PER_FILE, KEYS = 3, 40, 5
ROWS = FILES * ROWS_PER_FILE
SINKS_MAX = FILES - 1
"""As often is the sink called before the end, where an epoch waits for all of its calls."""


class Logged(AsyncFunction):
    """Logs its calls. Of each twenty rows, the call of one outlasts the epoch of its file."""

    def __init__(self, log: Path, gate: Gate, slow: int = 0) -> None:
        self.log = log
        self.gate = gate
        self.slow = slow

    async def call(self, value: dict[str, Any], ctx: Any) -> None:
        with self.log.open("a") as log:
            log.write(json.dumps([value["id"], ctx.idempotency_key]) + "\n")
        if value["id"] % 20 == self.slow:
            await self.gate.passed(1 + value["id"] // ROWS_PER_FILE)


class Count(Logged):
    """Numbers the rows of each user."""

    states = (COUNT,)

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        await self.call(value, ctx)
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(value["id"], value["user"], count.value())]


class Total(Logged):
    """Adds up the ids of each parity."""

    states = (TOTAL,)

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        await self.call(value, ctx)
        total = ctx.state(TOTAL)
        total.update(total.value() + value["id"])
        return [(value["id"], value["count"], total.value())]


class Run(PipelineRun):
    """Counts by user, then totals by the number that the first has given; both log their calls."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.logs = folder / "first", folder / "second"
        for log in self.logs:
            log.touch()
        super().__init__(
            spark,
            folder,
            Count(self.logs[0], Gate(folder / "sinks", SINKS_MAX)),
            "id bigint, user string",
            key_by="user",
            output_schema="id bigint, user string, count bigint",
            operator_id="count",
            barrier_timeout=0.1,
            max_parallelism=16,
        )

    def write_input(self) -> None:
        for n in range(FILES):
            rows = self.spark.range(n * ROWS_PER_FILE, (n + 1) * ROWS_PER_FILE)
            self.write_file(rows.selectExpr("id", f"concat('u', id % {KEYS}) as user"))

    def second(self, **options: Any) -> AsyncPipeline:
        common: dict[str, Any] = {
            "key_by": "count",
            "output_schema": "id bigint, count bigint, total bigint",
            "snapshots": self.folder / "snapshots",
            "operator_id": "total",
            "parallelism": 2,
            "max_parallelism": 16,
            "barrier_timeout": 0.1,
        }
        settings = common | options
        # Another row than in the first pipeline: one that comes late waits for nothing in the second.
        gate = Gate(self.gate.path, 0 if settings["barrier_timeout"] is None else SINKS_MAX)
        return AsyncPipeline(Total(self.logs[1], gate, slow=10), **settings)

    def chain(self, first: int = 2, second: int = 2) -> AsyncPipeline:
        return self.pipeline(parallelism=first).then(self.second(parallelism=second))

    def run_chain(self, first: int = 2, second: int = 2) -> AsyncPipeline:
        chain = self.chain(first, second)
        self.start(chain).awaitTermination()
        return chain

    def calls(self, number: int) -> list[tuple[int, str]]:
        return [tuple(json.loads(line)) for line in self.logs[number].read_text().splitlines()]

    @property
    def stores(self) -> tuple[SnapshotStore, SnapshotStore]:
        return self.store, SnapshotStore(self.folder / "snapshots", "total")

    def assert_exact(self) -> None:
        """Every row has come out once, both states are those of all rows, and ids of calls are the rows' own."""
        rows = [row for epoch in self.delivered.values() for row in epoch]
        assert sorted(row[0] for row in rows) == list(range(ROWS))
        assert all(row[1] == row[0] // KEYS + 1 for row in rows)
        for count in {row[1] for row in rows}:
            assert max(row[2] for row in rows if row[1] == count) == sum(row[0] for row in rows if row[1] == count)
        for store in self.stores:
            assert store.load().in_flight_count == 0
            assert store.verify().ok
        first, second = (SourcePosition.of(store.latest()) for store in self.stores)
        assert second.upstream == first.ref
        assert (second.query_id, second.batch_id) == (None, None)
        for number in range(2):
            ids = dict[int, set[str]]()
            for row, key in self.calls(number):
                ids.setdefault(row, set()).add(key)
            assert {len(found) for found in ids.values()} == {1}, "a repeated call has its old idempotency key"


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    run = Run(spark, tmp_path)
    run.write_input()
    yield run
    run.stop()


@pytest.mark.spark
def test_a_chain_is_exact_over_a_restart_and_each_pipeline_has_its_own_parallelism(run: Run) -> None:
    second = run.second(barrier_timeout=None)  # so no call is under way when a rescale ends its hosts
    chain = run.pipeline().then(second)
    sink = run.sink

    def rescale(batch: DataFrame, epoch: int) -> None:
        sink(batch, epoch)
        if epoch == 1:
            second.rescale(3)

    run.sink = rescale  # type: ignore[method-assign]
    run.start(chain).awaitTermination()
    run.assert_exact()
    assert {epoch.parallelism for epoch in chain.progress()} == {2}
    upstream = [epoch for epoch in second.progress() if epoch.kind == "upstream"]
    assert [epoch.parallelism for epoch in upstream] == [2, *[3] * (len(upstream) - 1)]
    assert len(upstream) == len(chain.progress())
    assert len(run.calls(0)) == len(run.calls(1)) == ROWS, "no call is made twice"
    before = run.delivered.copy()
    run.run_chain(first=3, second=2)
    assert run.delivered == before


POINTS = [(stage, point) for point in ("subtasks", "run_subtasks", "commit", "sink", "sunk") for stage in (0, 1)]


class Crash(RuntimeError):
    """The driver is gone."""


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.parametrize(("stage", "point"), POINTS)
def test_a_chain_that_is_stopped_anywhere_continues_exactly_once(
    run: Run, stage: int, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    def crash(runner: Any) -> None:
        is_stage = runner.coordinator.store.operator_id == ("count", "total")[stage]
        if is_stage and not happened and runner.epoch >= 1 + POINTS.index((stage, point)) % 2:
            happened.append(point)
            raise Crash(point)

    def broken(name: str, *, after: bool) -> None:
        method: Callable[..., Any] = getattr(runners.EpochRunner, name)

        def traced(runner: Any, *arguments: Any) -> Any:
            if not after:
                crash(runner)
            result = method(runner, *arguments)
            crash(runner)
            return result

        monkeypatch.setattr(runners.EpochRunner, name, traced)

    match point:
        case "subtasks":
            broken("_run", after=False)
        case "run_subtasks":
            broken("_run_subtasks", after=True)
        case "commit":
            broken("_commit", after=True)
        case _:
            deliver = delivery.Delivery.deliver

            def delivering(of: Any, spark: SparkSession, snapshot: Any, *known: Any) -> None:
                runner = SimpleNamespace(coordinator=SimpleNamespace(store=snapshot.manifest), epoch=snapshot.version)
                if point == "sink":
                    crash(runner)
                deliver(of, spark, snapshot, *known)
                crash(runner)

            monkeypatch.setattr(delivery.Delivery, "deliver", delivering)
    with pytest.raises(Exception, match=r"."):
        run.run_chain()
    assert happened
    committed = {store.operator_id: store.newest_version() for store in run.stores}
    for store in run.stores:
        if committed[store.operator_id]:
            store.compact()
            store.collect_garbage(keep_last=1, min_age=0, dry_run=False)
    run.run_chain(first=3, second=1)
    run.assert_exact()


@pytest.mark.thorough
@pytest.mark.spark
def test_the_first_makes_no_call_again_because_the_second_has_failed(run: Run) -> None:
    class Broken(Total):
        async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
            raise ValueError("no")

    run.gate.open()
    chain = run.pipeline(barrier_timeout=None).then(
        AsyncPipeline(
            Broken(run.logs[1], run.gate),
            key_by="count",
            output_schema="id bigint, count bigint, total bigint",
            snapshots=run.folder / "snapshots",
            operator_id="total",
            parallelism=2,
            barrier_timeout=None,
            max_parallelism=16,
        )
    )
    for _ in range(2):
        with pytest.raises(Exception, match="no"):
            run.start(chain).awaitTermination()
        assert len(run.calls(0)) == ROWS_PER_FILE
    run.run_chain()
    run.assert_exact()
    assert len(run.calls(0)) == ROWS


@pytest.mark.thorough
@pytest.mark.spark
def test_epochs_that_the_second_has_missed_are_run_in_order_at_the_start(run: Run) -> None:
    run.run()
    run.delivered.clear()
    run.deliveries.clear()
    chain = run.run_chain()
    run.assert_exact()
    assert len(run.calls(0)) == ROWS
    assert chain.progress() == ()


@pytest.mark.thorough
@pytest.mark.spark
def test_a_bounded_run_goes_through_a_chain_and_does_nothing_when_finished(run: Run) -> None:
    history = run.spark.range(ROWS).selectExpr("id", f"concat('u', id % {KEYS}) as user")
    run.fail_sink_at = 2
    with pytest.raises(OSError, match="the sink is down"):
        run.chain().run(history, run.sink, run_id="history", chunk_rows=50)
    run.chain().run(history, run.sink, run_id="history", chunk_rows=50)
    run.assert_exact()
    versions = [store.versions() for store in run.stores]
    run.chain().run(history, run.sink, run_id="history", chunk_rows=50)
    assert [store.versions() for store in run.stores] == versions


@pytest.mark.spark
def test_what_does_not_belong_together_is_refused(run: Run, tmp_path: Path) -> None:
    run.run_chain()
    lonely = run.second()
    frame = run.spark.readStream.schema("id bigint, user string, count bigint").parquet(str(run.folder / "in"))
    with pytest.raises(UnrelatedHistories, match="later pipeline of a chain"):
        lonely.start(frame, run.sink, checkpoint_location=tmp_path / "another")
    versions = [store.versions() for store in run.stores]
    other = run.pipeline(operator_id="other").then(run.second())
    arguments = {"checkpoint_location": tmp_path / "other", "trigger": {"availableNow": True}}
    with pytest.raises(UnrelatedPipelines, match=r"other has no epoch \d+ of attempt"):
        other.start(run.stream(), run.sink, **arguments)
    assert [store.versions() for store in run.stores] == versions
    run.delivered.clear()
    run.deliveries.clear()
    other.start(run.stream(), run.sink, adopt="state", **arguments).awaitTermination()
    assert sorted(row[0] for epoch in run.delivered.values() for row in epoch) == list(range(ROWS))


@pytest.mark.thorough
@pytest.mark.spark
def test_a_new_pipeline_after_one_whose_outputs_are_gone_begins_with_its_next_epoch(run: Run) -> None:
    run.run()
    run.store.collect_garbage(keep_last=1, min_age=0, dry_run=False)
    run.delivered.clear()
    run.deliveries.clear()
    arguments = {"checkpoint_location": run.folder / "checkpoint", "trigger": {"availableNow": True}}
    with pytest.raises(UnrelatedPipelines, match=r"before epoch \d+ have been removed.*adopt='checkpoint'") as refusal:
        run.chain().start(run.stream(), run.sink, **arguments)
    assert len(refusal.value.ways) == 1
    run.write_file(run.spark.range(ROWS, ROWS + 5).selectExpr("id", "'u0' as user"))
    run.chain().start(run.stream(), run.sink, adopt="checkpoint", **arguments).awaitTermination()
    assert sorted(row[0] for epoch in run.delivered.values() for row in epoch) == list(range(ROWS, ROWS + 5))
    assert len(run.calls(0)) == ROWS + 5, "adopt has no effect on the first, which belongs to its checkpoint"


@pytest.mark.spark
def test_a_chain_that_can_never_work_is_refused(run: Run) -> None:
    first = run.pipeline()
    for wrong, reason in (
        (run.second(key_by="nobody"), "key_by='nobody'"),
        (run.second(order_by="when"), "order_by='when'"),
        (run.second(event_time="at"), "event_time='at': the outputs of a pipeline have no watermark"),
        (run.second(operator_id="count"), "is in the chain already"),
        (None, "pipeline=None: pass an AsyncPipeline"),
    ):
        with pytest.raises(ConfigError, match=reason):
            first.then(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="only the last pipeline"):
        run.pipeline(on_error="dead_letter", dead_letters="column").then(run.second())
    last = run.second(on_error="dead_letter", dead_letters="column")
    assert isinstance(first.then(last), AsyncPipeline)
    with pytest.raises(ConfigError, match="only the last pipeline"):
        first.then(last).then(run.second(operator_id="third"))


def _commit(store: SnapshotStore, epoch: int, previous: EpochRef | None) -> EpochRef:
    ref = EpochRef(epoch, f"attempt {epoch}")
    position = SourcePosition(epoch=ref.epoch, attempt=ref.attempt, previous=previous).to_json()
    assert store.write(parts({"count": {"ann": 1}}, [COUNT], 1), source_position=position).version == epoch
    return ref


def test_missed_epochs_are_found_past_versions_that_are_none() -> None:
    store = new_store()
    assert missed_epochs(store, BEGINNING).epochs == ()
    assert missed_epochs(store, EpochRef(3, "a")).reason is not None
    first = _commit(store, 1, BEGINNING)
    store.claim()
    second = _commit(store, 3, first)
    store.repartition(1)
    third = _commit(store, 5, second)
    store.claim()

    def found(seen: EpochRef) -> list[int] | None:
        missed = missed_epochs(store, seen)
        return None if missed.reason else [SourcePosition.of(one).ref.epoch for one in missed.epochs]

    assert found(third) == []
    assert found(second) == [5]
    assert found(first) == [3, 5]
    assert found(BEGINNING) == [1, 3, 5]
    assert found(EpochRef(3, "of another")) is None
    assert found(EpochRef(9, third.attempt)) is None
    store.collect_garbage(keep_last=2, min_age=0, dry_run=False)
    assert found(second) == [5], "the version of an epoch that was seen is not needed"
    assert found(first) is None
