"""A standalone Spark cluster on this machine: a master and workers, each a process with an address of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from tests import jvm

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent


@contextmanager
def standalone_cluster(folder: Path, workers: int) -> Iterator[str]:
    """Run a cluster for as long as the context lasts; gives its master's URL.

    Spark puts the two attempts of a speculated task on two hosts, so each worker has another address of the loopback.
    """
    with ExitStack() as stack:
        arguments = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = stack.enter_context(_started(folder / "master.log", *arguments, says=r"master at (spark://\S+)"))
        for number in range(1, workers + 1):
            arguments = ["org.apache.spark.deploy.worker.Worker", "--host", f"127.0.0.{number}"]
            arguments += ["--cores", "2", "--memory", "1g", "--webui-port", "0", "--work-dir", str(folder / "work")]
            log = folder / f"worker-{number}.log"
            stack.enter_context(_started(log, *arguments, master, says=r"(registered) with master"))
        yield master


@contextmanager
def _started(log: Path, *arguments: str, says: str) -> Iterator[str]:
    environment = {
        "PYSPARK_PYTHON": sys.executable,
        # Executors, which inherit it, import what is tested from here.
        "PYTHONPATH": str(ROOT),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": jvm.options(),
    }
    command = [str(SPARK_HOME / "bin" / "spark-class"), *arguments]
    with log.open("w") as output, subprocess.Popen(command, env=os.environ | environment, stderr=output) as process:
        try:
            while (found := re.search(says, log.read_text())) is None:
                if process.poll() is not None:
                    raise RuntimeError(log.read_text())
                time.sleep(0.1)
            yield found[1]
        finally:
            process.terminate()
