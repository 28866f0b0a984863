"""What a Spark session is, classic or a client of a Spark Connect server, and which Python its workers run."""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keygroups.ranges import MAX_KEY_GROUPS

_DEFAULT_PYTHON = "python3"
"""What PySpark runs if `PYSPARK_PYTHON` was not set when the session was created."""


def is_connect(of: DataFrame | SparkSession) -> bool:
    """Tell whether a session (or a DataFrame's session) is a client of a server, without a JVM or SparkContext."""
    return type(of).__module__.startswith("pyspark.sql.connect.")


def setting(spark: SparkSession, name: str, default: str = "") -> str:
    """Return a setting of the application or of the session, with both kinds of session."""
    return str(spark.conf.get(name, default))


def is_elsewhere(spark: SparkSession) -> bool:
    """Tell whether workers run on other machines than the driver, as far as is known here."""
    return is_connect(spark) or setting(spark, "spark.master").partition("[")[0] != "local"


def choose_python(spark: SparkSession) -> None:
    """Give workers on this machine the driver's Python if none was chosen for them.

    What `python3` means depends on the `PATH`: it may be a Python without this library. Call it before a function or a
    data source of Python is made, because each keeps the Python of that moment.
    """
    if not is_elsewhere(spark) and spark.sparkContext.pythonExec == _DEFAULT_PYTHON and sys.executable:
        spark.sparkContext.pythonExec = sys.executable


def default_parallelism(spark: SparkSession) -> int:
    """Return how many tasks Spark makes of rows that it generates: by default, one for each core."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    # A client has no SparkContext, so it asks how many partitions such rows have.
    partitions = spark.range(MAX_KEY_GROUPS).select(F.spark_partition_id().alias("partition"))
    newest = partitions.agg(F.max("partition")).first()
    assert newest is not None, "an aggregate has a row"
    return 1 + int(newest[0])
