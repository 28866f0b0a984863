"""Runs a function once in each partition of a DataFrame, even if Spark finds that the DataFrame has no rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

PartitionFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def no_rows(spark: SparkSession, partitions: int) -> DataFrame:
    """Return a DataFrame without rows for which Spark still runs a task in each partition."""
    return spark.range(0, partitions, 1, partitions).where("id < 0")


def run_in_partitions(frame: DataFrame, partitions: int, function: PartitionFunction, schema: str) -> list[Row]:
    """Run a function in each partition and collect what it yields.

    With adaptive execution, Spark runs no task for a plan that turns out to be empty. In that case the function runs in
    the same number of partitions without rows.
    """
    found = frame.mapInArrow(function, schema).collect()
    return found or no_rows(frame.sparkSession, partitions).mapInArrow(function, schema).collect()
