"""Spark Connect: the code of the documentation, the stateless transform, bounded runs and the data source work.

In a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from textwrap import dedent

import pytest

pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")

ROOT = Path(__file__).parents[2]

BEFORE = """
from async_op.spark import ConnectQuery
from tests.spark.connect_processes import patient

ConnectQuery.start = patient(ConnectQuery.start)
"""

SCRIPT = """
import asyncio
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from async_op import AsyncBatchFunction, AsyncDataStream, AsyncFunction
from async_op.spark import AsyncPipeline, split_dead_letters
from snapshots.spark import register

class Double(AsyncFunction):
    async def async_invoke(self, value, ctx):
        await asyncio.sleep(0.001)
        if value["id"] == 7:
            raise ValueError("the service said no")
        return [(value["id"], 2 * value["id"])]

class DoubleKeyed(Double):
    async def async_invoke(self, value, ctx):
        return [(value["id"], 2 * value["id"])]

class DoubleAll(AsyncBatchFunction):
    arrow = True
    async def async_invoke_batch(self, batch, ctx):
        return batch.append_column("twice", pc.multiply(batch.column("id"), 2))

SCHEMA = "id bigint, twice bigint"
spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect")
frame = spark.range(0, 100, 1, 2)

letters = {"on_error": "dead_letter", "dead_letters": "column"}
outputs, dead = split_dead_letters(AsyncDataStream.ordered_wait(frame, Double(), output_schema=SCHEMA, **letters))
assert sorted(map(tuple, outputs.collect())) == [(n, 2 * n) for n in range(100) if n != 7]
assert [row.value for row in dead.collect()] == ['{"id": 7}']

outputs = AsyncDataStream.unordered_wait(frame, DoubleAll(), output_schema=SCHEMA)
assert sorted(map(tuple, outputs.collect())) == [(n, 2 * n) for n in range(100)]

try:
    AsyncDataStream.unordered_wait(frame, Double(), output_schema=SCHEMA).collect()
except Exception as error:
    assert "attempt 1 of element {'id': 7}" in str(error), error
else:
    raise AssertionError("it did not fail")

delivered = []
pipeline = AsyncPipeline(DoubleKeyed(), key_by="id", output_schema=SCHEMA, snapshots="snapshots", operator_id="double",
                         parallelism=2)
pipeline.run(frame, lambda batch, epoch: delivered.extend(map(tuple, batch.collect())), run_id="all")
assert sorted(delivered) == [(n, 2 * n) for n in range(100)]

register(spark)
rows = spark.range(0, 100, 1, 3).selectExpr("id as key", "2 * id as value")
options = {"state": "twice", "parallelism": 2, "max_parallelism": 16}
rows.write.format("keygroups").mode("append").options(**options).save("snapshots/written")
stored = spark.read.format("keygroups").load("snapshots/written")
assert sorted((row.key, row.value) for row in stored.collect()) == [(n, 2 * n) for n in range(100)]
assert [row.value for row in stored.where("key = 30").collect()] == [60]

ticks = spark.readStream.format("rate").option("rowsPerSecond", 20).load().selectExpr("value + 8 as id")
query = (AsyncDataStream.unordered_wait(ticks, Double(), output_schema=SCHEMA)
         .writeStream.format("memory").queryName("doubled").start())
for _ in range(60):
    if spark.table("doubled").count() or query.awaitTermination(1):
        break
assert spark.table("doubled").where("twice = id * 2").count()
query.stop()

spark.stop()
print("done")
"""


@pytest.mark.thorough
def test_the_page_and_this_script_run_over_connect(java: None, tmp_path: Path) -> None:
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
    section = (ROOT / "docs" / "howto" / "spark-connect.md").read_text()
    page = takewhile(lambda line: line[:4].isspace(), section[section.index("    import") :].splitlines(keepends=True))
    (tmp_path / "connect.py").write_text(BEFORE + dedent("".join(page)) + SCRIPT)
    ended = subprocess.run(
        [sys.executable, "connect.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert ended.stdout.endswith("done\n")
    assert "FileNotFoundException" not in ended.stderr, "a checkpoint that is new is nothing to log"
