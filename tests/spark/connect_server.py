"""A Spark Connect server on this machine, in a process of its own.

As a program it is that process; it ends with its standard input.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


@contextmanager
def connect_server(log: Path) -> Iterator[str]:
    """Run a server for as long as the context lasts; gives its URL."""
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.spark.connect_server"]
    with (
        log.open("w") as output,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdin is not None
        url = process.stdout.readline().strip()
        try:
            assert url, log.read_text()
            yield url
        finally:
            process.stdin.close()


def main() -> None:
    """Serve until standard input ends; prints the URL."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
        .config("spark.connect.grpc.binding.port", "0")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    service = getattr(spark._jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
    port = getattr(service, "MODULE$").localPort()
    print(f"sc://127.0.0.1:{port}", flush=True)  # noqa: T201 - the test reads it
    sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    main()
