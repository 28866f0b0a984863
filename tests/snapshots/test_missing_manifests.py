"""A manifest that is gone: noticed where anything says that it was there, given up only by who says so."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapshots import (
    CommitConflict,
    ManifestMissing,
    SnapshotCorrupted,
    SnapshotNotFound,
    SnapshotStore,
    WriterFenced,
)
from snapshots.filesystem import Folder
from snapshots.format.manifest import manifest_name
from snapshots.testing import FolderWrapper
from snapshots.testing.wrappers import Operation
from snapshots.versions import HINT, expired_version, newest_version
from tests.quick import in_turn
from tests.snapshot_kit import content_of, parts
from tests.snapshots.aged_operator import data_files, folder_of
from tests.snapshots.cli_kit import Cli


@pytest.fixture(params=in_turn(["memory", "local"]))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    root = tmp_path if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    return SnapshotStore(root, "enrich")


def written(store: SnapshotStore, versions: int) -> SnapshotStore:
    for number in range(1, versions + 1):
        store.write(parts({"count": {"a": number}}), source_position={"batch": number})
    return store


def lose(store: SnapshotStore, *versions: int) -> Folder:
    folder = folder_of(store)
    folder.delete([manifest_name(version) for version in versions])
    return folder


def uses(store: SnapshotStore) -> list[Callable[[], object]]:
    root = f"memory://{uuid.uuid4().hex}"
    return [
        store.latest,
        store.begin,
        lambda: store.write(parts({})),
        lambda: store.claim(parallelism=2),
        store.newest_version,
        lambda: store.repartition(1),
        store.compact,
        store.edit,
        lambda: store.bootstrap({}, parallelism=1),
        lambda: store.copy_to(SnapshotStore(root, "target")),
        lambda: written(SnapshotStore(root, "original"), 2).copy_to(store),
        lambda: store.collect_garbage(keep_last=1, min_age=0, dry_run=False),
    ]


LOSSES = [
    pytest.param(3, (3,), 3, 2, id="the newest"),
    pytest.param(4, (3, 4), 4, 2, id="the newest two"),
    pytest.param(1, (1,), 1, None, id="the only one"),
    pytest.param(3, (1, 2, 3), 3, None, id="all"),
]


@pytest.mark.parametrize(("versions", "lost", "missing", "newest"), LOSSES)
def test_what_was_there_is_missed_by_everybody(
    store: SnapshotStore, versions: int, lost: tuple[int, ...], missing: int, newest: int | None
) -> None:
    written(store, versions)
    folder = lose(store, *lost)
    before = {file.name for file in folder.files()}

    expected = (store.uri, folder.path(manifest_name(missing)), missing, newest)
    for use in uses(store):
        with pytest.raises(ManifestMissing) as refused:
            use()
        error = refused.value
        assert (error.uri, error.path, error.version, error.newest) == expected
    assert isinstance(error, SnapshotCorrupted)
    assert "--accept-loss" in str(error)
    assert {file.name for file in folder.files()} == before
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(("versions", "lost", "missing", "newest"), LOSSES)
def test_a_store_without_its_newest_manifest_is_not_sound(
    store: SnapshotStore, versions: int, lost: tuple[int, ...], missing: int, newest: int | None
) -> None:
    written(store, versions)
    folder = lose(store, *lost)

    report = store.verify()
    assert (report.ok, report.version) == (False, missing)
    assert [problem.path for problem in report.problems] == [folder.path(manifest_name(missing))]
    if newest is not None:
        assert store.verify(newest).ok


def test_the_mark_of_retention_says_it_too(store: SnapshotStore) -> None:
    """Retention leaves the newest, so without any there was one above the mark; the hint is gone as well."""
    written(store, 4)
    store.collect_garbage(keep_last=2, dry_run=False)
    folder = lose(store, 3, 4)
    folder.delete([HINT])

    with pytest.raises(ManifestMissing) as refused:
        store.latest()
    assert (refused.value.version, refused.value.newest) == (3, None)


def test_a_manifest_that_is_put_back_is_all_that_it_takes(store: SnapshotStore) -> None:
    written(store, 3)
    folder = folder_of(store)
    data = folder.read(manifest_name(3))
    lose(store, 3)
    with pytest.raises(ManifestMissing):
        store.latest()
    folder.create(manifest_name(3), data)

    latest = store.latest()
    assert latest is not None
    assert latest.version == 3
    assert store.verify().ok


class TestLegitimateHistories:
    def test_a_first_commit_that_was_killed_left_data_and_was_never_there(self, store: SnapshotStore) -> None:
        pending = store.begin()
        for part in parts({"count": {"a": 1}}):
            pending.write_subtask(part)

        assert data_files(store)
        assert store.latest() is None
        assert written(store, 1).versions() == [1]

    def test_a_copy_by_hand_of_data_and_manifests_has_no_hint(self, tmp_path: Path) -> None:
        store = written(SnapshotStore(tmp_path / "here", "enrich"), 5)
        store.pin(1)
        store.collect_garbage(keep_last=2, dry_run=False)
        copied, folder = SnapshotStore(tmp_path / "there", "enrich"), folder_of(store)
        for file in folder.files():
            if file.name.startswith(("data/", "manifests/")):
                folder_of(copied).write(file.name, folder.read(file.name))

        assert copied.verify().ok
        assert copied.versions() == [1, 4, 5]
        assert copied.write(parts({})).version == 6

    def test_an_older_hint_and_a_gap_below_the_newest_lose_nothing_of_it(self, store: SnapshotStore) -> None:
        written(store, 4)
        folder = lose(store, 2)

        assert folder.read(HINT) == b"%020d" % 4
        assert store.verify(4).ok
        assert newest_version(folder) == 4

    def test_what_retention_removed_is_not_missed(self, store: SnapshotStore) -> None:
        written(store, 6)
        folder = folder_of(store)
        store.collect_garbage(keep_last=2, dry_run=False)
        for hint in (1, 3, 4, 5, 6):
            folder.replace(HINT, b"%020d" % hint)
            assert newest_version(folder) == 6

    def test_a_copy_that_was_killed_after_its_mark_is_begun_again(self, tmp_path: Path) -> None:
        store, other = written(SnapshotStore(tmp_path, "enrich"), 2), SnapshotStore(tmp_path, "other")
        folder_of(other).create(f"expired/{2:020d}", b"")

        with pytest.raises(ManifestMissing):
            other.latest()
        assert store.copy_to(other).version == 3
        assert other.verify().ok

    def test_a_late_listing_hides_nothing_that_is_there(self, store: SnapshotStore) -> None:
        class Late(FolderWrapper):
            def names(self, folder: str) -> list[str]:
                return [name for name in super().names(folder) if folder != "manifests" or name[:20] <= f"{5:020d}"]

        written(store, 20)
        folder = folder_of(store)
        folder.replace(HINT, b"%020d" % 8)  # so far behind that manifests are listed

        assert newest_version(Late(folder)) is not None

    def test_a_collection_between_the_questions_is_not_a_loss(self, store: SnapshotStore) -> None:
        written(store, 2)
        folder = folder_of(store)

        def others_go_on() -> None:
            for _ in range(30):
                store.repartition(2)
            store.collect_garbage(keep_last=1, dry_run=False)

        class Beside(FolderWrapper):
            def __init__(self, inner: Folder, step: int) -> None:
                super().__init__(inner)
                self.step = step

            def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], Any]) -> Any:
                self.step -= 1
                if self.step == 0:
                    others_go_on()
                return run()

        for step in range(1, 8):
            found = SnapshotStore.on(Beside(folder, step)).latest()
            assert found is not None


class TestOlderVersions:
    def test_what_is_lost_between_others_is_said(self, cli: Cli, tmp_path: Path) -> None:
        store = written(SnapshotStore(tmp_path, "enrich"), 7)
        store.collect_garbage(keep_last=6, dry_run=False)
        folder = lose(store, 3, 4, 6)

        report = store.verify()
        assert [problem.path for problem in report.problems] == [folder.path(manifest_name(first)) for first in (3, 6)]
        assert "versions 3 to 4 are missing" in report.problems[0].what
        assert "version 6 is missing" in report.problems[1].what
        assert (cli("verify", store.uri).code, cli("verify", store.uri, "--version", "7").code) == (1, 0)

        inspected = cli("inspect", store.uri, "--json").json
        assert inspected["lost_versions"] == [{"first": 3, "last": 4}, {"first": 6, "last": 6}]
        assert "versions 3 to 4 are missing" in cli("inspect", store.uri).err

    def test_a_copy_by_hand_does_not_say_what_had_expired(self, tmp_path: Path) -> None:
        store = written(SnapshotStore(tmp_path, "enrich"), 5)
        folder = lose(store, 1, 2, 4)
        folder.delete([HINT])
        assert store.verify().ok

        store.write(parts({}))
        assert [problem.path for problem in store.verify().problems] == [folder.path(manifest_name(4))]

    @pytest.mark.parametrize(
        ("version", "expected"),
        [
            (1, "it may have expired"),
            (3, "retention has not removed it, but .* is missing; put it back"),
            (6, "retention has not removed it, but .* is missing; put it back"),
            (7, "its newest is version 6"),
        ],
    )
    def test_a_version_that_is_not_there_says_why(self, store: SnapshotStore, version: int, expected: str) -> None:
        written(store, 6)
        store.collect_garbage(keep_last=4, dry_run=False)
        lose(store, 3, 6)

        for load in (store.load, store.verify):
            with pytest.raises(SnapshotNotFound, match=expected):
                load(version)


class TestAcceptedLoss:
    @pytest.mark.parametrize(("versions", "lost", "missing", "newest"), LOSSES)
    def test_it_continues_from_what_is_there(
        self, store: SnapshotStore, versions: int, lost: tuple[int, ...], missing: int, newest: int | None
    ) -> None:
        written(store, versions)
        lose(store, *lost)

        claim = store.claim(parallelism=2, max_parallelism=16, accept_loss=True)

        assert claim.snapshot.version == missing + 1
        assert claim.snapshot.manifest.parent_version == newest
        expected = {} if newest is None else {"a": newest}
        assert content_of(claim.snapshot)["count"] == expected
        assert claim.snapshot.source_position == (None if newest is None else {"batch": newest})
        assert store.verify().ok
        assert claim.write(parts({"count": {"a": 9}})).version == missing + 2
        store.collect_garbage(keep_last=1, min_age=0, dry_run=False)
        assert store.versions() == [missing + 2]
        assert store.verify().ok

    def test_whoever_had_what_is_given_up_is_fenced(self, store: SnapshotStore) -> None:
        written(store, 2)
        owner = store.claim()
        paused = store.begin()
        handles = [paused.write_subtask(part) for part in parts({"count": {"a": 7}})]
        lose(store, 3)
        store.claim(accept_loss=True)

        with pytest.raises(WriterFenced):
            owner.write(parts({"count": {"a": 8}}))
        with pytest.raises(CommitConflict):
            paused.commit(handles)
        assert store.newest_version() == 4

    def test_where_nothing_is_missing_it_is_a_claim_as_any(self, store: SnapshotStore) -> None:
        written(store, 2)

        assert store.claim(accept_loss=True).snapshot.version == 3
        assert expired_version(folder_of(store)) == 0

    def test_of_an_only_snapshot_the_parallelism_has_to_be_said_again(self, store: SnapshotStore) -> None:
        written(store, 1)
        folder = lose(store, 1)

        with pytest.raises(ValueError, match="parallelism"):
            store.claim(accept_loss=True)
        assert expired_version(folder) == 0
        with pytest.raises(ManifestMissing):
            store.latest()


def test_the_command_line_says_it_and_continues(cli: Cli, tmp_path: Path) -> None:
    store = written(SnapshotStore(tmp_path, "enrich"), 3)
    lose(store, 3)
    uri = f"{tmp_path}/enrich"

    for command in (["inspect"], ["verify"], ["gc", "--apply"], ["claim"]):
        answer = cli(*command, uri)
        assert answer.code == 1
        assert manifest_name(3) in answer.out + answer.err
    assert store.versions() == [1, 2]

    answer = cli("claim", uri, "--accept-loss", "--json")
    assert (answer.code, answer.json) == (0, {"version": 4, "parent_version": 2, "operator_id": "enrich"})
    assert cli("verify", uri).code == 0


def test_a_damaged_newest_manifest_is_given_up_as_its_error_says(cli: Cli, tmp_path: Path) -> None:
    store = written(SnapshotStore(tmp_path, "enrich"), 3)
    newest = tmp_path / "enrich" / manifest_name(3)
    newest.write_bytes(newest.read_bytes()[:-20])

    refused = cli("claim", store.uri, "--accept-loss")
    assert refused.code == 1
    assert "move this file out of the folder, then run `keygroups claim URI --accept-loss`" in refused.err

    newest.rename(tmp_path / "damaged.json")
    assert cli("claim", f"{tmp_path}/enrich", "--accept-loss").code == 0
    claimed = store.load().manifest
    assert (claimed.version, claimed.parent_version, claimed.source_position) == (4, 2, {"batch": 2})
