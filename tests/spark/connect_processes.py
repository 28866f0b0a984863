"""Clients of a Spark Connect server, each a process of its own: how one is started, and how its program begins."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from async_op.spark import ConnectQuery, WorkerLate
from tests.spark.connect_server import ROOT


def client(module: str, url: str, folder: Path, case: str) -> subprocess.Popen[str]:
    """Start a client: the program of a module, which gets the URL, the folder and the case."""
    command = [sys.executable, "-m", f"tests.spark.{module}", url, str(folder), case]
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def told(process: subprocess.Popen[str]) -> Any:
    """Wait for the end of a client; returns what it tells in the last line, as JSON."""
    with process:
        stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr[-4000:]
    return json.loads(stdout.splitlines()[-1])


def patient(start: Callable[..., None]) -> Callable[..., None]:
    """Start again while the machine is too busy to start a worker within the ten seconds that Spark gives it.

    A worker needs two seconds of a processor. Tests that run at the same time start theirs one after the other, because
    together they would all be late, again and again.
    """

    def started(*arguments: Any) -> None:
        for attempt in range(15):
            try:
                with _alone():
                    return start(*arguments)
            except WorkerLate:
                # The worker that came too late takes processor time until it has seen that.
                time.sleep(min(5 * 2**attempt, 60))
        raise AssertionError("the machine is too busy")

    return started


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other client is in here; the end of a client lets the next one in, too."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def session_of(url: str) -> Iterator[SparkSession]:
    """Return the session of a client's program, whose queries start also if the machine is busy."""
    ConnectQuery.start = patient(ConnectQuery.start)  # type: ignore[method-assign]
    spark = SparkSession.builder.remote(url).getOrCreate()
    yield spark
    spark.stop()
