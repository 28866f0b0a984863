"""How rows find their subtasks: by Flink's hash, and without keys."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from async_op import AsyncBatchFunction, AsyncFunction
from async_op.spark import AsyncPipeline
from keygroups import ConfigError, NullKey, UnsupportedKey, ValueState, key_groups_of, subtask_of
from keygroups.spark import key_group_column, subtask_column
from snapshots import IncompatibleSnapshot
from tests.quick import first_is_quick
from tests.spark.runs import PipelineRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

COUNT = ValueState("count", pa.int64(), default=0)
ROWS = 60


class Count(AsyncFunction):
    """Numbers the rows of each key."""

    states = (COUNT,)

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(value["id"], str(ctx.key), count.value())]


FLINK_KEYS = {
    "int": ("cast(id as int)", pa.int32()),
    "bigint": ("id - 5", pa.int64()),
    "double": ("id / 3", pa.float64()),
    "string": ("concat('é', id)", pa.string()),
    "boolean": ("id % 2 = 0", pa.bool_()),
}


@pytest.mark.parametrize("kind", FLINK_KEYS)
def test_flinks_key_groups_are_those_of_python(spark: SparkSession, kind: str) -> None:
    expression, arrow_type = FLINK_KEYS[kind]
    rows = spark.range(ROWS).selectExpr(f"{expression} as a", "concat('u', id) as b")
    found = rows.select("a", "b", key_group_column("a", 128, "flink"), key_group_column(["a", "b"], 128, hash="flink"))
    a, b, one, two = zip(*found.collect(), strict=True)
    keys = pa.array(a, arrow_type)
    assert list(one) == key_groups_of(keys, 128, "flink").tolist()
    pairs = pa.StructArray.from_arrays([keys, pa.array(b)], ["a", "b"])
    assert list(two) == key_groups_of(pairs, 128, "flink").tolist()
    subtasks = rows.select(subtask_column("a", 3, 128, "flink")).collect()
    assert [row[0] for row in subtasks] == [subtask_of(group, 3, 128) for group in one]


def test_a_null_has_no_key_group_by_flinks_hash_either(spark: SparkSession) -> None:
    with pytest.raises(PythonException, match="NullKey"):
        spark.range(1).select(key_group_column(F.expr("nullif(id, 0)"), 128, "flink")).collect()


class FlinkRun(PipelineRun):
    """Rows of users with a rank; one user and one rank are null."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(
            spark,
            folder,
            Count(),
            "id bigint, user string, rank int, price decimal(9,2)",
            key_by=["user", "rank"],
            output_schema="id bigint, key string, count bigint",
            operator_id="count",
            hash="flink",
        )

    def add_rows(self) -> None:
        user, rank = "if(id = 7, null, concat('u', id % 3)) as user", "cast(if(id = 8, null, id % 2) as int) as rank"
        self.write_file(self.spark.range(ROWS).selectExpr("id", user, rank, "cast(1 as decimal(9,2)) as price"))


@pytest.fixture
def flink(spark: SparkSession, tmp_path: Path) -> Iterator[FlinkRun]:
    run = FlinkRun(spark, tmp_path)
    run.add_rows()
    yield run
    run.stop()


def test_a_pipeline_with_flinks_hash_counts_over_a_rescale_and_refuses_another_hash(flink: FlinkRun) -> None:
    pipeline = flink.run(on_error="skip")
    assert sum(epoch.skipped for epoch in pipeline.progress()) == 2
    flink.add_rows()
    flink.run(on_error="skip", parallelism=3)
    rows = [row for rows in flink.delivered.values() for row in rows]
    wanted = [n for n in range(ROWS) if n not in (7, 8)] * 2
    assert sorted(row[0] for row in rows) == sorted(wanted)
    for key in {row[1] for row in rows}:
        counts = sorted(row[2] for row in rows if row[1] == key)
        assert counts == list(range(1, len(counts) + 1))
    latest = flink.store.latest()
    assert latest is not None
    assert latest.manifest.hash == "flink"
    versions = flink.store.versions()
    with pytest.raises(IncompatibleSnapshot, match="hash.*--rewrite --parallelism 2 --hash xxhash64"):
        flink.run(hash="xxhash64")
    assert flink.store.versions() == versions


