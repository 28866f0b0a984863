"""Which hosts a task tries, and which it passes by because they were silent for too long."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkFiles

from async_op.hosting.errors import HostUnreachable
from async_op.hosting.messages import Address
from async_op.hosting.process.host_process import Instructions
from async_op.spark.task import host_access
from async_op.spark.task.host_access import HostAccess, TaskWays
from async_op.spark.task.newest_snapshot import Newest
from async_op.threads.wait_strategies import WaitStrategies
from async_op.threads.waits import Waits
from tests.hosting.kit import GENERATION, driven

REPORTED = Address("/nowhere/1.sock", process="vm:1")


def task_ways(**options: Any) -> TaskWays:
    access = HostAccess(
        generation=GENERATION, factory=b"", run_id="run", secret=b"", addresses={0: REPORTED}, **options
    )
    return TaskWays(access, Newest(), 1, 0, Waits(WaitStrategies()))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Instructions]:
    """Return how hosts were started."""
    found: list[Instructions] = []

    def launch(instructions: Instructions, modules: Any) -> Any:
        found.append(instructions)
        return REPORTED
        yield

    monkeypatch.setattr(host_access, "launch", launch)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return found


def test_a_host_that_another_attempt_has_given_up_is_passed_by_and_replaced_at_once(
    started: list[Instructions],
) -> None:
    tried = task_ways(given_up={0: "vm:1", 1: "vm:2"})
    assert tried.known() == []
    driven(tried.start())
    assert [one.given_up for one in started] == ["vm:1"]


def test_the_host_that_has_replaced_it_is_tried(started: list[Instructions]) -> None:
    tried = task_ways(given_up={0: "vm:9"})
    assert tried.known() == [REPORTED]


@pytest.mark.parametrize(("cause", "given_up"), [(TimeoutError(), "vm:1"), (ConnectionRefusedError(), "")])
def test_a_host_that_is_there_and_does_not_greet_is_given_up(
    started: list[Instructions], monkeypatch: pytest.MonkeyPatch, cause: Exception, given_up: str
) -> None:
    def connecting(*args: Any, **options: Any) -> Any:
        yield
        raise HostUnreachable("silence") from cause

    monkeypatch.setattr(host_access, "connecting", connecting)
    tried = task_ways()
    steps = tried.connect(REPORTED)
    next(steps)
    assert tried.asked is REPORTED, "the driver is told of it if that takes long"
    with pytest.raises(HostUnreachable):
        next(steps)
    assert tried.asked is None
    driven(tried.start())
    assert [one.given_up for one in started] == [given_up]


@pytest.mark.parametrize(
    ("driver", "listens_on"),
    [("127.0.0.1", "127.0.0.1"), ("[::1]", "::1"), ("::1", "::1"), ("no address", None), (None, None)],
)
def test_a_host_listens_on_the_route_to_the_driver(
    started: list[Instructions], driver: str | None, listens_on: str | None
) -> None:
    if listens_on == "::1":
        try:
            socket.create_server((listens_on, 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this machine has no IPv6")
    driven(task_ways(driver_host=driver).start())
    assert [instructions.interface for instructions in started] == [listens_on]
