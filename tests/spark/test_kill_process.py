"""The driver's process and Python workers are killed; whoever comes next goes on exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.exactly_once import World


def start(folder: Path, **settings: Any) -> subprocess.Popen[str]:
    """Start the pipeline in a process of its own."""
    defaults = {"folder": str(folder), "master": "local[2]", "parallelism": 2}
    command = [sys.executable, "-m", "tests.spark.exactly_once", json.dumps(defaults | settings)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill the driver with its JVM, as when its host is lost; the workers end when the JVM is gone."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.thorough
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("resident", [True, False])
def test_a_driver_is_killed_between_the_commit_and_the_sink(java: None, tmp_path: Path, resident: bool) -> None:
    world = World(tmp_path)
    world.prepare()
    with start(tmp_path, resident=resident) as killed:
        assert killed.stdout is not None
        told = [line for line, _ in zip(killed.stdout, range(3), strict=False)]
        assert told[-1] == "sink 0\n", "in the sink of the second epoch"
        kill(killed)
    committed, calls = world.committed_rows(), len(world.calls())
    assert committed
    with start(tmp_path, parallelism=3, resident=resident) as restarted:
        restarted.communicate()
    assert restarted.returncode == 0
    world.assert_exact()
    world.assert_calls(committed, calls)


@pytest.mark.thorough
@pytest.mark.timeout(2400)
def test_spark_runs_a_task_again_whose_worker_was_killed(java: None, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.prepare()
    with start(tmp_path, master="local[2,4]", point="before a subtask writes") as process:
        process.communicate()
    assert process.returncode == 0
    assert world.function.killed.exists()
    world.assert_exact()
    world.assert_calls(set(), 0)
