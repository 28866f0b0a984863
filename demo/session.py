"""The Spark session of the demo's processes: two cores of this machine, and few words."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from keygroups.java import use_java

_SETTINGS = {
    # Nothing of the demo needs the network, nor should it ask what this machine is called.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Two cores: the default of 200 is for a cluster.
    "spark.sql.shuffle.partitions": "2",
}


def start_spark(name: str) -> SparkSession:
    """Start Spark in this process, on the Java that can be found and this very Python."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").appName(name).config(map=_SETTINGS).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
