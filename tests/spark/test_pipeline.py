"""The streaming pipeline: carried-over calls, replays, rescaling, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction, ElementFailed
from keygroups import (
    ConfigError,
    DiskStateBackend,
    KeyGroupsError,
    NullKey,
    ValueState,
    key_group_of,
    range_of,
    subtask_of,
)
from keygroups.state import MemoryBackend
from snapshots import IncompatibleSnapshot, SnapshotStore, SubtaskSnapshot, WriterFenced
from tests.quick import first_is_quick
from tests.snapshot_kit import parts
from tests.spark.runs import Gate, PipelineRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = ValueState("count", pa.int64(), default=0)
ROWS_PER_FILE = 200
FILES = 3
KEYS = 23


class Count(AsyncFunction):
    """Numbers the rows of each key. Calls are logged to a file.

    Every 40th call outlasts the epoch of its file.
    """

    states = (COUNT,)

    def __init__(self, log: Path, gate: Gate, fail_at: int | None = None, wrong_at: int | None = None) -> None:
        self.log = log
        self.gate = gate
        self.fail_at = fail_at
        self.wrong_at = wrong_at

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        with self.log.open("a") as log:
            log.write(json.dumps([value["id"], ctx.idempotency_key]) + "\n")
        if value["id"] == self.fail_at:
            raise ValueError("the service said no")
        if value["id"] == self.wrong_at:
            return [{"id": "not a number"}]
        count = ctx.state(COUNT)
        if value["id"] % 40 == 0:
            await self.gate.passed(1 + value["id"] // ROWS_PER_FILE)
        count.update(count.value() + 1)
        return [{"id": value["id"], "user": value["user"], "count": count.value()}]


class Run(PipelineRun):
    """Counts rows of users; the calls are those in the log."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.log = folder / "calls"
        self.log.touch()
        super().__init__(
            spark,
            folder,
            Count(self.log, Gate(folder / "sinks")),
            "id bigint, user string",
            key_by="user",
            output_schema="id bigint, user string, count bigint",
            operator_id="count",
            barrier_timeout=0.2,
            timeout=600.0,
        )

    def write_input(self, user: str = "concat('u', cast(id % 23 as string))") -> None:
        for n in range(FILES):
            rows = self.spark.range(n * ROWS_PER_FILE, (n + 1) * ROWS_PER_FILE)
            self.write_file(rows.selectExpr("id", f"{user} as user"))

    def calls(self) -> list[tuple[int, str]]:
        return [tuple(json.loads(line)) for line in self.log.read_text().splitlines()]

    def assert_exact(self) -> None:
        """Every row once, every count right."""
        rows = sorted(row for epoch in self.delivered.values() for row in epoch)
        assert rows == [(n, f"u{n % KEYS}", n // KEYS + 1) for n in range(FILES * ROWS_PER_FILE)]


@pytest.fixture(params=first_is_quick([True, False]), ids=["resident", "in tasks"])
def run(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    """What a run promises does not depend on where its operators live."""
    run = Run(spark, tmp_path)
    run.settings["resident"] = request.param
    yield run
    run.stop()


def test_calls_are_carried_over_and_drained(run: Run) -> None:
    run.write_input()
    pipeline = run.run()
    resident = run.settings["resident"]
    run.assert_exact()
    epochs = pipeline.progress()
    kinds = [epoch.kind for epoch in epochs]
    assert (kinds.count("batch"), kinds[-1]) == (FILES, "drain")
    assert any(epoch.in_flight for epoch in epochs[:-1])
    assert epochs[-1].in_flight == 0
    repeated = 0 if resident else sum(epoch.in_flight for epoch in epochs)
    assert sum(epoch.reinvoked for epoch in epochs) == repeated
    assert sum(epoch.calls for epoch in epochs) == len(run.calls())
    assert not resident or len(run.calls()) == FILES * ROWS_PER_FILE
    assert {epoch.resident for epoch in epochs} == {2 if resident else 0}
    assert run.store.verify().ok
    latest = run.store.latest()
    assert latest is not None
    assert sorted(set(latest.to_arrow("count").column("value").to_pylist())) == [26, 27]


@pytest.mark.thorough
def test_a_first_start_beside_other_operators_warns_of_nothing(run: Run) -> None:
    SnapshotStore(run.store.uri.rpartition("/")[0], "other").write(parts({}))
    run.write_input()
    run.run()  # a warning is an error here
    run.assert_exact()


def test_a_call_that_is_repeated_has_its_old_idempotency_key(run: Run) -> None:
    run.write_input()
    run.run()
    ids = dict[int, set[str]]()
    for row, idempotency_key in run.calls():
        ids.setdefault(row, set()).add(idempotency_key)
    assert all(len(keys) == 1 for keys in ids.values())
    assert len({key for keys in ids.values() for key in keys}) == FILES * ROWS_PER_FILE


def test_a_failed_delivery_is_repeated_without_a_call(run: Run) -> None:
    run.write_input()
    run.fail_sink_at = 2
    pipeline = run.pipeline()
    with pytest.raises(Exception, match="the sink is down"):
        run.start(pipeline).awaitTermination()
    before = len(run.calls())
    restarted = run.run(parallelism=3)
    run.assert_exact()
    assert run.deliveries[2] >= 2
    # Version 3 is the claim of the restarted pipeline.
    assert restarted.progress()[0].epoch == 4
    assert len(run.calls()) - before == sum(epoch.calls for epoch in restarted.progress())


class CountSome(Count):
    """Every 25th row fails for good, of which every second one after the barrier."""

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        outputs = await super().async_invoke(value, ctx)
        if value["id"] % 25 == 0:
            await self.gate.passed(1 + value["id"] // ROWS_PER_FILE if value["id"] % 50 else 0)
            raise ValueError(f"no answer for {value['id']}")
        return outputs


@pytest.mark.parametrize("mode", first_is_quick(["ordered", "unordered", "key_ordered"]))
def test_dead_letters_are_delivered_exactly_once_with_their_epoch(run: Run, mode: str) -> None:
    run.write_input()
    run.function = CountSome(run.log, run.gate)
    run.fail_sink_at = 2
    options: dict[str, Any] = {"mode": mode, "on_error": "dead_letter", "dead_letters": "column"}
    with pytest.raises(Exception, match="the sink is down"):
        run.run(**options)
    pipeline = run.run(**options)
    assert run.deliveries[2] >= 2
    rows = [row for epoch in run.delivered.values() for row in epoch]
    letters = [row[-1] for row in rows if row[-1] is not None]
    assert sorted(json.loads(letter.value)["id"] for letter in letters) == list(range(0, FILES * ROWS_PER_FILE, 25))
    assert sorted(row[0] for row in rows if row[-1] is None) == [n for n in range(FILES * ROWS_PER_FILE) if n % 25]
    for letter in letters:
        number = json.loads(letter.value)["id"]
        assert (letter.attempts, letter.error_type) == (1, "ValueError")
        assert letter.error_message == f"no answer for {number}"
        assert json.loads(letter.key) == f"u{number % KEYS}"
    calls = dict(run.calls())
    assert all(calls[json.loads(letter.value)["id"]] == letter.idempotency_key for letter in letters)
    found = sum(epoch.dead_letters for epoch in pipeline.progress())
    assert 0 < found < len(letters)


@pytest.mark.thorough
def test_failed_rows_can_be_skipped(run: Run) -> None:
    run.write_input()
    run.function = CountSome(run.log, run.gate)
    run.run(on_error="skip")
    rows = [row for epoch in run.delivered.values() for row in epoch]
    assert sorted(row[0] for row in rows) == [n for n in range(FILES * ROWS_PER_FILE) if n % 25]


def test_a_failed_epoch_leaves_no_trace(run: Run) -> None:
    run.write_input()
    run.function = Count(run.log, run.gate, fail_at=250)
    with pytest.raises(ElementFailed, match="'id': 250"):
        run.run()
    assert run.store.versions() == [1]
    run.function = Count(run.log, run.gate)
    run.run()
    run.assert_exact()


@pytest.mark.thorough
def test_state_may_be_on_the_disk_of_the_workers_and_in_memory_after_a_restart(run: Run) -> None:
    run.write_input()
    on_disk = DiskStateBackend(run.folder / "state", cache_bytes=2**20)
    run.fail_sink_at = 2
    with pytest.raises(Exception, match="the sink is down"):
        run.run(state_backend=on_disk)
    run.run(parallelism=3)

    run.assert_exact()
    assert list((run.folder / "state").iterdir()) == []


@pytest.mark.thorough
def test_the_parallelism_changes_between_epochs_and_over_a_restart(run: Run) -> None:
    run.write_input()
    pipeline = run.pipeline()
    next_of = {1: 4, 2: 3, 3: 3}
    sink, run.sink = run.sink, lambda batch, epoch: (sink(batch, epoch), pipeline.rescale(next_of.get(epoch, 3)))  # type: ignore[method-assign]
    run.start(pipeline).awaitTermination()
    run.assert_exact()
    epochs = pipeline.progress()
    assert [epoch.parallelism for epoch in epochs if epoch.kind == "batch"] == [2, 4, 3]
    assert epochs[-1].parallelism == 3
    assert run.store.repartition(3).parallelism == 3


def test_a_replay_after_a_repartition_keeps_the_epoch(run: Run) -> None:
    run.write_input()
    run.fail_sink_at = 2
    with pytest.raises(Exception, match="the sink is down"):
        run.run()
    run.store.repartition(5)
    run.run(parallelism=5)
    run.assert_exact()


@pytest.mark.thorough
def test_another_max_parallelism_is_refused(run: Run) -> None:
    run.write_input()
    run.run()
    with pytest.raises(IncompatibleSnapshot, match="max parallelism.*--rewrite --parallelism 2 --max-parallelism 256"):
        run.run(max_parallelism=256)


def test_a_second_coordinator_stops_the_first(run: Run) -> None:
    run.write_input()
    pipeline = run.pipeline()

    def sink(batch: DataFrame, epoch: int) -> None:
        if epoch == 1:
            run.store.repartition(3)

    run.sink = sink  # type: ignore[method-assign]
    with pytest.raises(WriterFenced):
        run.start(pipeline).awaitTermination()


def test_a_null_key_is_refused_and_the_row_named(run: Run) -> None:
    run.write_input(user="if(id = 30, null, 'ann')")
    run.gate.open()  # all rows have one key, and no sink will be called
    with pytest.raises(NullKey, match="'id': 30"):
        run.run()
    assert run.store.versions() == []


def test_an_output_that_does_not_fit_is_refused(run: Run) -> None:
    run.write_input()
    run.function = Count(run.log, run.gate, wrong_at=30)
    with pytest.raises(ElementFailed, match="element {'id': 30.*OutputMismatch.*column 'id'"):
        run.run()
    assert run.store.versions() == []


@pytest.mark.parametrize("option", ["autoscale", "retention"])
def test_an_option_of_another_class_is_refused(run: Run, option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}=7: is a value of type int; pass an object of the class"):
        run.pipeline(**{option: 7})


def test_an_unknown_column_is_refused(run: Run) -> None:
    run.write_input()
    with pytest.raises(ConfigError, match="order_by"):
        run.run(order_by="when")


def test_an_epoch_writes_what_it_changed_and_says_so(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    keys = [f"user {n}" for n in range(5000)]
    backends = [MemoryBackend([COUNT], range_of(index, 2, 128)) for index in range(2)]
    for key in keys:
        key_group = key_group_of(key, 128)
        backends[subtask_of(key_group, 2, 128)].tables["count"].put(key_group, key, 1)
    run.store.write(
        SubtaskSnapshot(subtask_index=n, parallelism=2, max_parallelism=128, hash="xxhash64", states=backend.cut())
        for n, backend in enumerate(backends)
    )
    run.write_input()
    run.gate.open()
    with caplog.at_level("INFO", "async_op.spark.epoch"):
        pipeline = run.run(barrier_timeout=None)
    whole = run.store.load(1).manifest.bytes_total
    epochs = pipeline.progress()
    assert [epoch.state_rows for epoch in epochs] == [KEYS] * FILES
    assert all(0 < epoch.state_bytes < whole / 4 for epoch in epochs)
    logged = [json.loads(record.args[1]) for record in caplog.records if "epoch of" in record.msg]  # type: ignore[index]
    assert [line["calls"] for line in logged] == [ROWS_PER_FILE] * FILES
    assert run.store.latest().to_arrow("count").num_rows == len(keys) + KEYS  # type: ignore[union-attr]


def test_what_makes_a_drain_fail_ends_the_query(run: Run) -> None:
    run.write_input()
    run.function = Count(run.log, replace(run.gate, sinks_max=1))  # all rows come at once
    pipeline = run.pipeline(capacity=FILES * ROWS_PER_FILE)
    run.fail_sink_at = 2
    query = pipeline.start(run.stream(), run.sink, checkpoint_location=run.folder / "checkpoint")
    with pytest.raises(Exception, match="the sink is down"):
        query.awaitTermination(240)
    assert not query.isActive
    assert pipeline.progress()[-1].kind == "batch"


def test_drain_needs_a_sink(run: Run) -> None:
    with pytest.raises(KeyGroupsError, match="start it first"):
        run.pipeline().drain()


def test_what_is_in_flight_is_drained_when_no_input_comes(run: Run) -> None:
    run.write_input()
    run.function = Count(run.log, replace(run.gate, sinks_max=1))  # all rows come at once
    pipeline = run.pipeline(capacity=FILES * ROWS_PER_FILE)
    query = pipeline.start(run.stream(), run.sink, checkpoint_location=run.folder / "checkpoint")
    try:
        for _ in range(600):
            if pipeline.progress() and pipeline.progress()[-1].in_flight == 0:
                break
            query.awaitTermination(1)
    finally:
        query.stop()
    run.assert_exact()
