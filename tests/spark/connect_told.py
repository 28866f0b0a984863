"""What clients of a Spark Connect server are told when something is wrong.

As a program: ``python -m tests.spark.connect_told URL FOLDER CASE``.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op.spark import AsyncPipeline, ModuleNotOnWorkers
from tests.spark.connect_processes import session_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])


async def same(value: Any) -> Any:
    return value


def pipeline(folder: Path, function: Any = same, **options: Any) -> AsyncPipeline:
    common = {"output_schema": "id bigint", "operator_id": "look", "parallelism": 2, "snapshots": folder / "snapshots"}
    return AsyncPipeline(function, **(common | options))


def stream(spark: SparkSession, folder: Path, rows: int = 3) -> DataFrame:
    if not (folder / "in").exists():
        spark.range(rows).coalesce(1).write.parquet(str(folder / "in"))
    return spark.readStream.schema("id bigint").parquet(str(folder / "in"))


def sink(batch: DataFrame, epoch: int) -> None:
    batch.collect()


def a_module_beside_the_script(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """See that `start` names the module, that nothing is claimed, and that `explain` knows it."""
    (folder / "beside.py").write_text("async def look(value):\n    return value\n")
    sys.path.insert(0, str(folder))
    look = importlib.import_module("beside").look
    try:
        pipeline(folder, look).start(stream(spark, folder), sink, checkpoint_location=folder / "checkpoint")
    except ModuleNotOnWorkers as refused:
        assert refused.module == "beside"
    else:
        raise AssertionError("the server has no such module")
    (found,) = [one for one in pipeline(folder, look).explain().findings if "refuses" in one.problem]
    assert "No module named 'beside'" in found.advice
    spark.addArtifacts(str(folder / "beside.py"), pyfile=True)
    assert not [one for one in pipeline(folder, look).explain().findings if "refuses" in one.problem]
    return {"claimed": [str(one) for one in (folder / "snapshots").rglob("manifests/*")]}


CASES: dict[str, Callable[[SparkSession, Path], Any]] = {"a module beside the script": a_module_beside_the_script}


def main() -> None:
    """Run one case; prints what it returns."""
    url, folder, case = sys.argv[1:]
    with session_of(url) as spark:
        told = CASES[case](spark, Path(folder))
    print(json.dumps(told))  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