def test_with_flinks_hash_too_a_null_key_is_named_and_a_type_that_flink_has_not_is_refused(flink: FlinkRun) -> None:
    with pytest.raises(NullKey, match=r"element \{'id': [78]"):
        flink.run()
    with pytest.raises(UnsupportedKey, match=r"decimal\(9,2\) \(column 'price'\)"):
        flink.run(key_by="price")
    with pytest.raises(ConfigError, match="hash='md5'"):
        flink.run(hash="md5")
    assert flink.store.versions() == []


class Echo(AsyncFunction):
    """Returns each row with its idempotency key; every tenth call lasts until `released` exists."""

    def __init__(self, folder: Path) -> None:
        self.released = folder / "released"
        self.calls = folder / "calls"

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        with self.calls.open("a") as calls:
            calls.write(json.dumps([value["id"], ctx.idempotency_key]) + "\n")
        while value["id"] % 10 == 0 and not self.released.exists():
            await asyncio.sleep(0.01)
        return [(value["id"], ctx.idempotency_key)]


class KeylessRun(PipelineRun):
    """Rows without a key; each comes twice in a file, one of its columns is a map."""

    def __init__(self, spark: SparkSession, folder: Path, **settings: Any) -> None:
        self.echo = Echo(folder)
        super().__init__(
            spark,
            folder,
            self.echo,
            "id bigint, tags map<string,bigint>, ratio double",
            output_schema="id bigint, element string",
            operator_id="echo",
            barrier_timeout=0.5,
            **settings,
        )

    def add_rows(self) -> None:
        rows = self.spark.range(ROWS).selectExpr("id", "map('n', id) as tags", "id / 7 as ratio")
        self.write_file(rows.union(rows))

    def calls(self) -> list[list[Any]]:
        return [json.loads(line) for line in self.echo.calls.read_text().splitlines()]


@pytest.mark.parametrize("resident", first_is_quick([True, False]), ids=["resident", "in tasks"])
def test_rows_without_a_key_go_through_with_ids_of_their_own_also_over_a_rescale(
    spark: SparkSession, tmp_path: Path, resident: bool
) -> None:
    run = KeylessRun(spark, tmp_path, resident=resident)
    run.add_rows()
    run.fail_sink_at = 1
    with pytest.raises(OSError, match="the sink is down"):
        run.run()
    latest = run.store.latest()
    assert latest is not None
    # A busy machine may make fewer calls by the end of the epoch; those that are held up have not returned in any case.
    assert not [number for number, _ in run.delivered[1] if number % 10 == 0]
    assert latest.in_flight_count == 2 * ROWS - len(run.delivered[1])
    assert sum(channel.keyless for channel in latest.manifest.channels) == latest.in_flight_count
    run.echo.released.touch()
    run.run(parallelism=3)
    rows = sorted(row for rows in run.delivered.values() for row in rows)
    assert [row[0] for row in rows] == sorted([*range(ROWS)] * 2)
    assert len({element for _, element in rows}) == 2 * ROWS
    assert {tuple(call) for call in run.calls()} == set(rows), "a repeated call has its old idempotency key"
    run.stop()


def test_without_keys_nobody_has_keyed_state_and_a_keyed_folder_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="key_by=None: Count declares keyed state"):
        FlinkRun(spark, tmp_path).pipeline(key_by=None)
    run = KeylessRun(spark, tmp_path)
    with pytest.raises(ConfigError, match="key_by=None: Echo runs in mode 'key_ordered'"):
        run.pipeline(mode="key_ordered")
    run.echo.released.touch()
    run.add_rows()
    run.run(key_by="id")
    with pytest.raises(IncompatibleSnapshot, match="key columns.*'id bigint', but 'none'"):
        run.run()


class Batches(AsyncBatchFunction):
    arrow = True

    async def async_invoke_batch(self, values: Any, ctxs: Any) -> Any:
        return values


@pytest.mark.parametrize("key_by", ["id", None])
def test_a_function_of_record_batches_is_refused(tmp_path: Path, key_by: str | None) -> None:
    common: dict[str, Any] = {"snapshots": tmp_path, "operator_id": "b", "parallelism": 1, "output_schema": "id bigint"}
    with pytest.raises(ConfigError, match="set arrow = False"):
        AsyncPipeline(Batches(), key_by=key_by, **common)
