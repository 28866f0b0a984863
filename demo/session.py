"""The Spark session of the demo's processes: on this machine, and with few words."""

from __future__ import annotations

import os
import sys
import tempfile

from pyspark.sql import SparkSession

from snapshots.java import use_java

_SETTINGS: dict[str, bool | float | int | str | None] = {
    # Nothing of the demo needs the network, nor should it ask what this machine is called.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # A run of two minutes is over before the optimising compiler has earned back what it takes from two cores.
    # A JVM does not look at TMPDIR, where a killed one shall leave what it leaves.
    "spark.driver.extraJavaOptions": f'-XX:TieredStopAtLevel=1 "-Djava.io.tmpdir={tempfile.gettempdir()}"',
    # Two cores: the default of 200 is for a cluster.
    "spark.sql.shuffle.partitions": "2",
}


def start_spark(name: str, tasks: int = 2) -> SparkSession:
    """Start Spark in this process, on the Java that can be found and this very Python.

    Parameters
    ----------
    name : str
        Of the application.
    tasks : int
        How many may run at once. Those that wait for a service are worth more than there are cores.
    """
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master(f"local[{tasks}]").appName(name).config(map=_SETTINGS).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
