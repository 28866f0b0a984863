"""Who may commit epochs, in which order, and what is removed meanwhile."""

from __future__ import annotations

import pytest

from async_op import Retention
from async_op.epochs.coordinator import Coordinator
from async_op.epochs.position import JobPosition, SourcePosition
from snapshots import CommitConflict, Snapshot, WriterFenced
from tests.snapshot_kit import new_store, parts


def epoch(coordinator: Coordinator) -> Snapshot:
    pending = coordinator.begin()
    handles = [pending.write_subtask(part) for part in parts({"count": {"ann": pending.version}})]
    return coordinator.commit(pending, handles, SourcePosition(batch_id=pending.version), {"rows": 1})


def test_epochs_follow_each_other_and_another_run_continues() -> None:
    store = new_store()
    first = Coordinator(store)
    first.take_over()
    assert (first.version, first.snapshot) == (0, None)
    assert [epoch(first).version, epoch(first).version] == [1, 2]

    second = Coordinator(store)
    second.take_over()
    assert second.version == 3, "the claim is a version"
    assert SourcePosition.of(second.snapshot).batch_id == 2
    assert epoch(second).version == 4


def test_who_has_lost_the_operator_notices_before_an_epoch_and_at_its_commit() -> None:
    store = new_store()
    old, new = Coordinator(store), Coordinator(store)
    epoch(old)
    old.check()
    pending = old.begin()
    new.take_over()
    with pytest.raises(WriterFenced):
        old.check()
    with pytest.raises((WriterFenced, CommitConflict)):
        old.commit(pending, [pending.write_subtask(part) for part in parts({})], SourcePosition(), {})
    assert (old.version, store.newest_version()) == (1, 2)


def test_of_two_that_begin_with_nothing_one_commits() -> None:
    store = new_store()
    first, second = Coordinator(store), Coordinator(store)
    first.take_over()
    second.take_over()
    epoch(first)
    with pytest.raises(CommitConflict):
        epoch(second)


def test_old_versions_go_and_the_files_of_the_epoch_under_way_stay() -> None:
    store = new_store()
    coordinator = Coordinator(store, Retention(keep_last=1, min_age=0))
    for _ in range(3):
        epoch(coordinator)
    pending = coordinator.begin()
    handles = [pending.write_subtask(part) for part in parts({"count": {"bob": 1}})]
    coordinator.ended()
    coordinator.close()
    assert store.versions() == [3]
    coordinator.commit(pending, handles, SourcePosition(), {})
    assert store.verify().ok
    assert coordinator.failed_collections == 0


def test_without_retention_all_versions_stay() -> None:
    store = new_store()
    coordinator = Coordinator(store)
    for _ in range(3):
        epoch(coordinator)
        coordinator.ended()
    coordinator.close()
    assert store.versions() == [1, 2, 3]


def test_the_position_of_a_job_comes_back() -> None:
    keys, written = {"count": ["user"], "plain": None}, {"outputs": (0, "abc")}
    position = JobPosition(epoch=1, parallelism=2, keys=keys, written=written)
    coordinator = Coordinator(new_store())
    pending = coordinator.begin()
    snapshot = coordinator.commit(pending, [pending.write_subtask(part) for part in parts({})], position, {})
    assert JobPosition.of(snapshot) == position
    assert SourcePosition.of(snapshot) == SourcePosition()
