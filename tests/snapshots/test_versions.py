"""The newest version: found with few requests, and never by trusting the hint."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from snapshots import ManifestMissing, SnapshotCorrupted, SnapshotStore
from snapshots.filesystem import Folder, open_folder
from snapshots.format.manifest import manifest_name
from snapshots.testing import CountingFolder, FolderWrapper
from snapshots.versions import HINT, PROBES_MAX, mark_expired, newest_version
from tests.quick import in_turn
from tests.snapshot_kit import G, parts


@pytest.fixture(params=in_turn(["memory", "local"]))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> CountingFolder:
    uri = str(tmp_path / "enrich") if request.param == "local" else f"memory://{uuid.uuid4().hex}/enrich"
    return CountingFolder(open_folder(uri))


def written(folder: Folder, versions: int) -> SnapshotStore:
    """Write a history: one snapshot, and repartitions of it."""
    store = SnapshotStore.on(folder)
    store.write(parts({}))
    for _ in range(versions - 1):
        store.repartition(2)
    return store


def look(folder: CountingFolder) -> tuple[int | None, dict[str, int]]:
    folder.reset()
    return newest_version(folder), dict(folder.operations)


def test_the_newest_costs_the_same_whatever_the_history(folder: CountingFolder) -> None:
    store = written(folder, 10)
    costs = []
    for versions in (10, 1000):
        # The rest of the history as it would be found: only the names count.
        for version in range(len(store.versions()) + 1, versions + 1):
            folder.create(manifest_name(version), b"")
            folder.replace(HINT, b"%d" % version)
        found, cost = look(folder)
        assert found == versions
        costs.append(cost)

    assert costs == [{"read": 1, "exists": 2, "names": 1}] * 2
    assert folder.bytes_read <= 20


def test_the_newest_snapshot_is_one_read_more(folder: CountingFolder) -> None:
    store = written(folder, 12)
    folder.reset()
    latest = store.latest()

    assert latest is not None
    assert latest.version == 12
    assert folder.operations == {"read": 2, "exists": 2, "names": 1}


@pytest.mark.parametrize("parallelism", [1, 4, G])
def test_one_listing_finds_what_all_workers_wrote(folder: CountingFolder, parallelism: int) -> None:
    pending = SnapshotStore.on(folder).begin()
    made = parts({"count": {number: number for number in range(40)}}, parallelism=parallelism)
    handles = [pending.write_subtask(part) for part in made]
    assert sum(len(handle.files) for handle in handles) >= 2 * parallelism
    folder.reset()
    pending.commit(handles)

    assert folder.operations["files"] == 1
    assert folder.operations["size"] == 0


def test_a_late_listing_costs_requests_and_no_commit(folder: CountingFolder) -> None:
    class Late(FolderWrapper):
        def sizes(self, prefix: str) -> dict[str, int]:
            return {}

    pending = SnapshotStore.on(Late(folder)).begin()
    handles = [pending.write_subtask(part) for part in parts({"count": {"a": 1}})]
    folder.reset()

    assert pending.commit(handles).version == 1
    assert folder.operations["size"] == sum(len(handle.files) for handle in handles)


def test_a_commit_is_a_create_that_is_read_back(folder: CountingFolder) -> None:
    store = written(folder, 3)
    folder.reset()
    store.repartition(1)

    look = {"read": 2, "exists": 2, "names": 1}
    commit = {"create": 1, "read": 1, "names": 2, "replace": 1}
    assert folder.operations == {name: look.get(name, 0) + commit.get(name, 0) for name in {*look, *commit}}
    assert folder.read(HINT) == b"%020d" % 4


def test_a_write_lists_once_what_workers_report(folder: CountingFolder) -> None:
    store = written(folder, 1)
    folder.reset()
    store.write(parts({}))

    assert (folder.operations["write"], folder.operations["files"], folder.operations["size"]) == (4, 1, 0)


@pytest.mark.parametrize("behind", range(1, PROBES_MAX))
def test_a_hint_that_is_a_little_behind_is_looked_up_from(folder: CountingFolder, behind: int) -> None:
    written(folder, 10)
    folder.replace(HINT, b"%d" % (10 - behind))

    assert look(folder) == (10, {"read": 1, "exists": 2 + behind, "names": 1})


@pytest.mark.parametrize(
    "hint",
    [
        b"",
        b"0",
        b"-3",
        b"1" * 21,
        b"1" * 100_000,
        b"ten",
        b"\xff\xfe\x00",
        "٣".encode(),
        b"1.0",
        b" 3",
        b"1",
        b"2",
    ],
    ids=lambda value: f"{len(value)} {value[:12]!r}",
)
def test_a_bad_hint_costs_a_listing_and_nothing_else(folder: CountingFolder, hint: bytes) -> None:
    written(folder, 10)
    folder.replace(HINT, hint)

    found, cost = look(folder)
    assert found == 10
    assert cost["names"] == 1
    assert sum(cost.values()) <= 3 + PROBES_MAX
    assert folder.bytes_read <= 21


def test_no_hint_costs_a_listing(folder: CountingFolder) -> None:
    written(folder, 10)
    folder.delete([HINT])

    assert look(folder) == (10, {"read": 1, "names": 1})


def test_a_store_that_was_never_written_to_has_no_newest(folder: CountingFolder) -> None:
    assert look(folder)[0] is None
    folder.replace("data/x", b"")
    folder.replace(HINT, b"?")
    assert look(folder) == (None, {"read": 1, "names": 2})


@pytest.mark.parametrize("hint", [b"11", b"12", b"99999999999999999999"])
def test_a_hint_at_more_than_is_there_is_a_loss_that_costs_no_more(folder: CountingFolder, hint: bytes) -> None:
    written(folder, 10)
    folder.replace(HINT, hint)
    folder.reset()

    with pytest.raises(ManifestMissing):
        newest_version(folder)
    assert folder.operations == {"read": 1, "exists": 2, "names": 2}


def test_a_hint_below_what_expired_is_not_looked_up_from(folder: CountingFolder) -> None:
    """Version 3 is pinned, so it is there still, and the one above it is gone."""
    written(folder, 10)
    mark_expired(folder, 8)
    folder.delete([manifest_name(version) for version in range(1, 9) if version != 3])
    for hint in (3, 8, 9, 10):
        folder.replace(HINT, b"%d" % hint)
        assert look(folder)[0] == 10


def test_the_mark_only_rises(folder: CountingFolder) -> None:
    for version, names in ((3, [3]), (7, [7]), (5, [7]), (7, [7])):
        mark_expired(folder, version)
        assert [int(name) for name in folder.names("expired")] == names


def test_a_damaged_newest_is_an_error_and_never_an_older_one(folder: CountingFolder) -> None:
    store = written(folder, 3)
    folder.replace(manifest_name(3), b"{}")
    for hint in (b"3", b"2", b"1", b"?"):
        folder.replace(HINT, hint)
        with pytest.raises(SnapshotCorrupted):
            store.latest()


def test_a_hint_that_cannot_be_written_fails_no_commit(folder: CountingFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    store = written(folder, 2)

    def refused(name: str, data: bytes) -> None:
        raise PermissionError("overwriting is not allowed")

    monkeypatch.setattr(folder, "replace", refused)
    for version in range(3, 20):
        assert store.repartition(2).version == version
    assert folder.read(HINT) == b"%020d" % 2
