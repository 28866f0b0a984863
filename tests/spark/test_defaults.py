"""A pipeline with no options beyond those that it needs: what a newcomer meets first."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op.spark import AsyncPipeline
from async_op.spark.epoch import log
from tests.hosting.kit import wait_until
from tests.snapshots.cli_kit import runner
from tests.spark.runs import Gate, hide_local_hosts, pipeline_of_ids

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

ROWS = 10


def test_an_epoch_waits_for_no_call_for_long_and_the_end_of_the_input_for_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.range(ROWS).write.parquet(str(tmp_path / "in"))
    gate = Gate(tmp_path / "sinks")
    delivered: list[int] = []

    async def after_a_delivery(row: dict[str, Any]) -> tuple[int]:
        if row["id"] % 2:
            await gate.passed(1)
        return (row["id"],)

    def sink(batch: DataFrame, epoch: int) -> None:
        delivered.extend(row["id"] for row in batch.collect())
        gate.count()

    pipeline = pipeline_of_ids(after_a_delivery, tmp_path, "slow")
    stream = spark.readStream.schema("id bigint").parquet(str(tmp_path / "in"))
    pipeline.start(
        stream, sink, checkpoint_location=tmp_path / "checkpoint", trigger={"availableNow": True}
    ).awaitTermination()

    first, *_, last = pipeline.progress()
    assert first.in_flight >= ROWS // 2
    assert last.in_flight == 0
    assert sorted(delivered) == list(range(ROWS))


@pytest.mark.thorough
def test_slow_calls_over_a_source_without_end_hold_nothing_back_and_progress_and_the_log_say_what_is_in_flight(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(tmp_path / "gate")
    delivered: list[int] = []

    async def slow_if_odd(row: dict[str, Any]) -> tuple[int]:
        if row["value"] % 2:
            await gate.passed(1)
        return (row["value"],)

    def sink(batch: DataFrame, epoch: int) -> None:
        delivered.extend(row["value"] for row in batch.collect())

    pipeline = AsyncPipeline(
        slow_if_odd,
        key_by="value",
        output_schema="value bigint",
        snapshots=tmp_path / "snapshots",
        operator_id="slow",
    )
    stream = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    with caplog.at_level(logging.INFO, "async_op.spark"):
        query = pipeline.start(stream, sink, checkpoint_location=tmp_path / "checkpoint")
        try:
            wait_until(lambda: delivered and any(one.in_flight for one in pipeline.progress()))
            assert all(value % 2 == 0 for value in delivered)
        finally:
            gate.open()
            query.stop(drain=True)
    assert sorted(delivered) == list(range(len(delivered)))
    assert any(value % 2 for value in delivered)
    (told,) = [text for text in caplog.messages if "elements in flight, the oldest for" in text]
    assert "no longer than barrier_timeout" in told


@pytest.mark.parametrize("machine", ["the driver's", "another"])
def test_what_hosts_do_is_seen_before_the_first_epoch_has_ended(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
) -> None:
    if machine == "another":
        hide_local_hosts(monkeypatch)
    spark.range(ROWS).write.parquet(str(tmp_path / "in"))
    gate = Gate(tmp_path / "sinks")

    async def held(row: dict[str, Any]) -> tuple[int]:
        await gate.passed(1)
        return (row["id"],)

    pipeline = AsyncPipeline(
        held,
        key_by="id",
        output_schema="id bigint",
        snapshots=tmp_path / "snapshots",
        operator_id="held",
        parallelism=2,
        barrier_timeout=None,
    )
    monkeypatch.setattr(log, "_LOOK_SECONDS", 0.1)
    query = pipeline.start(
        spark.readStream.schema("id bigint").parquet(str(tmp_path / "in")),
        lambda batch, epoch: None,
        checkpoint_location=tmp_path / "checkpoint",
    )
    try:
        wait_until(lambda: (seen := pipeline.progress().under_way) is not None and seen.in_flight == ROWS)
        assert query.status["keygroups"]["in_flight"] == ROWS
        assert f"in_flight={ROWS}" in repr(pipeline.progress())
        wait_until(lambda: f"{ROWS} in flight" in runner(capsys)("top", tmp_path / "snapshots" / "held", "--once").out)
    finally:
        gate.open()
        query.stop(drain=True)
    assert query.status["keygroups"] is pipeline.progress().under_way is None
    assert not list((tmp_path / "snapshots").glob("*/hosts/*"))
