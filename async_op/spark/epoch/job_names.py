"""The descriptions of an epoch's jobs in Spark's web UI, which otherwise shows where in Python a job was started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from keygroups.spark.session import is_connect

_DESCRIPTION = "spark.job.description"


@contextmanager
def named_jobs(spark: SparkSession, operator_id: str, epoch: int, what: str) -> Iterator[None]:
    """Describe the jobs that this thread starts as those of an epoch, then restore the old description.

    The thread may be that of Spark's streaming query, whose own description of its micro-batch must stay. A client of
    Spark Connect cannot describe jobs, so there they keep Spark's description.
    """
    if is_connect(spark):
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, f"AsyncPipeline {operator_id}, epoch {epoch}: {what}")
    try:
        yield
    finally:
        # None removes the property, although PySpark annotates it as text.
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]
