"""Runs a function once in each partition of a DataFrame, even if Spark finds that the DataFrame has no rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

PartitionFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_ADAPTIVE = "spark.sql.adaptive.enabled"


def no_rows(spark: SparkSession, partitions: int) -> DataFrame:
    """Return a DataFrame without rows for which Spark still runs a task in each partition."""
    return spark.range(0, partitions, 1, partitions).where("id < 0")


def run_in_partitions(
    frame: DataFrame, partitions: int, function: PartitionFunction, schema: StructType | str
) -> list[Row]:
    """Run a function in each partition of a DataFrame of a classic session, and collect what it yields.

    Spark runs no task for a plan that it finds to be empty. In that case the function runs in the same number of
    partitions without rows.
    """
    mapped = frame.mapInArrow(function, schema)
    _plan_at_once(mapped)
    found = mapped.collect()
    return found or no_rows(frame.sparkSession, partitions).mapInArrow(function, schema).collect()


def _plan_at_once(frame: DataFrame) -> None:
    """Have Spark plan a DataFrame without adaptive execution, which is off for this moment only.

    Adaptive execution runs the shuffle as a job of its own and plans again after it. Here it can change nothing for the
    better, because the number of partitions is fixed.
    """
    settings = frame.sparkSession.conf
    before = settings.get(_ADAPTIVE)
    settings.set(_ADAPTIVE, "false")
    try:
        frame._jdf.queryExecution().executedPlan()
    finally:
        settings.set(_ADAPTIVE, str(before))
