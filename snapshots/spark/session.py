"""A Spark session for a command."""

from __future__ import annotations

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
    spark = SparkSession.builder.appName("keygroups").config("spark.ui.enabled", "false").getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
