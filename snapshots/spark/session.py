"""A Spark session for a command-line command."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from snapshots.java import use_java


@contextmanager
def session() -> Iterator[SparkSession]:
    """Yield a session on the master that the environment names, or on this machine, and stop it at the end.

    Raises
    ------
    JavaNotFound
        There is no Java that Spark can run on.
    """
    use_java()
    # Spark's default is the python3 on PATH, which may lack the packages of this interpreter.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("keygroups").config("spark.ui.enabled", "false").getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
