"""The collector beside a pipeline's epochs, without Spark: when it works, what it leaves alone, how it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from async_op.epochs.retention import GarbageCollector, Retention
from keygroups import ConfigError
from snapshots import SnapshotStore
from snapshots.filesystem import open_folder
from snapshots.testing import CountingFolder, FolderWrapper
from snapshots.testing.wrappers import Operation
from tests.snapshot_kit import content_of, parts

EPOCHS = 400


class Gate(FolderWrapper):
    """Lets a collection go on, or fail, when it lists the files."""

    def __init__(self, name: str) -> None:
        super().__init__(open_folder(f"memory://{name}/enrich"))
        self.arrived = threading.Event()
        self.opened = threading.Event()
        self.opened.set()
        self.fails = False

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], Any]) -> Any:
        if operation == "files" and not name:
            self.arrived.set()
            assert self.opened.wait(60)
            if self.fails:
                raise OSError("the storage is down")
        return run()


@pytest.fixture
def folder(tmp_path: Any) -> Gate:
    return Gate(tmp_path.name)


def epoch(store: SnapshotStore, collector: GarbageCollector, number: int, now: float = 0.0) -> None:
    """Do what the runner of a pipeline does in an epoch."""
    pending = store.begin()
    collector.epoch_begins(pending.attempts_prefix)
    written = [pending.write_subtask(one) for one in parts({"count": {"a": number}}, parallelism=1)]
    collector.epoch_ended(pending.commit(written).folder, now)


@pytest.mark.thorough
def test_the_number_of_files_is_level_over_hundreds_of_epochs(folder: Gate) -> None:
    store, collector = SnapshotStore.on(folder), GarbageCollector(Retention(keep_last=3, min_age=0))
    files = []
    for number in range(EPOCHS):
        epoch(store, collector, number)
        collector.join()
        if number % 100 == 99:
            files.append(len(folder.files()))

    assert len(set(files)) == 1
    assert store.versions() == list(range(EPOCHS - 2, EPOCHS + 1))
    assert content_of(store.load(EPOCHS))["count"] == {"a": EPOCHS - 1}


def test_garbage_is_collected_ten_times_while_a_file_grows_old_enough() -> None:
    folder = CountingFolder(open_folder("memory://how often/enrich"))
    store = SnapshotStore.on(folder)
    collector = GarbageCollector(Retention(min_age=timedelta(minutes=6)))
    listings = []
    for number in range(100):
        epoch(store, collector, number, now=float(number))
        collector.join()
        listings.append(folder.operations["files"])

    collections = [number for number in range(1, 100) if listings[number] - listings[number - 1] > 1]
    assert collections == [36, 72]
    assert len(store.versions()) < 100


def test_an_epoch_waits_for_no_collection_and_no_collection_takes_files_of_an_epoch_under_way(folder: Gate) -> None:
    store, collector = SnapshotStore.on(folder), GarbageCollector(Retention(keep_last=1, min_age=0))
    epoch(store, collector, 0)
    collector.join()
    folder.arrived.clear()
    folder.opened.clear()
    epoch(store, collector, 1)
    assert folder.arrived.wait(60)
    pending = store.begin()
    collector.epoch_begins(pending.attempts_prefix)
    written = [pending.write_subtask(one) for one in parts({"count": {"a": 2}}, parallelism=1)]
    folder.opened.set()
    collector.join()

    snapshot = pending.commit(written)
    assert content_of(snapshot)["count"] == {"a": 2}
    assert store.verify().ok


def test_no_collection_takes_files_that_are_kept(folder: Gate) -> None:
    store, collector = SnapshotStore.on(folder), GarbageCollector(Retention(keep_last=1, min_age=0))
    names = ["queries/mine/answer.json", "queries/older/answer.json"]
    for name in names:
        folder.replace(name, b"{}")
    collector.keep("queries/mine/")
    epoch(store, collector, 0)
    collector.join()
    assert [folder.exists(name) for name in names] == [True, False]


def test_a_failure_is_logged_and_counted_until_a_collection_succeeds(
    folder: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    store, collector = SnapshotStore.on(folder), GarbageCollector(Retention(keep_last=1, min_age=0))
    folder.fails = True
    failures = []
    for number in range(4):
        folder.fails = number < 3
        epoch(store, collector, number)
        collector.join()
        failures.append(collector.failures)

    assert failures == [1, 2, 3, 0]
    assert [record.levelname for record in caplog.records if "not collected" in record.message] == ["ERROR"] * 3
    assert "the storage is down" in caplog.text
    assert store.versions() == [4]


@pytest.mark.parametrize(
    "options",
    [
        {"keep_last": 0},
        {"keep_last": 2.5},
        {"keep_last": True},
        {"keep_last": "3"},
        {"min_age": -1.0},
        {"min_age": float("nan")},
        {"min_age": timedelta(seconds=-1)},
        {"min_age": "1h"},
        {"min_age": None},
    ],
)
def test_a_retention_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Retention(**options)


def test_a_run_may_end_in_the_moment_in_which_a_collection_begins(
    folder: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = GarbageCollector(Retention(keep_last=3, min_age=0))
    ended: list[str] = []

    def end() -> None:
        collector.join()
        ended.append("joined")

    ends = threading.Thread(target=end)

    class Late(threading.Thread):
        def start(self) -> None:
            ends.start()
            ends.join(0.05)  # it has to wait for the start
            super().start()

    with monkeypatch.context() as patched:
        patched.setattr("async_op.epochs.retention.threading.Thread", Late)
        epoch(SnapshotStore.on(folder), collector, 0)
    ends.join(60)
    assert ended == ["joined"]
