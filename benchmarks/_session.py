"""The Spark session of the benchmarks."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from snapshots.java import use_java


def session(cores: int) -> SparkSession:
    """Return a session in this process, with so many cores for tasks."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{cores}]").appName("keygroups benchmark")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
