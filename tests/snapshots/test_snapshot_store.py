"""The store: its root, its operators and its versions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from async_op import Job
from async_op.connectors import FileSink, FileSource
from async_op.testing import RecordedService
from keygroups import ConfigError, DiskStateBackend
from snapshots import FolderMoved, SnapshotCorrupted, SnapshotNotFound, SnapshotStore
from snapshots.filesystem import open_folder
from snapshots.format.manifest import manifest_name
from snapshots.inspection.export import export
from tests.snapshot_kit import content_of, new_store, parts
from tests.snapshots.snapshot_content import CONTENT, position


class TestVersions:
    def test_an_empty_store_has_no_snapshot(self, store: SnapshotStore) -> None:
        assert store.versions() == []
        assert store.latest() is None
        assert store.begin().version == 1
        for use in (store.verify, lambda: store.repartition(2), lambda: store.load(1)):
            with pytest.raises(SnapshotNotFound) as missing:
                use()
            assert missing.value.uri == store.uri

    def test_versions_count_from_one_and_each_stays_readable(self, store: SnapshotStore) -> None:
        for number in range(12):
            store.write(parts({"count": {"a": number}}), source_position=position(number))

        assert store.versions() == list(range(1, 13))
        assert [store.load(version).source_position for version in store.versions()] == list(map(position, range(12)))
        latest = store.latest()
        assert latest is not None
        assert latest.version == 12
        assert [latest.manifest.parent_version, store.load(1).manifest.parent_version] == [11, None]
        with pytest.raises(SnapshotNotFound, match="version 13"):
            store.load(13)

    def test_other_files_beside_the_manifests_are_no_versions(self, store: SnapshotStore) -> None:
        store.write(parts({}))
        folder = store.begin().folder
        for name in (".5f0e.tmp", "7.json", f"{8:020d}.json.bak", f"{9:021d}.json", "README"):
            folder.create(f"manifests/{name}", b"")

        assert store.versions() == [1]

    def test_two_operators_share_a_root(self, tmp_path: Path) -> None:
        one, two = SnapshotStore(tmp_path, "one"), SnapshotStore(tmp_path, "two")
        one.write(parts({"count": {"a": 1}}))

        assert two.versions() == []
        assert SnapshotStore.at(tmp_path / "one").versions() == [1]

    def test_a_snapshot_may_be_moved_with_its_root(self, tmp_path: Path) -> None:
        new_store(str(tmp_path / "here")).write(parts(CONTENT))
        (tmp_path / "here").rename(tmp_path / "there")

        assert content_of(new_store(str(tmp_path / "there")).load(1)) == CONTENT

    @pytest.mark.parametrize(
        ("uri", "operator_id", "folder"),
        [
            ("memory://", "enrich", "memory:///enrich"),
            ("memory://root/", "enrich", "memory:///root/enrich"),
            ("file:///", "enrich", "file:///enrich"),
            ("/", "enrich", "file:///enrich"),
            ("/root//", "a.b-c_1", "file:///root/a.b-c_1"),
        ],
    )
    def test_a_root_may_be_written_in_many_ways(self, uri: str, operator_id: str, folder: str) -> None:
        assert SnapshotStore(uri, operator_id).uri == folder
        assert SnapshotStore.at(folder).uri == folder
        assert SnapshotStore.at(folder + "/").operator_id == operator_id

    def test_a_relative_path_is_a_root_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        SnapshotStore("snapshots", "enrich").write(parts({}))

        assert SnapshotStore.at("snapshots/enrich").versions() == [1]
        monkeypatch.chdir(tmp_path / "snapshots")
        assert SnapshotStore.at("enrich").versions() == [1]

    @pytest.mark.parametrize("operator_id", ["", ".", "..", "a/b", "../b", "a b", ".hidden", "ä", "a" * 256, "a\n"])
    def test_an_operator_id_is_the_name_of_a_folder(self, operator_id: str) -> None:
        with pytest.raises(ConfigError, match="operator_id"):
            SnapshotStore("memory://root", operator_id)

    def test_a_manifest_under_another_version_or_operator_is_not_believed(self) -> None:
        store, other = new_store(), SnapshotStore("memory://elsewhere", "other")
        folder = store.write(parts({})).folder
        data = folder.read(manifest_name(1))
        folder.create(manifest_name(2), data)
        other.begin().folder.create(manifest_name(1), data)

        for use in (lambda: store.load(2), store.latest, store.begin, lambda: store.repartition(1)):
            with pytest.raises(SnapshotCorrupted, match="moved or renamed"):
                use()
        with pytest.raises(FolderMoved, match="'enrich'"):
            other.latest()
        assert store.load(1).version == 1


@pytest.mark.parametrize("location", [None, "", b"/data", 5])
@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("uri", lambda location: SnapshotStore(location, "operator")),
        ("uri", SnapshotStore.at),
        ("uri", open_folder),
        ("snapshots", lambda location: Job([1], abs, print, snapshots=location, job_id="job")),
        ("folder", lambda location: FileSink(location, "json")),
        ("glob", lambda location: FileSource(location, "json")),
        ("path", RecordedService),
        ("path", lambda location: export(new_store().write(parts({})), None, location)),
    ],
    ids=["store", "at", "folder", "job", "sink", "source", "recorded", "export"],
)
def test_what_is_no_location_is_refused(
    name: str, use: Callable[[Any], object], location: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        use(location)
    assert caught.value.name == name
    assert list(tmp_path.iterdir()) == []


def test_a_path_names_a_folder(tmp_path: Path) -> None:
    assert SnapshotStore(tmp_path, "operator").uri == SnapshotStore.at(tmp_path / "operator").uri


@pytest.mark.parametrize("location", ["", b"/data", 5])
def test_what_is_no_directory_is_refused(location: Any) -> None:
    with pytest.raises(ConfigError, match="directory"):
        DiskStateBackend(location)


WRONG: dict[str, tuple[str, Callable[[SnapshotStore], object]]] = {
    "a subtask as text": ("subtask_index", lambda store: store.load().restore("0")),  # type: ignore[arg-type]
    "a negative subtask": ("subtask_index", lambda store: store.load().restore(-1)),
    "a subtask too many": ("subtask_index", lambda store: store.load().restore(2)),
    "a number for a store": ("other", lambda store: store.copy_to(3)),  # type: ignore[arg-type]
    "a snapshot for a part": ("snapshot", lambda store: store.write([store.load()])),  # type: ignore[list-item]
    "a snapshot for parts": ("subtask_snapshots", lambda store: store.write(store.load())),  # type: ignore[arg-type]
    "a name for a state": ("descriptor", lambda store: store.edit().put("count", [])),  # type: ignore[arg-type]
    "a name for items": ("descriptor", lambda store: store.edit().put_items("seen", [])),  # type: ignore[arg-type]
    "a number for a state": ("state", lambda store: store.edit().transform(3, id)),  # type: ignore[arg-type]
    "a number for a range": ("key_groups", lambda store: store.load().to_reader("count", 3)),  # type: ignore[arg-type]
    "a name for a first state": (
        "states",
        lambda store: SnapshotStore(store.uri + "-2", "first").bootstrap({"count": []}, parallelism=1),  # type: ignore[dict-item]
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused_by_name_and_write_nothing(store: SnapshotStore, wrong: str) -> None:
    store.write(parts(CONTENT))
    name, use = WRONG[wrong]

    with pytest.raises(ConfigError) as refused:
        use(store)

    assert refused.value.name == name
    assert store.versions() == [1]


def test_a_copy_goes_to_a_store_a_uri_or_a_path(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, "enrich")
    store.write(parts(CONTENT))

    for target in (SnapshotStore(tmp_path, "a"), str(tmp_path / "b"), tmp_path / "c"):
        assert store.copy_to(target).version == 2
    assert [content_of(SnapshotStore(tmp_path, name).load()) for name in "abc"] == [content_of(store.load())] * 3
