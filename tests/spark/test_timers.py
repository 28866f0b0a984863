"""Timers in a streaming pipeline: kept in its snapshots, fired in the epochs in which they are due."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncDataStream, AsyncFunction
from async_op.spark import AsyncPipeline
from keygroups import ConfigError, ValueState
from snapshots import SnapshotStore

cloudpickle.register_pickle_by_value(sys.modules[__name__])

FIRED = ValueState("fired", pa.int64(), default=0, ttl=86_400)
ROWS_PER_FILE = 60
LATER = 10**15


class Reminders(AsyncFunction):
    """Of each row, a timer in the past, with the row's number as timestamp; of each key, one in the far future."""

    states = (FIRED,)

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        ctx.timers.register(value["id"])
        ctx.timers.register(LATER)
        return []

    async def on_timer(self, timestamp: int, ctx: Any) -> list[Any]:
        fired = ctx.state(FIRED)
        fired.update(fired.value() + 1)
        return [{"id": timestamp, "user": ctx.key, "fired": fired.value()}]


def test_timers_fire_once_in_the_epoch_where_they_are_due(spark: SparkSession, tmp_path: Path) -> None:
    delivered: dict[int, list[tuple[Any, ...]]] = {}

    def sink(batch: DataFrame, epoch: int) -> None:
        delivered[epoch] = [tuple(row) for row in batch.collect()]

    for number, parallelism in enumerate((2, 3)):
        for file in (2 * number, 2 * number + 1):
            frame = spark.range(file * ROWS_PER_FILE, (file + 1) * ROWS_PER_FILE)
            frame = frame.selectExpr("id", "concat('u', cast(id % 7 as string)) as user")
            frame.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
        pipeline = AsyncPipeline(
            Reminders(),
            key_by="user",
            output_schema="id bigint, user string, fired bigint",
            snapshots=tmp_path / "snapshots",
            operator_id="reminders",
            parallelism=parallelism,
            max_parallelism=128,
            order_by="id",
        )
        stream = spark.readStream.schema("id bigint, user string").option("maxFilesPerTrigger", 1)
        query = pipeline.start(
            stream.parquet(str(tmp_path / "in")),
            sink,
            checkpoint_location=tmp_path / "checkpoint",
            trigger={"availableNow": True},
        )
        query.awaitTermination()

    latest = SnapshotStore(tmp_path / "snapshots", "reminders").latest()
    assert latest is not None
    timers = latest.to_arrow("keygroups_processing_time_timers")
    kept = sorted(timestamp for timestamp in timers["map_key"].to_pylist() if timestamp != LATER)
    fired = [id_ for rows in delivered.values() for id_, _, _ in rows]
    assert sorted(fired + kept) == list(range(4 * ROWS_PER_FILE))
    assert kept == [] or kept[0] >= 3 * ROWS_PER_FILE
    assert timers["map_key"].to_pylist().count(LATER) == 7
    rows = [row for epoch in delivered.values() for row in epoch]
    last = {user: max(count for _, other, count in rows if other == user) for user in ("u0", "u6")}
    assert last == {user: sum(1 for id_ in fired if f"u{id_ % 7}" == user) for user in last}


def test_a_transform_without_snapshots_refuses_timers(spark: SparkSession) -> None:
    class NoState(Reminders):
        states = ()

    with pytest.raises(ConfigError, match="timers need snapshots"):
        AsyncDataStream.unordered_wait(spark.range(3), NoState(), output_schema="id bigint", key_by="id")
