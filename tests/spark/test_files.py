"""The files of a snapshot, read by Spark itself."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from async_op import AsyncFunction, AsyncWaitOperator, InvocationContext
from keygroups import KeyGroupRange, ListState, ValueState, key_group_of
from keygroups.spark import key_group_column
from keygroups.state import MISSING, MemoryBackend
from snapshots import Snapshot, SnapshotStore, SubtaskSnapshot
from snapshots.format.manifest_schema import FileKind

pytestmark = pytest.mark.spark

GROUPS = 16
COUNT = ValueState("count", pa.int64(), default=0)
SEEN = ListState("seen", pa.struct([("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string()))]))


PRICE = ValueState("price", pa.decimal128(12, 2))
NOTE = ValueState("note")


def written_twice(root: Path) -> Snapshot:
    """Return a snapshot with base files and deltas, of which one has removed keys."""
    store = SnapshotStore(root, "raw")
    backend = MemoryBackend([COUNT, PRICE, NOTE], KeyGroupRange(0, GROUPS - 1))
    for version in (1, 2):
        for number in range(200) if version == 1 else range(0, 60, 3):
            key = f"key {number}"
            values = number * version, Decimal(number * version).scaleb(-2), {"n": number}
            for state, value in zip((COUNT, PRICE, NOTE), values, strict=True):
                removed = version == 2 and number % 2
                backend.tables[state.name].put(key_group_of(key, GROUPS), key, MISSING if removed else value)
        part = SubtaskSnapshot(
            subtask_index=0, parallelism=1, max_parallelism=GROUPS, hash="xxhash64", states=backend.cut()
        )
        snapshot = store.write([part])
    return snapshot


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


@pytest.mark.parametrize("kind", ["keyed", "delta"])
def test_whatever_reads_parquet_reads_the_same_rows(spark: SparkSession, tmp_path: Path, kind: FileKind) -> None:
    snapshot = written_twice(tmp_path)
    names = ["key_group", "key", *(["deleted"] if kind == "delta" else []), "value"]
    for state in snapshot.state_names:
        paths = [snapshot.folder.path(file.path) for file in snapshot.manifest.files_of(kind, state=state)]
        assert paths

        def rows(frame: pd.DataFrame) -> set[tuple[Any, ...]]:
            plain = frame[names].astype(object).where(frame[names].notna(), None)
            return {
                tuple(bytes(one) if isinstance(one, bytearray) else one for one in row)
                for row in plain.itertuples(index=False, name=None)
            }

        expected = {tuple(row[name] for name in names) for path in paths for row in pq.read_table(path).to_pylist()}
        assert len(expected) == (200 if kind == "keyed" else 20)
        assert rows(pd.concat([pd.read_parquet(path) for path in paths])) == expected
        assert set(duckdb.sql(f"SELECT {', '.join(names)} FROM read_parquet({paths})").fetchall()) == expected
        assert rows(spark.read.parquet(*paths).toPandas()) == expected


def test_spark_folds_a_delta_over_its_base(spark: SparkSession, tmp_path: Path) -> None:
    """What the format says of layers, as a query: of each key the newest row, unless it is a removed one."""
    snapshot = written_twice(tmp_path)
    for state in ("count", "price"):
        base, delta = (
            spark.read.parquet(
                *(snapshot.folder.path(file.path) for file in snapshot.manifest.files_of(kind, state=state))
            )
            for kind in ("keyed", "delta")
        )
        kept = base.join(delta, "key", "left_anti").select("key", "value")
        found = kept.union(delta.where(~F.col("deleted")).select("key", "value"))

        table = snapshot.to_arrow(state)
        expected = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
        assert {row["key"]: row["value"] for row in found.collect()} == expected
        assert len(expected) == 190
