"""Several executors, each a process of its own, with snapshots on S3."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.s3_server import s3_server
from tests.spark.exactly_once import World
from tests.spark.test_kill_process import start


@pytest.mark.timeout(240)
def test_executors_share_a_bucket_and_one_of_their_workers_is_killed(java: None, tmp_path: Path) -> None:
    with s3_server() as server:
        world = World(tmp_path, server.new_root(), server.options)
        world.prepare()
        settings = {"snapshots": world.snapshots, "storage_options": world.storage_options}
        cluster = {"master": "local-cluster[2,1,1024]", "options": {"spark.executor.memory": "1g"}}
        with start(tmp_path, **cluster, **settings, rescales=True, point="in a call") as run:
            output, _ = run.communicate()
        assert run.returncode == 0
        found = json.loads(output.splitlines()[-1])
        assert found == {"executors": 2, "parallelism": [2, 4, 3, 2]}
        assert world.function.killed.exists()
        world.assert_exact()
        world.assert_calls(set(), 0)
