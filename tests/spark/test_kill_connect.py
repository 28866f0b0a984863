"""Exactly once over Spark Connect, whoever is killed at whichever point of an epoch.

A seeded sample runs by default; `--kills all` runs every case. Server and clients are processes of their own.
"""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from tests.hosting.kit import is_running, wait_until
from tests.spark import connect_processes as processes
from tests.spark.connect_kills import CASES, Case, told_of
from tests.spark.connect_server import connect_server
from tests.spark.exactly_once import World

pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(2400)]

SAMPLE = 2


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        cases = CASES
        if metafunc.config.getoption("kills") != "all":
            cases = random.Random(metafunc.config.getoption("kills")).sample(cases, SAMPLE)
        metafunc.parametrize("case", cases, ids=str)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, resident=True)
    world.prepare()
    return world


def client(url: str, folder: Path, killed: str = "") -> subprocess.Popen[str]:
    return processes.client("connect_kills", url, folder, killed)


def kill_server(world: World, case: Case, log: Path) -> None:
    """Run until the server is killed, and wait for the end of its worker."""
    with connect_server(log) as url, client(url, world.folder, told_of(case)) as process:
        wait_until(lambda: world.function.killed.exists() or process.poll() is not None, seconds=600)
        process.kill()  # it would go on to look for its server for minutes
        _, stderr = process.communicate()
        assert world.function.killed.exists(), stderr[-4000:]
        worker = json.loads(world.function.killed.read_text())["worker"]
        wait_until(lambda: not is_running(worker), seconds=120)


def test_whichever_process_is_killed_the_next_start_continues(
    connect_url: str, world: World, case: Case, tmp_path: Path
) -> None:
    if case.victim == "server":
        kill_server(world, case, tmp_path / "log")
    elif case.victim == "client":
        with client(connect_url, world.folder, told_of(case)) as process:
            _, stderr = process.communicate()
        assert world.function.killed.exists(), stderr[-4000:]
    else:
        errors = processes.told(client(connect_url, world.folder, told_of(case)))
        assert bool(errors) == (case.victim == "worker"), errors
    if case.victim in ("server", "client"):
        assert processes.told(client(connect_url, world.folder)) == []
    world.assert_exact()
    killed = json.loads(world.function.killed.read_text())
    assert not is_running(killed["victim"])
    world.assert_calls(set(killed["committed"]), killed["calls"])
