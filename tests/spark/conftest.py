from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from async_op.hosting import supervisor
from snapshots.java import JavaNotFound, use_java
from tests.spark.connect_server import connect_server


@pytest.fixture(autouse=True)
def patient_supervisors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no host be left out of an epoch because the machine is busy."""
    monkeypatch.setattr(supervisor, "_ANSWER_SECONDS", 120.0)


@pytest.fixture(scope="session")
def java() -> None:
    """Let this process, and those that it starts, find a Java."""
    try:
        use_java()
    except JavaNotFound as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("keygroups tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.python.daemon.module", "tests.spark.worker_daemon")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def server_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the Spark Connect server, and the workers beside it, log."""
    return tmp_path_factory.mktemp("server") / "log"


@pytest.fixture(scope="session")
def connect_url(java: None, server_log: Path) -> Iterator[str]:
    """Run a Spark Connect server; gives its URL."""
    with connect_server(server_log) as url:
        yield url


@pytest.fixture
def reused_workers(spark: SparkSession) -> None:
    """Skip the test if each task has a new worker, as under `make coverage`: it is silent until it has started."""
    if spark.sparkContext.getConf().get("spark.python.worker.reuse") == "false":
        pytest.skip("workers are not reused")
