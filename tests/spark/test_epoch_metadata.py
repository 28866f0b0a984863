"""What a manifest keeps of its epoch: the same names as ever, in manifests of all releases."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from async_op import AsyncFunction
from async_op.epochs.position import EpochTimes, SourcePosition, StoredKey
from async_op.metrics.totals import EventTotals
from async_op.spark import EpochMetrics, EpochProgress
from async_op.spark.epoch.inputs import MicroBatch
from keygroups import ValueState
from snapshots.inspection.activity import COUNTED
from tests.snapshot_kit import new_store, parts
from tests.spark.runs import PipelineRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = ValueState("count", pa.int64(), default=0)
PLACE = {"query_id": "q", "batch_id": 4}
OF_AN_EPOCH = {
    **PLACE,
    "kind": "drain",
    "epoch": 6,
    "attempt": "attempts/6-x",
    "keys": [{"column": "user.name", "type": "string"}, {"column": "shop", "type": "bigint"}],
    "times": {"watermark": 10, "next_watermark": 20, "next_timer": None, "next_event_timer": 30},
    "parallelism": 2,
}
STORED = {
    "of an epoch": OF_AN_EPOCH,
    "of a batch without rows or timers": {
        **OF_AN_EPOCH,
        "kind": "batch",
        "times": dict.fromkeys(["watermark", "next_watermark", "next_timer", "next_event_timer"]),
    },
    "of a drain after a snapshot without a query": {**OF_AN_EPOCH, "query_id": None, "batch_id": None},
    "of a release without marks": {name: OF_AN_EPOCH[name] for name in ("query_id", "batch_id", "kind", "epoch")},
    "of state that begins anew": PLACE,
    "of a checkpoint that never ran": {"query_id": None, "batch_id": -1},
}


COUNTERS = [
    *["rows", "outputs", "calls", "retries", "timeouts", "reinvoked", "reemitted", "skipped", "dead_letters"],
    *["in_flight", "state_rows", "state_bytes", "back_pressured_milliseconds", "work_milliseconds"],
    *["overtime_milliseconds", "write_milliseconds"],
]
"""What manifests have had since their format was settled."""


class Echo(AsyncFunction):
    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        return [value]


def position_in(stored: dict[str, Any] | None) -> SourcePosition:
    """Return what is told by a manifest that was stored with a position."""
    store = new_store()
    store.write(parts({"count": {"ann": 1}}, [COUNT], 1), source_position=stored)
    return SourcePosition.of(store.latest())


@pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
def test_a_position_is_stored_as_it_was_read(stored: dict[str, Any]) -> None:
    found = position_in(stored).to_json()
    assert found == stored
    assert position_in(found).to_json() == stored


def test_a_position_is_read_by_name() -> None:
    assert position_in(OF_AN_EPOCH) == SourcePosition(
        query_id="q",
        batch_id=4,
        kind="drain",
        epoch=6,
        attempt="attempts/6-x",
        keys=(StoredKey("user.name", "string"), StoredKey("shop", "bigint")),
        times=EpochTimes(watermark=10, next_watermark=20, next_event_timer=30),
        parallelism=2,
    )


@pytest.mark.parametrize("stored", [None, {}, {"offset": 42}])
def test_a_manifest_of_no_epoch_tells_nothing(stored: dict[str, Any] | None) -> None:
    assert position_in(stored) == SourcePosition() == SourcePosition.of(None)


@pytest.mark.parametrize(
    ("query_id", "batch_id", "has_passed"), [("q", 3, True), ("q", 4, True), ("q", 5, False), ("another", 4, False)]
)
def test_a_batch_is_passed_if_it_or_a_later_one_of_its_query_is(query_id: str, batch_id: int, has_passed: bool) -> None:
    assert MicroBatch(query_id, batch_id).is_in(SourcePosition(query_id="q", batch_id=4)) == has_passed
    assert not MicroBatch(query_id, batch_id).is_in(SourcePosition(batch_id=4))


def test_the_metrics_of_an_epoch_are_the_sums_of_its_subtasks() -> None:
    parts = [EpochMetrics(**{name: factor * n for n, name in enumerate(COUNTERS)}) for factor in (1, 10, 100)]
    assert EpochMetrics.total(parts) == EpochMetrics(**{name: 111 * n for n, name in enumerate(COUNTERS)})


def test_the_oldest_call_of_an_epoch_is_that_of_any_subtask() -> None:
    counted = dict.fromkeys(COUNTERS, 0)
    parts = [EpochMetrics(**counted, oldest_call_milliseconds=age) for age in (3, 70, 5)]
    assert EpochMetrics.total(parts).oldest_call_milliseconds == 70


def test_what_calls_have_cost_is_added_up_by_unit() -> None:
    counted = dict.fromkeys(COUNTERS, 0)
    parts = [EpochMetrics(**counted, spent=spent) for spent in ({"tokens": 3, "cents": 0.5}, {}, {"tokens": 4})]
    total = EpochMetrics.total(parts)
    assert total.spent == {"tokens": 7, "cents": 0.5}
    assert {"spent_tokens": 7, "spent_cents": 0.5}.items() <= total.stored().items()


def test_each_number_of_an_epoch_is_a_metric() -> None:
    numbers = {name for name, kind in get_type_hints(EpochProgress).items() if kind in {int, float}}
    families = {family.name for family in EventTotals().families()}
    missing = {name for name in numbers if f"keygroups_epoch_{name}" not in families}
    assert missing == {"epoch", "in_flight", "parallelism", "work_milliseconds"}, "the first three are the snapshot's"


def test_a_terminal_view_reads_what_epochs_count() -> None:
    assert {*COUNTED, "resident", "oldest_call_milliseconds"} <= {one.name for one in fields(EpochMetrics)}


def test_a_manifest_has_what_manifests_always_had(spark: SparkSession, tmp_path: Path) -> None:
    columns = "id bigint"
    run = PipelineRun(spark, tmp_path, Echo(), columns, key_by="id", output_schema=columns, operator_id="echo")
    run.write_file(spark.range(10))
    (progress,) = run.run().progress()
    snapshot = run.store.latest()
    assert snapshot is not None
    position, metrics = snapshot.source_position, snapshot.manifest.metrics
    assert position is not None
    assert metrics.keys() == {one.name for one in fields(EpochMetrics)} - {"spent"} >= set(COUNTERS)
    assert {name: getattr(progress, name) for name in metrics} == metrics
    assert (metrics["rows"], metrics["outputs"], metrics["calls"]) == (10, 10, 10)
    assert position == {
        "query_id": position["query_id"],
        "batch_id": 0,
        "kind": "batch",
        "epoch": snapshot.version,
        "attempt": position["attempt"],
        "previous": {"epoch": 0, "attempt": ""},
        "keys": [{"column": "id", "type": "bigint"}],
        "times": dict.fromkeys(["watermark", "next_watermark", "next_timer", "next_event_timer"]),
        "parallelism": 2,
    }
