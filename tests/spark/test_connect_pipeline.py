"""Pipelines over Spark Connect: exactly once, whoever is killed, and what a client can ask for.

Server and clients are processes of their own.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.spark import connect_processes as processes
from tests.spark.connect_server import connect_server
from tests.spark.exactly_once import World

pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(2400)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, resident=True)
    world.prepare()
    return world


def client(case: str, url: str, folder: Path) -> subprocess.Popen[str]:
    return processes.client("connect_client", url, folder, case)


def told(case: str, url: str, folder: Path) -> dict[str, Any]:
    """Run a client to its end; returns what it tells."""
    found: dict[str, Any] = processes.told(client(case, url, folder))
    return found


def assert_gone(hosts: list[str]) -> None:
    """The processes of hosts end with their query; they do not have to wait for the end of their lease."""
    assert hosts
    for host in hosts:
        pid = int(host.rpartition(":")[2])
        until = time.monotonic() + 60
        with suppress(ProcessLookupError):
            while True:
                os.kill(pid, 0)
                assert time.monotonic() < until, f"{host} lives on"
                time.sleep(0.1)


def test_a_pipeline_is_exact_and_its_sink_rescales_it(connect_url: str, world: World) -> None:
    found = told("exact", connect_url, world.folder)
    world.assert_exact()
    world.assert_calls(set(), 0)
    assert {2, 4} <= {*found["parallelism"]}
    assert_gone(found["hosts"])
    committed, calls = world.committed_rows(), len(world.calls())
    assert told("restart", connect_url, world.folder)["parallelism"] == []
    world.assert_exact()
    world.assert_calls(committed, calls)


@pytest.mark.thorough
def test_a_worker_is_killed_and_the_next_start_continues(connect_url: str, world: World) -> None:
    told("killed after the sink", connect_url, world.folder)
    committed, calls = world.committed_rows(), len(world.calls())
    assert committed
    told("restart", connect_url, world.folder)
    world.assert_exact()
    world.assert_calls(committed, calls)


@pytest.mark.thorough
def test_a_server_is_killed_and_another_one_continues(
    java: None, connect_url: str, world: World, tmp_path: Path
) -> None:
    with connect_server(tmp_path / "log") as killed, client("server killed in the sink", killed, world.folder) as one:
        while not world.function.killed.exists():
            assert one.poll() is None
            time.sleep(0.1)
        one.kill()  # it would go on to look for its server for minutes
        one.communicate()
    assert_gone([f"worker:{world.function.killed.read_text()}"])
    committed, calls = world.committed_rows(), len(world.calls())
    assert committed
    told("restart", connect_url, world.folder)
    world.assert_exact()
    world.assert_calls(committed, calls)


def test_a_client_rescales_drains_and_stops_its_query(connect_url: str, tmp_path: Path) -> None:
    assert_gone(told("from the client", connect_url, tmp_path)["hosts"])


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["stopping", "stopping too late", "stopping at once"])
def test_a_stop_repeats_no_finished_call_of_the_micro_batch_under_way(
    connect_url: str, tmp_path: Path, case: str
) -> None:
    told(case, connect_url, tmp_path)


@pytest.mark.thorough
def test_a_client_that_leaves_takes_its_query_along(connect_url: str, tmp_path: Path) -> None:
    assert_gone(told("leaving", connect_url, tmp_path)["hosts"])


def test_a_client_hears_of_errors(connect_url: str, tmp_path: Path) -> None:
    told("failing", connect_url, tmp_path)


@pytest.mark.thorough
def test_a_client_hears_of_a_micro_batch_that_fails(connect_url: str, tmp_path: Path) -> None:
    told("failing in a micro-batch", connect_url, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("error", ["SystemExit", "CancelledError"])
def test_what_a_sink_raises_beside_the_server_fails_the_query(connect_url: str, tmp_path: Path, error: str) -> None:
    told(f"interrupted by {error}", connect_url, tmp_path)
