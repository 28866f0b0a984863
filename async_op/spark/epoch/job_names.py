"""The names of an epoch's jobs: descriptions for Spark's web UI, and tags by which the jobs can be cancelled."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import SparkSession

from keygroups.context_managers import contextmanager
from keygroups.spark.session import is_connect

_DESCRIPTION = "spark.job.description"


@contextmanager
def named_jobs(spark: SparkSession, operator_id: str, epoch: int, what: str) -> Iterator[None]:
    """Describe the jobs that this thread starts as an epoch's, then restore the old description.

    The thread may belong to Spark's streaming query, whose own description of its micro-batch must stay. A client of
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


@contextmanager
def cancellable_jobs(spark: SparkSession, tag: str) -> Iterator[None]:
    """Let `cancel_jobs` cancel the jobs that this thread starts meanwhile."""
    is_client = is_connect(spark)
    spark.addTag(tag) if is_client else spark.sparkContext.addJobTag(tag)
    try:
        yield
    finally:
        spark.removeTag(tag) if is_client else spark.sparkContext.removeJobTag(tag)


def cancel_jobs(spark: SparkSession, tag: str) -> None:
    """Cancel all jobs with a tag."""
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def are_cancelled(error: Exception) -> bool:
    """Tell whether an error says that jobs were cancelled."""
    return any(word in str(error) for word in ("SPARK_JOB_CANCELLED", "OPERATION_CANCELED"))
