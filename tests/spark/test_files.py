"""The files of a snapshot, read by Spark itself."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from async_op import AsyncFunction, AsyncWaitOperator, InvocationContext
from keygroups import ListState, ValueState
from keygroups.spark import key_group_column
from snapshots import SnapshotStore

pytestmark = pytest.mark.spark

GROUPS = 16
COUNT = ValueState("count", pa.int64(), default=0)
SEEN = ListState("seen", pa.struct([("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string()))]))


class Counting(AsyncFunction):
    states = (COUNT, SEEN)

    async def async_invoke(self, value: str, ctx: InvocationContext) -> Iterable[object]:
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        ctx.state(SEEN).add({"at": None, "tags": [value, "x"]})
        return []


async def test_spark_reads_the_columns_and_agrees_about_the_key_groups(spark: SparkSession, tmp_path: Path) -> None:
    words = [f"word {number % 40}" for number in range(60)]
    operator = AsyncWaitOperator(Counting(), lambda _: None, key_by=lambda word: word, max_parallelism=GROUPS)
    await operator.open()
    for word in words:
        await operator.process(word)
    await operator.finish()
    snapshot = SnapshotStore(tmp_path, "counts").write([await operator.snapshot()])
    await operator.close()

    def frame(state: str) -> DataFrame:
        files = snapshot.manifest.files_of("keyed", state=state)
        return spark.read.parquet(*(snapshot.folder.path(file.path) for file in files))

    counts = frame("count")
    assert {row["key"]: row["value"] for row in counts.collect()} == {word: words.count(word) for word in words}
    assert counts.where(F.col("key_group") != key_group_column(F.col("key"), GROUPS)).count() == 0
    seen = frame("seen").select("key", "position", F.col("value.tags")[0].alias("tag"))
    assert {(row["key"], row["position"], row["tag"]) for row in seen.collect()} == {
        (word, position, word) for word in set(words) for position in range(words.count(word))
    }
