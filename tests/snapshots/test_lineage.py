"""A lineage is durable before the first call, never shared, and kept by everything that is done to snapshots."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from keygroups.errors import ConfigError
from snapshots import IncompatibleSnapshot, SnapshotCorrupted, SnapshotStore
from snapshots.filesystem import Folder, MemoryFolder
from snapshots.lineage import LINEAGE, lineage_of, new_lineage
from snapshots.upkeep.bootstrap import move_source, start_empty
from tests.snapshot_kit import new_store, parts


def test_a_lineage_is_durable_and_the_same_for_all_who_start() -> None:
    store = new_store()
    found: list[str] = []
    starters = [threading.Thread(target=lambda: found.append(lineage_of(store.folder, None))) for _ in range(8)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert store.folder.read(LINEAGE).decode() == found[0]
    assert lineage_of(new_store().folder, None) != found[0]


def test_a_lost_reply_does_not_change_the_lineage() -> None:
    class LostReplies(MemoryFolder):
        lost = 0

        def create(self, name: str, data: bytes) -> None:
            super().create(name, data)
            self.lost += 1
            raise ConnectionResetError("reset by peer")

    folder = new_store().folder
    flaky = LostReplies(folder.filesystem, folder.root)
    assert lineage_of(flaky, None) == folder.read(LINEAGE).decode() == lineage_of(folder, None)
    assert flaky.lost == 1


def test_a_damaged_lineage_is_an_error_and_never_a_new_one() -> None:
    folder = new_store().folder
    folder.write(LINEAGE, b"../other")
    with pytest.raises(SnapshotCorrupted, match="lineage"):
        lineage_of(folder, None)


def first_lineages(folder: Folder, store: SnapshotStore) -> dict[str, Any]:
    return {
        "claim": lambda: store.claim(parallelism=2).snapshot,
        "bootstrap": lambda: store.bootstrap({}, parallelism=1),
        "start empty": lambda: start_empty(
            store.begin(), parallelism=1, max_parallelism=4, hash="xxhash64", source_position={}
        ),
    }


@pytest.mark.parametrize("way", ["claim", "bootstrap", "start empty"])
def test_every_first_manifest_has_a_lineage_the_one_of_the_folder_if_there_is_one(way: str) -> None:
    store = new_store()
    assert first_lineages(store.folder, store)[way]().manifest.lineage
    store = new_store()
    before = lineage_of(store.folder, None)
    assert first_lineages(store.folder, store)[way]().manifest.lineage == before


def test_everything_that_is_done_to_snapshots_keeps_the_lineage() -> None:
    store = new_store()
    first = store.write(parts({"count": {"a": 1, "b": 2}}))
    lineage = first.manifest.lineage
    assert lineage
    kept = [
        store.write(parts({"count": {"a": 1}})),
        store.claim().snapshot,
        store.repartition(3),
        store.repartition(2, max_parallelism=8, rewrite=True),
        move_source(store.load(), {"offset": 1}),
        store.edit().drop("count").commit(),
        start_empty(store.begin(), parallelism=1, max_parallelism=8, hash="xxhash64", source_position={}),
    ]
    assert {one.manifest.lineage for one in kept} == {lineage}
    store.collect_garbage(keep_last=1, min_age=0.0, dry_run=False)
    assert store.load().manifest.lineage == lineage


def test_a_copy_has_a_lineage_of_its_own_unless_it_takes_the_place_of_the_original() -> None:
    store, beside, instead = new_store(), new_store(), new_store()
    lineage = store.write(parts({"count": {"a": 1}})).manifest.lineage
    assert store.copy_to(beside).manifest.lineage not in (None, lineage)
    assert store.copy_to(instead, keep_lineage=True).manifest.lineage == lineage


def test_another_namespace_than_that_of_the_snapshot_is_refused_and_an_edit_changes_it() -> None:
    store = new_store()
    manifest = store.write(parts({"count": {"a": 1}})).manifest
    with pytest.raises(IncompatibleSnapshot, match="idempotency namespace.*payments.*set_lineage"):
        lineage_of(store.folder, manifest, "payments")
    edited = store.edit().set_lineage("payments").commit().manifest
    assert lineage_of(store.folder, edited, "payments") == lineage_of(store.folder, edited) == "payments"
    assert store.edit().set_lineage().commit().manifest.lineage not in ("payments", manifest.lineage)
    with pytest.raises(ConfigError, match="lineage="):
        store.edit().set_lineage("a/b")


def test_a_namespace_is_kept_for_a_start_without_it() -> None:
    folder = new_store().folder
    assert lineage_of(folder, None) != "payments"
    assert lineage_of(folder, None, "payments") == lineage_of(folder, None) == "payments"


def test_verify_names_a_lineage_that_is_not_the_one_of_the_newest_manifest() -> None:
    store = new_store()
    lineage = lineage_of(store.folder, None)
    store.claim(parallelism=1)
    assert store.verify().ok
    for damage in (new_lineage().encode(), b"../other"):
        store.folder.replace(LINEAGE, damage)
        (problem,) = store.verify().problems
        assert (problem.path, problem.key_groups) == (store.folder.path(LINEAGE), None)
        assert "lineage" in problem.what
    store.folder.replace(LINEAGE, lineage.encode())
    assert store.verify().ok


def test_a_lineage_that_was_changed_on_purpose_is_no_damage() -> None:
    store, instead = new_store(), new_store()
    lineage_of(store.folder, None)
    lineage_of(instead.folder, None)
    store.claim(parallelism=1)
    store.edit().set_lineage("payments").commit()
    store.copy_to(instead, keep_lineage=True)
    for changed in (store, instead):
        assert changed.verify().ok
        assert changed.folder.read(LINEAGE) == b"payments"
    assert store.verify(1).ok  # which has the earlier one


def test_retention_never_takes_the_lineage() -> None:
    store = new_store()
    lineage = lineage_of(store.folder, None).encode()
    store.write(parts({"count": {"a": 1}}))
    store.write(parts({"count": {"a": 2}}))
    report = store.collect_garbage(keep_last=1, min_age=0.0, dry_run=False)
    assert report.files
    assert LINEAGE not in report.files
    assert store.folder.read(LINEAGE) == lineage
