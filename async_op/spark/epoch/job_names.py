"""What Spark's pages call the jobs of an epoch: without a description, they show where Python was called from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_DESCRIPTION = "spark.job.description"


@contextmanager
def named_jobs(spark: SparkSession, operator_id: str, epoch: int, what: str) -> Iterator[None]:
    """Name the jobs that this thread starts after an epoch; afterwards all is as it was.

    Spark's own thread of a query comes through here, and what it has set for its micro-batch is to stay.
    """
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, f"AsyncPipeline {operator_id}, epoch {epoch}: {what}")
    try:
        yield
    finally:
        # None removes it, though the annotation of PySpark says text only.
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]
