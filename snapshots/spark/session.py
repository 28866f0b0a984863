"""A Spark session for a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from keygroups.java import use_java


@contextmanager
def session() -> Iterator[SparkSession]:
    """Give a session on the master that the environment names, or on this machine; stop it in the end.

    Raises
    ------
    JavaNotFound
        There is no Java.
    """
    use_java()
    # Spark's own default is whatever python3 is on PATH, which may lack the packages of this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("keygroups").config("spark.ui.enabled", "false").getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
