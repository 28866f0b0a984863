"""The names that Spark's pages show for jobs."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from async_op.spark.epoch.job_names import named_jobs


def test_the_names_of_jobs_are_given_back(spark: SparkSession) -> None:
    context = spark.sparkContext
    context.setJobDescription("mine")
    try:
        with pytest.raises(OSError, match="no"), named_jobs(spark, "count", 1, "sink"):
            assert context.getLocalProperty("spark.job.description") == "AsyncPipeline count, epoch 1: sink"
            raise OSError("no")
        assert context.getLocalProperty("spark.job.description") == "mine"
    finally:
        context.setJobDescription(None)  # type: ignore[arg-type]
