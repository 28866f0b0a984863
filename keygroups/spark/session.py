"""What a Spark session is: classic, inside the driver's process, or a client of a Spark Connect server."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keygroups.ranges import MAX_KEY_GROUPS


def is_connect(of: DataFrame | SparkSession) -> bool:
    """Tell whether a session (or a DataFrame's session) is a client of a server, without a JVM or SparkContext."""
    return type(of).__module__.startswith("pyspark.sql.connect.")


def setting(spark: SparkSession, name: str, default: str = "") -> str:
    """Return a setting of the application or of the session, with both kinds of session."""
    return str(spark.conf.get(name, default))


def default_parallelism(spark: SparkSession) -> int:
    """Return how many tasks Spark makes of rows that it generates: by default, one for each core."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    # A client has no SparkContext, so it asks how many partitions such rows have.
    partitions = spark.range(MAX_KEY_GROUPS).select(F.spark_partition_id().alias("partition"))
    newest = partitions.agg(F.max("partition")).first()
    assert newest is not None, "an aggregate has a row"
    return 1 + int(newest[0])
