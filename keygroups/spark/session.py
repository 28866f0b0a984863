"""What a Spark session is: classic, inside the driver's process, or a client of a Spark Connect server."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession


def is_connect(of: DataFrame | SparkSession) -> bool:
    """Tell whether a session (or a DataFrame's session) is a client of a server, without a JVM or SparkContext."""
    return type(of).__module__.startswith("pyspark.sql.connect.")


def setting(spark: SparkSession, name: str, default: str = "") -> str:
    """Return a setting of the application or of the session, with both kinds of session."""
    return str(spark.conf.get(name, default))
