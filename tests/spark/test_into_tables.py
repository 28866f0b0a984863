"""Pipelines that write into tables: each epoch once, also if the driver is killed when a table has an epoch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from async_op.connectors import (
    ConnectorNotInstalled,
    DeltaSink,
    TargetBehind,
    TargetMissing,
    TargetTaken,
    UnwritableValue,
)
from async_op.spark import AsyncPipeline
from async_op.spark.epoch import delivery
from keygroups import ConfigError
from snapshots import SnapshotStore
from snapshots.format.delivered import last_delivered
from tests.async_op.connectors.tables.targets import Delta, Iceberg, Postgres, Target
from tests.postgres_server import postgres_url
from tests.spark.exactly_once import session

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.spark

ROWS_PER_FILE = 20
FORMATS = ("delta", "iceberg", "parquet", "postgres")


async def name_it(row: dict[str, Any]) -> tuple[int, str]:
    return row["n"], f"name {row['n']}"


def pipeline(folder: Path, format: str) -> AsyncPipeline:
    return AsyncPipeline(
        name_it,
        key_by="n",
        output_schema="n bigint, name string",
        snapshots=folder / "snapshots",
        operator_id=f"into_{format}",
        barrier_timeout=None,
        parallelism=1,
        resident=False,
    )


def start(spark: SparkSession, folder: Path, format: str, of_format: dict[str, Any], adopt: Any = None) -> Any:
    """Start a pipeline whose micro-batches have a file each."""
    stream = spark.readStream.schema("n bigint").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    return pipeline(folder, format).to_table(
        stream,
        **of_format,
        format=format,
        checkpoint_location=folder / f"checkpoint_{format}",
        trigger={"availableNow": True},
        adopt=adopt,
    )


def be_killed(folder: Path, arguments: dict[str, Any]) -> None:
    """Run all pipelines until each has had its table write the first epoch and has not noted it; die then."""
    written = threading.Barrier(len(FORMATS), lambda: os.kill(os.getpid(), signal.SIGKILL))
    delivery.mark = lambda *_: written.wait()
    spark = session("local[2]", **{"spark.sql.shuffle.partitions": "1"})
    for query in [start(spark, folder, format, arguments[format]) for format in FORMATS]:
        query.awaitTermination()


class ParquetFiles(Target):
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "parquet"

    def rows(self) -> list[dict[str, Any]]:
        files = [str(path) for path in self.folder.glob("epoch=*/*.parquet")]
        return ds.dataset(files).to_table().to_pylist()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_url() as url:
        yield url


@pytest.mark.thorough
@pytest.mark.timeout(2400)
def test_each_epoch_is_in_the_table_once_although_the_driver_was_killed(
    spark: SparkSession, tmp_path: Path, server: str
) -> None:
    for first in (0, ROWS_PER_FILE):
        spark.range(first, first + ROWS_PER_FILE, 1, 1).toDF("n").write.mode("append").parquet(str(tmp_path / "in"))
    targets = {
        "delta": Delta(tmp_path),
        "iceberg": Iceberg(tmp_path),
        "parquet": ParquetFiles(tmp_path),
        "postgres": Postgres(server),
    }
    arguments = {
        "delta": {"table": targets["delta"].arguments[0]},
        "iceberg": {"table": "sales.orders", **targets["iceberg"].keywords},
        "parquet": {"table": str(tmp_path / "parquet")},
        "postgres": {"table": "public.orders", "url": server},
    }
    killed = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.test_into_tables", str(tmp_path), json.dumps(arguments)],
        start_new_session=True,
    )
    assert killed.wait() == -signal.SIGKILL
    for format, target in targets.items():
        assert len(target.rows()) == ROWS_PER_FILE
        assert last_delivered(SnapshotStore(tmp_path / "snapshots", f"into_{format}").load().folder) is None

    for query in [start(spark, tmp_path, format, arguments[format]) for format in FORMATS]:
        query.awaitTermination()
    for target in targets.values():
        assert target.numbers() == [*range(2 * ROWS_PER_FILE)]
        assert {row["name"] for row in target.rows()} == {f"name {n}" for n in range(2 * ROWS_PER_FILE)}


@pytest.mark.parametrize(
    ("format", "options", "complaint"),
    [
        ("orc", {}, "format='orc'.*delta, iceberg, parquet, postgres"),
        ("delta", {"catalog": {"token": "s3cr3t"}}, "catalog='…'.*takes name and storage_options"),
        ("parquet", {"name": "job"}, "name='job'.*takes no options"),
        ("parquet", {"url": "postgresql://me:s3cr3t@db"}, "url='…'.*takes no options"),
        ("iceberg", {}, "catalog=None: pass pyiceberg's properties"),
        ("iceberg", {"table": "t", "catalog": {"uri": "s3cr3t"}}, "table='t': name it with its namespace, as in"),
        ("postgres", {"url": ""}, "url='': pass the database"),
        ("delta", {"name": ""}, "name=''"),
        ("delta", {"table": ""}, "table='': it is empty; name the table"),
        ("delta", {"trigger": {"continuous": "1 second"}}, "trigger"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_made(
    spark: SparkSession, tmp_path: Path, format: Any, options: dict[str, Any], complaint: str
) -> None:
    arguments = {"table": str(tmp_path / "table"), "checkpoint_location": tmp_path / "checkpoint"} | options
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigError, match=complaint) as refused:
        pipeline(tmp_path, "any").to_table(stream, format=format, **arguments)

    assert "s3cr3t" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("column", ["epoch", "Epoch", "EPOCH"])
def test_a_column_with_the_name_of_the_folders_is_refused(spark: SparkSession, tmp_path: Path, column: str) -> None:
    one = AsyncPipeline(
        name_it,
        key_by="value",
        output_schema=f"n bigint, {column} bigint",
        snapshots=tmp_path / "snapshots",
        operator_id="any",
        parallelism=1,
    )
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigError, match=f"rename '{column}'"):
        one.to_table(stream, tmp_path / "table", format="parquet", checkpoint_location=tmp_path / "checkpoint")
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_does_not_fit_is_told_before_the_first_epoch(
    spark: SparkSession, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value as n")
    begin = lambda table, **options: pipeline(tmp_path, "any").to_table(  # noqa: E731
        stream, table, checkpoint_location=tmp_path / "checkpoint", **options
    )
    Delta(tmp_path).sink()(spark.range(1).selectExpr("id as n", "1 as other"), 1)
    with pytest.raises(UnwritableValue, match="no column 'name'"):
        begin(tmp_path / "delta", format="delta")
    with pytest.raises(TargetMissing, match="nowhere"):
        begin("nowhere", format="postgres", url=server)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConnectorNotInstalled, match=r"keygroups\[delta\]"):
        begin(tmp_path / "delta", format="delta")

    assert not (tmp_path / "snapshots").exists()


def test_epochs_of_another_pipeline_are_not_taken_for_those_of_this_one(spark: SparkSession, tmp_path: Path) -> None:
    target = Delta(tmp_path)
    for day, first in (("monday", 0), ("tuesday", 5)):
        spark.range(first, first + 5, 1, 1).toDF("n").write.parquet(str(tmp_path / day / "in"))
    start(spark, tmp_path / "monday", "delta", {"table": target.arguments[0]}).awaitTermination()
    with pytest.raises(Exception, match="written by another job"):
        start(spark, tmp_path / "tuesday", "delta", {"table": target.arguments[0]}).awaitTermination()
    named = {"table": target.arguments[0], "name": "tuesday"}
    start(spark, tmp_path / "tuesday", "delta", named).awaitTermination()
    assert target.numbers() == list(range(10))


def test_two_pipelines_with_one_sink_lose_no_row(spark: SparkSession, tmp_path: Path) -> None:
    target, numbers = Delta(tmp_path), {"monday": range(5), "tuesday": range(5, 10)}
    for day, of_day in numbers.items():
        spark.range(of_day.start, of_day.stop, 1, 1).toDF("n").write.parquet(str(tmp_path / day / "in"))
    sink, queries = target.sink(), {}
    for day in numbers:
        stream = spark.readStream.schema("n bigint").parquet(str(tmp_path / day / "in"))
        queries[day] = pipeline(tmp_path / day, "delta").start(
            stream, sink, checkpoint_location=tmp_path / day / "checkpoint", trigger={"availableNow": True}
        )
    refused = []
    for day, query in queries.items():
        try:
            query.awaitTermination()
        except TargetTaken:
            refused.append(day)
    assert len(refused) == 1
    assert target.numbers() == [n for day in numbers for n in numbers[day] if day not in refused]


def test_parquet_files_of_another_pipeline_are_not_replaced(spark: SparkSession, tmp_path: Path) -> None:
    target, arguments = ParquetFiles(tmp_path), {"table": str(tmp_path / "parquet")}
    for day, first in (("monday", 0), ("tuesday", 5)):
        spark.range(first, first + 5, 1, 1).toDF("n").write.parquet(str(tmp_path / day / "in"))
    start(spark, tmp_path / "monday", "parquet", arguments).awaitTermination()
    with pytest.raises(TargetTaken, match="remove _lineage from this one"):
        start(spark, tmp_path / "tuesday", "parquet", arguments).awaitTermination()
    assert target.numbers() == list(range(5))
    assert spark.read.parquet(arguments["table"]).columns == ["n", "name", "epoch"]
    assert polars.read_parquet(f"{arguments['table']}/*/*.parquet").height == 5

    spark.range(10, 15, 1, 1).toDF("n").write.mode("append").parquet(str(tmp_path / "monday" / "in"))
    start(spark, tmp_path / "monday", "parquet", arguments).awaitTermination()
    assert target.numbers() == [*range(5), *range(10, 15)]
    for path in (tmp_path / "parquet" / "_lineage").iterdir():
        path.unlink()  # as after a crash
    start(spark, tmp_path / "tuesday", "parquet", arguments).awaitTermination()
    assert set(range(5, 10)) <= set(target.numbers())


def test_rows_after_going_back_are_not_skipped_as_repeated_ones(spark: SparkSession, tmp_path: Path) -> None:
    target, kept, saved = Delta(tmp_path), tmp_path / "kept", tmp_path / "saved"
    arguments = {"table": target.arguments[0]}
    for first in (0, 5, 10):
        spark.range(first, first + 5, 1, 1).toDF("n").write.mode("append").parquet(str(kept / "in"))
        start(spark, kept, "delta", arguments).awaitTermination()
        if first == 0:
            shutil.copytree(kept, saved)
    shutil.rmtree(kept)
    shutil.copytree(saved, kept)
    spark.range(100, 105, 1, 1).toDF("n").write.mode("append").parquet(str(kept / "in"))
    with pytest.raises(Exception, match="restore the table as it was at epoch 1"):
        start(spark, kept, "delta", arguments).awaitTermination()
    assert target.numbers() == list(range(15))


def test_a_table_that_has_lost_epochs_is_noticed_before_the_first_call(spark: SparkSession, tmp_path: Path) -> None:
    target = Delta(tmp_path)
    arguments = {"table": target.arguments[0]}
    for first in (0, 5, 10):
        spark.range(first, first + 5, 1, 1).toDF("n").write.mode("append").parquet(str(tmp_path / "in"))
        start(spark, tmp_path, "delta", arguments).awaitTermination()
        if first == 0:
            shutil.copytree(tmp_path / "delta", tmp_path / "backup")
    shutil.rmtree(tmp_path / "delta")
    shutil.copytree(tmp_path / "backup", tmp_path / "delta")
    spark.range(15, 20, 1, 1).toDF("n").write.mode("append").parquet(str(tmp_path / "in"))
    sink = DeltaSink(target.arguments[0], "into_delta")
    told = [one.advice for one in pipeline(tmp_path, "delta").explain(sink=sink).findings if one.is_refusal]
    with pytest.raises(TargetBehind, match="restored from a backup") as raised:
        start(spark, tmp_path, "delta", arguments)
    assert [str(raised.value) in one for one in told] == [True]
    assert target.numbers() == list(range(5))


def test_a_table_goes_on_where_state_is_given_up(spark: SparkSession, tmp_path: Path) -> None:
    """The empty state that stands for a checkpoint names no epoch, and later epochs are newer than all earlier ones."""
    target = Delta(tmp_path)
    arguments = {"table": target.arguments[0]}
    for first, adopt in ((0, None), (5, "checkpoint"), (10, None)):
        spark.range(first, first + 5, 1, 1).toDF("n").write.mode("append").parquet(str(tmp_path / "in"))
        if adopt:
            shutil.rmtree(tmp_path / "checkpoint_delta")
        start(spark, tmp_path, "delta", arguments, adopt=adopt).awaitTermination()
    assert target.numbers() == sorted([*range(15), *range(5)])


def test_the_explanation_names_the_sink(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    one = pipeline(tmp_path, "delta")
    assert "sink" not in one.explain().operators["into_delta"]
    stream = spark.readStream.schema("n bigint").parquet(str(tmp_path / "in"))
    made = tmp_path / "made"
    query = one.to_table(stream, made, format="delta", checkpoint_location=tmp_path / "checkpoint")
    query.stop()

    assert one.explain().operators["into_delta"]["sink"].startswith("DeltaSink(table='")
    assert DeltaTable(str(made)).schema().to_arrow().names == ["n", "name"]


if __name__ == "__main__":
    be_killed(Path(sys.argv[1]), json.loads(sys.argv[2]))
