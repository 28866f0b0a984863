"""Writes the archive of the classes that Spark loads, for the JVMs of the tests; `make test` calls it once."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from snapshots.java import use_java
from tests.jvm import ARCHIVE, OPTIONS

_WRITING_SECONDS = 300


def main() -> None:
    """Load classes in a JVM, which writes them when it ends, and put the archive in its place."""
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        written = Path(folder, ARCHIVE.name)
        os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={written} -Xlog:disable"
        os.environ["PYSPARK_PYTHON"] = sys.executable
        use_java()
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        _load_classes(spark, Path(folder))
        jvm = spark.sparkContext._gateway.proc
        spark.stop()
        jvm.stdin.close()
        jvm.wait(_WRITING_SECONDS)
        written.replace(ARCHIVE)


def _load_classes(spark: SparkSession, folder: Path) -> None:
    """Do what most tests do: a stream of files, a shuffle, rows through Python, a Parquet sink."""
    spark.range(100).write.parquet(f"{folder}/input")
    rows = spark.readStream.schema("id bigint").parquet(f"{folder}/input")

    def write(batch: DataFrame, _: int) -> None:
        batch.repartition(2, "id").mapInArrow(_unchanged, batch.schema).write.parquet(f"{folder}/output")

    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
    spark.read.parquet(f"{folder}/output").collect()


def _unchanged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    main()
