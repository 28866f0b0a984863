"""What pipelines offer beside exactly once, all in one query over Spark Connect."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from async_op import AsyncFunction
from async_op.spark import AsyncPipeline, AutoscalePolicy, Retention
from keygroups import ValueState
from snapshots import SnapshotStore

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CLICKS = ValueState("clicks", pa.int64(), default=0)
FILES, USERS, KEPT = 6, 5, 2
START, STEP, GAP = 1_700_000_000_000, 10_000, 1_500
REFUSED = 3


class Sessions(AsyncFunction):
    """Counts the clicks of a user until the watermark is `GAP` past the last one."""

    states = (CLICKS,)

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        for before in ctx.timers.timestamps(event_time=True):
            ctx.timers.delete(before, event_time=True)
        ctx.timers.register(ctx.timestamp + GAP, event_time=True)
        ctx.state(CLICKS).update(ctx.state(CLICKS).value() + 1)
        return []

    async def on_timer(self, timestamp: int, ctx: Any) -> list[Any]:
        clicks = ctx.state(CLICKS).value()
        ctx.state(CLICKS).clear()
        return [(ctx.key, timestamp, clicks)]


class Checked(AsyncFunction):
    """Refuses one user of each file."""

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        if value["user"].endswith(f"-{REFUSED}"):
            raise ValueError("the service said no")
        return [(value["user"], value["timer"], value["clicks"])]


def chain_of(folder: Path) -> AsyncPipeline:
    """Return a pipeline with event time that is scaled and tidied, and one with dead letters after it."""
    settings: dict[str, Any] = {
        "key_by": "user",
        "output_schema": "user string, timer bigint, clicks bigint",
        "snapshots": folder / "snapshots",
        "parallelism": 1,
        "max_parallelism": 16,
    }
    sessions = AsyncPipeline(
        Sessions(),
        operator_id="sessions",
        event_time="at",
        autoscale=AutoscalePolicy(2, 2, target_batch_duration=60.0),
        retention=Retention(keep_last=KEPT, min_age=0.0),
        **settings,
    )
    checked = AsyncPipeline(Checked(), operator_id="checked", on_error="dead_letter", dead_letters="column", **settings)
    return sessions.then(checked)


def write_input(folder: Path) -> None:
    """Write two clicks of each user into a file for these users; the times of files are far apart."""
    folder.mkdir()
    for file in range(FILES):
        times = [datetime.fromtimestamp((START + STEP * file + n) / 1000, UTC) for n in (0, 100)]
        users = [f"{file}-{user}" for user in range(USERS)]
        rows = {"user": 2 * users, "at": [time for time in times for _ in users]}
        schema = pa.schema({"user": pa.string(), "at": pa.timestamp("us", "UTC")})
        path = folder / f"{file}.parquet"
        pq.write_table(pa.table(rows, schema), path)
        os.utime(path, (file, file))  # Spark takes the oldest first


def use_features(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Run event time, a chain, autoscaling, retention, dead letters and a table in one query; explain it before."""
    write_input(folder / "in")
    stream = spark.readStream.schema("user string, at timestamp").option("maxFilesPerTrigger", 1)
    clicks = stream.parquet(str(folder / "in")).withWatermark("at", "1 second")
    chain = chain_of(folder)
    explained = chain.explain()
    assert list(explained.operators) == ["sessions", "checked"]
    query = chain.to_table(
        clicks,
        folder / "table",
        format="parquet",
        checkpoint_location=folder / "checkpoint",
        trigger={"availableNow": True},
    )
    query.awaitTermination()

    found = spark.read.parquet(str(folder / "table")).collect()
    rows = [
        (f"{file}-{user}", START + STEP * file + 100 + GAP, 2)
        for file in range(FILES - 1)
        for user in range(USERS)
        if user != REFUSED
    ]
    assert sorted((row.user, row.timer, row.clicks) for row in found if row.dead_letter is None) == rows, found
    letters = [row.dead_letter for row in found if row.dead_letter is not None]
    assert len(letters) == FILES - 1, found
    assert all("the service said no" in str(letter) for letter in letters)

    batches = [one for one in chain.progress() if one.kind == "batch"]
    assert sum(one.rows for one in batches) == 2 * USERS * FILES
    assert {one.parallelism for one in batches} == {1, 2}, [one.scaling for one in batches]
    assert any(one.scaling is not None for one in batches)
    store = SnapshotStore(folder / "snapshots", "sessions")
    assert len(list(store.versions())) < len(batches)
    assert store.verify().ok
    return {}
