"""Several executors, each a process of its own, with snapshots on S3 or on a shared path."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import jvm
from tests.quick import first_is_quick
from tests.s3_server import s3_server
from tests.spark.exactly_once import World
from tests.spark.standalone import standalone_cluster
from tests.spark.test_kill_process import start

EXECUTORS = 2


@pytest.fixture(scope="module")
def cluster(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if sys.platform != "linux":
        pytest.skip("the workers need several addresses of the loopback, which only Linux has from the start")
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), EXECUTORS) as master:
        yield master


def run(world: World, master: str, **settings: Any) -> dict[str, Any]:
    """Run the pipeline to its end in a process of its own; returns what it found."""
    executor = {"memory": "512m", "cores": "2", "extraJavaOptions": jvm.options()}
    options = {f"spark.executor.{name}": value for name, value in executor.items()} | settings.pop("options", {})
    with start(world.folder, master=master, options=options, rescales=True, **settings) as process:
        output, _ = process.communicate()
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def assert_rescaled(found: dict[str, Any], executors: int | None = EXECUTORS) -> None:
    """It went on with what its sink asked for; how often depends on the epochs without input that came in between."""
    assert executors is None or found["executors"] == executors
    assert found["parallelism"][0] == 2
    assert {2} < set(found["parallelism"]) <= {2, 3, 4}


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("resident", first_is_quick([True, False]))
def test_executors_share_a_bucket_and_one_of_their_processes_is_killed(
    java: None, tmp_path: Path, resident: bool
) -> None:
    with s3_server() as server:
        world = World(tmp_path, server.new_root(), server.options)
        world.prepare()
        settings = {"snapshots": world.snapshots, "storage_options": world.storage_options, "resident": resident}
        options = {"spark.executor.memory": "1g", "spark.executor.cores": "1"}
        found = run(world, "local-cluster[2,1,1024]", **settings, point="in a call", options=options)
        assert_rescaled(found)
        assert world.function.killed.exists()
        world.assert_exact()
        world.assert_calls(set(), 0)


@pytest.mark.thorough
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("resident", [True, False])
def test_an_executor_is_killed_and_no_worker_lives_longer_than_a_task(
    cluster: str, tmp_path: Path, resident: bool
) -> None:
    """Without reuse each task is a new process; an operator that is gone begins anew beside another executor."""
    world = World(tmp_path)
    world.prepare()
    options = {"spark.python.worker.reuse": "false"}
    found = run(world, cluster, point="in a call, the executor", resident=resident, options=options)
    assert_rescaled(found, executors=None)
    assert world.function.killed.exists()
    world.assert_exact()
    world.assert_calls(set(), 0)


@pytest.mark.thorough
@pytest.mark.timeout(2400)
def test_of_a_speculated_task_one_attempt_counts(cluster: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.prepare()
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.speculation.multiplier": "1.1",
    }
    found = run(world, cluster, point="stall", options=speculation)
    assert_rescaled(found)
    assert world.function.killed.exists(), "the first attempt never ends by itself"
    assert world.function.second_attempt.exists()
    world.assert_exact()
    world.assert_calls(set(), 0)
