"""The Python of Spark's workers, and modules that they cannot import: known before anything is claimed."""

from __future__ import annotations

import importlib
import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncDataStream, Job
from async_op.connectors.epoch_rows import FrameRows
from async_op.spark import AsyncPipeline, ModuleNotOnWorkers, UnsuitableWorkerPython, worker_python
from async_op.spark.worker_python import check_workers, module_not_found
from keygroups.spark import key_group_column
from snapshots.spark import register

pytestmark = pytest.mark.spark

BESIDE = """
from async_op import AsyncFunction

class Look(AsyncFunction):
    async def async_invoke(self, value, ctx):
        return [value]
"""


async def same(value: Any) -> Any:
    return value


def script(folder: Path, line: str) -> str:
    """Return an executable that stands for a Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


PYTHONS: dict[str, tuple[Callable[[Path], str], str]] = {
    "without the library": (
        lambda folder: script(folder, f'exec {sys.executable} -I -S "$@"'),
        "cannot import async_op",
    ),
    "of another version": (
        lambda folder: script(folder, "echo '[[3, 2], []]'"),
        r"is Python 3\.2, while the driver's is",
    ),
    "that does not exist": (lambda folder: str(folder / "none"), "does not run"),
    "that fails": (lambda folder: script(folder, "exit 3"), "does not run"),
}


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the module `beside_<n>`, which only the driver can import; the name is new, as workers cache modules."""
    name = f"beside_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(BESIDE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(name)
    sys.modules.pop(name)


def pipeline(folder: Path, function: Any = same) -> AsyncPipeline:
    return AsyncPipeline(
        function, output_schema="id bigint", snapshots=folder / "snapshots", operator_id="look", parallelism=2
    )


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    (folder / "in").mkdir(exist_ok=True)
    return spark.readStream.schema("id bigint").parquet(str(folder / "in"))


def start(spark: SparkSession, folder: Path, function: Any) -> object:
    place = folder / "checkpoint"
    return pipeline(folder, function).start(stream(spark, folder), lambda *_: None, checkpoint_location=place)


def bounded_run(spark: SparkSession, folder: Path, function: Any) -> None:
    pipeline(folder, function).run(spark.range(3), lambda *_: None, run_id="r")


def transform(spark: SparkSession, folder: Path, function: Any) -> DataFrame:
    return AsyncDataStream.ordered_wait(spark.range(3), function, output_schema="id bigint")


DOORS = {"start": start, "run": bounded_run, "transform": transform}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", PYTHONS)
def test_a_python_that_cannot_run_the_function_is_refused_before_anything_is_claimed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, door: str
) -> None:
    make, reason = PYTHONS[case]
    monkeypatch.setattr(spark.sparkContext, "pythonExec", make(tmp_path))
    with pytest.raises(UnsuitableWorkerPython, match=reason) as refused:
        DOORS[door](spark, tmp_path, same)
    assert f"set PYSPARK_PYTHON={sys.executable}" in str(refused.value)
    assert not (tmp_path / "snapshots").exists()
    assert str(refused.value) in " ".join(one.advice for one in pipeline(tmp_path).explain().findings)


def read_snapshot(spark: SparkSession, folder: Path) -> list[Any]:
    Job([1, 2, 3], same, lambda values, epoch: None, snapshots=folder, job_id="same").run_sync()
    register(spark)
    return spark.read.format("keygroups").option("what", "metadata").load(str(folder / "same")).collect()


USES: dict[str, Callable[[SparkSession, Path], object]] = {
    "transform": lambda spark, folder: transform(spark, folder, same).collect(),
    "data source": read_snapshot,
    "key groups by Flink's hash": lambda spark, _: spark.range(3).select(key_group_column("id", 8, "flink")).collect(),
    "a sink's rows": lambda spark, _: list(FrameRows(spark.range(3)).dicts()),
}


@pytest.mark.parametrize("use", USES)
def test_where_no_python_was_chosen_workers_get_the_python_of_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python3")
    assert USES[use](spark, tmp_path)
    assert spark.sparkContext.pythonExec == sys.executable


@pytest.mark.parametrize("door", DOORS)
def test_a_module_beside_the_script_is_refused_and_taken_once_it_was_sent(
    spark: SparkSession, tmp_path: Path, beside: Any, door: str
) -> None:
    with pytest.raises(ModuleNotOnWorkers) as refused:
        DOORS[door](spark, tmp_path, beside.Look())
    assert refused.value.module == beside.__name__
    assert f"spark.addArtifacts('{beside.__file__}', pyfile=True)" in str(refused.value)
    assert not (tmp_path / "snapshots").exists()
    assert str(refused.value) in " ".join(one.advice for one in pipeline(tmp_path, beside.Look()).explain().findings)

    spark.addArtifacts(beside.__file__, pyfile=True)
    check_workers(spark, beside.Look())
    assert transform(spark, tmp_path, beside.Look()).collect() == spark.range(3).collect()


def test_an_installed_module_needs_no_probe(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)

    async def call(value: Any) -> Any:
        return pytest.approx(json.loads(value))

    check_workers(spark, call)


def test_on_a_cluster_explain_runs_one_task_that_tells(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: Any
) -> None:
    monkeypatch.setattr(worker_python, "is_elsewhere", lambda session: True)
    monkeypatch.setattr("async_op.spark.description.is_elsewhere", lambda session: True)
    wrong = " ".join(one.advice for one in pipeline(tmp_path, beside.Look()).explain().findings)
    assert f"ModuleNotFoundError: No module named '{beside.__name__}'" in wrong
    assert not [one for one in pipeline(tmp_path).explain().findings if "refuses" in one.problem]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("... ModuleNotFoundError: No module named 'helpers.prices'\n", ModuleNotOnWorkers),
        ("... ModuleNotFoundError: No module named 'async_op'\n", UnsuitableWorkerPython),
        ("... ImportError: another", type(None)),
    ],
)
def test_the_error_of_a_server_names_the_module(text: str, kind: type) -> None:
    assert type(module_not_found(text)) is kind
