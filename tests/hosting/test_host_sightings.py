"""What a task tells the driver of its host before the epoch has ended, on virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from async_op.errors import BlocksEventLoop
from async_op.hosting.diagnostics import note_blocking
from async_op.hosting.host_sightings import Lookout, Sighting, forget, sightings_in
from async_op.hosting.messages import Address
from snapshots.filesystem import Folder
from tests.snapshot_kit import new_store

HERE = Address("/run/1.sock", "vm", 4711, "/run/1.log", "vm:1", "/run/1.exits")
SUCCESSOR = HERE._replace(process="vm:2")


@dataclass
class Watching:
    """Looks out for the host of subtask 3, with a clock of its own."""

    known: Address | None = None
    now: float = 100.0
    folder: Folder = field(default_factory=lambda: new_store().folder)

    def __post_init__(self) -> None:
        self.lookout = Lookout("run, 1", 3, self.known, self.now)

    def look(self, address: Address | None, *, after: float = 0.0, silent: float = 0.0) -> list[tuple[str, bool]]:
        self.now += after
        if (seen := self.lookout.look(address, silent, self.now)) is not None:
            seen.write(self.folder)
        return [(one.address.process, one.is_silent) for one in sightings_in(self.folder, "run, 1")]


def test_of_a_short_epoch_nothing_is_written() -> None:
    task = Watching()
    assert [task.look(HERE, after=0.4) for _ in range(4)] == [[]] * 4


def test_a_host_that_the_driver_does_not_know_is_told_of_before_the_driver_looks_first() -> None:
    task = Watching()
    assert task.look(HERE, after=2.0) == [("vm:1", False)]
    (seen,) = sightings_in(task.folder, "run, 1")
    assert (seen.address, seen.subtask) == (HERE, 3)


def test_a_host_that_the_driver_knows_is_told_of_once_it_is_silent() -> None:
    task = Watching(known=HERE)
    assert task.look(HERE, after=60.0) == []
    assert task.look(HERE, silent=4.9) == []
    assert task.look(HERE, silent=5.0) == [("vm:1", True)]


def test_a_successor_is_told_of_in_the_place_of_a_host_that_was_lost() -> None:
    task = Watching()
    assert task.look(HERE, after=6.0, silent=6.0) == [("vm:1", True)]
    assert task.look(SUCCESSOR, after=60.0) == [("vm:2", False)]
    assert task.look(SUCCESSOR, after=6.0, silent=6.0) == [("vm:2", True)]


def test_what_was_told_is_not_written_again() -> None:
    task = Watching()
    told = [task.look(HERE, after=3.0), task.look(HERE, after=3.0, silent=6.0)]
    assert told == [[("vm:1", False)], [("vm:1", True)]]
    forget(task.folder, "run, 2")
    assert len(sightings_in(task.folder, "run, 1")) == 1
    forget(task.folder, "run, 1")
    assert task.look(HERE, after=1.0, silent=7.0) == []
    assert task.look(HERE, after=1.0, silent=0.0) == [], "it has answered, and the driver has named it already"


@pytest.mark.parametrize("address", [None, HERE._replace(process="")])
def test_without_a_host_that_lives_there_is_nothing_to_tell(address: Address | None) -> None:
    assert Watching().look(address, after=60.0, silent=60.0) == []


def test_a_silent_host_is_told_of_with_the_function_that_blocks_its_loop(tmp_path: Path) -> None:
    blocks = BlocksEventLoop("enrich", "call", "/app/enrich.py", 7)
    note_blocking(tmp_path / "1.blocking", blocks)
    task = Watching()
    task.look(HERE._replace(path=str(tmp_path / "1.sock")), silent=5.0)
    (seen,) = sightings_in(task.folder, "run, 1")
    assert [one.args for one in seen.blocking] == [blocks.args]


@pytest.mark.parametrize("written", [b"", b"{}", b'["run, 1", 3, [], false, [[]]]', b"[1, 2, 3]", b"\xff"])
def test_what_no_task_has_written_is_passed_over(written: bytes) -> None:
    task = Watching()
    task.folder.replace("hosts/9", written)
    assert task.look(HERE, after=2.0) == [("vm:1", False)]


def test_what_tasks_of_an_older_run_have_written_is_passed_over() -> None:
    folder = new_store().folder
    Sighting(generation="an older run, 1", subtask=3, address=HERE, is_silent=True).write(folder)
    assert sightings_in(folder, "run, 1") == []


def test_a_storage_that_fails_costs_the_task_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Watching()

    def fail(*_: Any) -> None:
        raise OSError("away")

    with monkeypatch.context() as patch:
        patch.setattr(type(task.folder), "replace", fail)
        assert task.look(HERE, after=2.0) == []
