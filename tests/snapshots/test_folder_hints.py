"""A folder without a snapshot that is the wrong one: what lies around it is said."""

from __future__ import annotations

import logging
import pickle
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from keygroups import ConfigError
from snapshots import (
    EmptyBesideOthers,
    FolderMoved,
    IncompatibleSnapshot,
    SnapshotNotFound,
    SnapshotStore,
    StorageRefused,
    versions,
)
from snapshots.filesystem import Folder
from snapshots.folder_hints import NEIGHBOURS_MAX
from snapshots.testing import CountingFolder
from tests.quick import in_turn
from tests.snapshot_kit import content_of, parts
from tests.snapshots.aged_operator import folder_of
from tests.snapshots.cli_kit import Cli

CONTENT = {"count": {"a": 1}}


@pytest.fixture(params=in_turn(["memory", "local"]))
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder with the snapshots of the operator `visits`."""
    root = str(tmp_path / "state") if request.param == "local" else f"memory://{uuid.uuid4().hex}/state"
    SnapshotStore(root, "visits").write(parts(CONTENT))
    return root


def test_a_store_within_an_operators_folder_is_refused_before_anything_is_written(root: str) -> None:
    store = SnapshotStore(f"{root}/visits", "visits")

    uses: list[Callable[[], object]] = [
        store.latest,
        store.begin,
        lambda: store.write(parts(CONTENT)),
        lambda: store.claim(parallelism=1),
        lambda: store.bootstrap({}, parallelism=1),
        lambda: SnapshotStore(root, "visits").copy_to(store),
    ]
    for use in uses:
        with pytest.raises(ConfigError, match="operator 'visits' itself") as refused:
            use()
    assert f"SnapshotStore.at('{SnapshotStore(root, 'visits').uri}')" in str(refused.value)
    assert folder_of(store).files() == []


def test_what_there_is_around_is_in_the_error(root: str, cli: Cli) -> None:
    visits = SnapshotStore(root, "visits").uri
    wrong = {f"{root}/visit": 3, root: 3, f"{root}/visits/visits": 3}
    for uri, code in wrong.items():
        store = SnapshotStore.at(uri)
        for use in (store.load, store.verify, store.edit, store.collect_garbage, store.compact):
            with pytest.raises(SnapshotNotFound) as missing:
                use()
            assert missing.value.nearby == (visits,)
        if root.startswith("memory"):
            continue
        for command in (["inspect"], ["verify"], ["gc"], ["report", "-o", "unused.html"]):
            answer = cli(*command, uri)
            assert (answer.code, answer.out) == (code, "")
            assert visits in answer.err


def test_who_asks_for_the_newest_where_there_is_none_is_warned_of_those_beside(root: str) -> None:
    store = SnapshotStore(root, "visit")
    with pytest.warns(EmptyBesideOthers, match="check uri and operator_id") as warned:
        assert store.latest() is None

    (warning,) = warned
    assert warning.filename == __file__
    assert isinstance(warning.message, EmptyBesideOthers)
    assert warning.message.uri == store.uri
    assert warning.message.nearby == (SnapshotStore(root, "visits").uri,)
    assert all(uri in str(warning.message) for uri in (store.uri, *warning.message.nearby))
    copy = pickle.loads(pickle.dumps(warning.message))
    assert (str(copy), copy.nearby) == (str(warning.message), warning.message.nearby)


def test_an_operator_that_begins_empty_beside_others_only_logs_it(root: str, caplog: pytest.LogCaptureFixture) -> None:
    starts: list[Callable[[SnapshotStore], object]] = [
        lambda store: store.write(parts(CONTENT)),
        lambda store: store.claim(parallelism=1),
        lambda store: store.bootstrap({}, parallelism=1),
        lambda store: SnapshotStore(root, "visits").copy_to(store),
    ]
    for number, start in enumerate(starts):
        store = SnapshotStore(root, f"new_{number}")
        with caplog.at_level(logging.WARNING, logger="snapshots"):
            start(store)

        (record,) = caplog.records
        assert SnapshotStore(root, "visits").uri in record.getMessage()
        assert store.uri in record.getMessage()
        caplog.clear()


def test_no_operator_begins_in_the_folder_above_those_of_others(root: str) -> None:
    store, visits = SnapshotStore.at(root), SnapshotStore(root, "visits")
    orders = visits.copy_to(SnapshotStore(root.replace("state", "other"), "orders"))
    proposals: dict[Callable[[], object], str] = {
        store.begin: "NAME",
        lambda: store.write(parts(CONTENT)): "NAME",
        lambda: store.claim(parallelism=1): "NAME",
        lambda: store.bootstrap({}, parallelism=1): "NAME",
        lambda: visits.copy_to(store): "NAME",  # which is not there, as a folder `visits` is
        lambda: SnapshotStore.on(orders.folder).copy_to(store): "orders",
    }
    for use, name in proposals.items():
        with pytest.raises(ConfigError, match="above the operators' folders") as refused:
            use()
        assert str(refused.value).endswith(f"such as {store.uri}/{name}")
    assert store.versions() == []


def test_an_operator_that_is_the_first_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "state" / "of others").mkdir(parents=True)
    with caplog.at_level(logging.WARNING, logger="snapshots"):
        assert SnapshotStore(tmp_path / "state", "visits").latest() is None
        SnapshotStore(tmp_path / "state", "visits").write(parts(CONTENT))

    assert caplog.records == []


def test_what_is_looked_at_is_bounded_and_only_once_there_is_nothing(tmp_path: Path) -> None:
    for number in range(NEIGHBOURS_MAX + 5):
        SnapshotStore(tmp_path, f"other_{number:02}").write(parts({}))
    store = SnapshotStore(tmp_path, "visits")
    with pytest.raises(SnapshotNotFound) as missing:
        store.load()
    assert len(missing.value.nearby) == NEIGHBOURS_MAX

    folder = CountingFolder(folder_of(store))
    store = SnapshotStore.on(folder)
    store.write(parts({}))
    folder.reset()
    store.latest()
    assert folder.operations == {"read": 2, "exists": 2, "names": 1}


class TestMovedFolders:
    @pytest.fixture
    def store(self, tmp_path: Path) -> SnapshotStore:
        store = SnapshotStore(tmp_path, "visits")
        store.write(parts(CONTENT))
        return store

    @pytest.mark.parametrize("is_copied", [False, True])
    def test_a_folder_under_another_name_is_no_damage(
        self, store: SnapshotStore, tmp_path: Path, cli: Cli, is_copied: bool
    ) -> None:
        for file in folder_of(store).files():
            path = tmp_path / "orders" / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((tmp_path / "visits" / file.name).read_bytes())
        if not is_copied:
            (tmp_path / "visits").rename(tmp_path / "gone")
        orders = SnapshotStore(tmp_path, "orders")

        for use in (orders.latest, orders.verify, orders.begin, orders.collect_garbage):
            with pytest.raises(FolderMoved) as moved:
                use()
        assert isinstance(moved.value, IncompatibleSnapshot)
        assert (moved.value.uri, moved.value.operator_id) == (orders.uri, "visits")
        assert moved.value.is_copy == is_copied
        assert "damage" not in str(moved.value)
        answer = cli("verify", f"{tmp_path}/orders")
        assert answer.code == 1
        assert f"keygroups copy {store.uri} {orders.uri}" in answer.err

    def test_what_the_error_says_helps(self, store: SnapshotStore, tmp_path: Path, cli: Cli) -> None:
        (tmp_path / "visits").rename(tmp_path / "orders")
        with pytest.raises(FolderMoved):
            SnapshotStore(tmp_path, "orders").latest()

        (tmp_path / "orders").rename(tmp_path / "visits")
        assert cli("verify", f"{tmp_path}/visits").code == 0
        assert cli("copy", f"{tmp_path}/visits", f"{tmp_path}/orders").code == 0
        copied = SnapshotStore(tmp_path, "orders").latest()
        assert copied is not None
        assert content_of(copied)["count"] == {"a": 1}

    def test_what_the_error_of_a_copy_says_helps(self, store: SnapshotStore, tmp_path: Path, cli: Cli) -> None:
        copied = tmp_path / "orders"
        shutil.copytree(tmp_path / "visits", copied)
        store.write(parts({"count": {"a": 2}}))
        error = cli("inspect", copied).err
        assert f"remove file://{copied} first" in error
        assert "move it into another folder, under the name 'visits'" in error

        (tmp_path / "elsewhere").mkdir()
        copied.rename(tmp_path / "elsewhere" / "visits")  # removed from there, and kept
        assert content_of(SnapshotStore(tmp_path / "elsewhere", "visits").load())["count"] == {"a": 1}
        (command,) = re.findall("`keygroups (copy [^`]*)`", error)
        assert cli(*command.split()).code == 0
        assert content_of(SnapshotStore(tmp_path, "orders").load())["count"] == {"a": 2}

    def test_a_copy_whose_neighbours_may_not_be_seen_is_told_of_as_moved(
        self, store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.copytree(tmp_path / "visits", tmp_path / "orders")

        def refused(folder: Folder) -> list[int]:
            raise StorageRefused(folder.uri, "manifests", "not allowed")

        monkeypatch.setattr(versions, "committed_versions", refused)
        with pytest.raises(FolderMoved) as moved:
            SnapshotStore(tmp_path, "orders").load(1)
        assert not moved.value.is_copy

    def test_a_folder_that_is_moved_with_its_name_continues(self, store: SnapshotStore, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "visits").rename(tmp_path / "elsewhere" / "visits")

        moved = SnapshotStore(tmp_path / "elsewhere", "visits")
        assert moved.verify().ok
        assert moved.write(parts({})).version == 2


class TestAddresses:
    def test_a_store_has_one_address_however_it_is_opened(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
    ) -> None:
        made = SnapshotStore(tmp_path / "state", "visits")
        made.write(parts(CONTENT))
        monkeypatch.chdir(tmp_path)
        addresses = ["state/visits", "state/visits/", "./state/visits", str(tmp_path / "state" / "visits"), made.uri]

        assert {SnapshotStore.at(address).uri for address in addresses} == {made.uri}
        assert {SnapshotStore.at(address).load().version for address in addresses} == {1}
        assert [cli("inspect", address).code for address in addresses] == [0] * len(addresses)
        assert SnapshotStore("state", "visits").uri == made.uri
        monkeypatch.chdir(tmp_path / "state" / "visits" / "data")
        assert SnapshotStore.at("..").uri == made.uri
        monkeypatch.chdir("..")
        assert SnapshotStore.at(".").uri == SnapshotStore.at("./").uri == made.uri
        assert cli("inspect", ".").code == 0

    def test_the_folder_above_is_told_before_an_operator_begins_empty_there(self, root: str) -> None:
        with pytest.warns(EmptyBesideOthers) as warned:
            assert SnapshotStore.at(root).latest() is None

        assert SnapshotStore(root, "visits").uri in str(warned[0].message)

    def test_each_kind_of_folder_is_named_for_what_it_is(self, tmp_path: Path, cli: Cli) -> None:
        visits = SnapshotStore(tmp_path / "state", "visits")
        visits.write(parts(CONTENT))
        (tmp_path / "state" / "mine").mkdir()
        (tmp_path / "state" / "mine" / "notes.txt").write_text("nothing")
        expected = {
            "state": ("the folder above the operators' folders", f"keygroups ls {visits.uri.rpartition('/')[0]}"),
            "state/visits/data": ("a part of the folder of an operator", visits.uri),
            "state/mine": ("files of something else", visits.uri),
            "state/absent": ("empty or absent", visits.uri),
            "elsewhere/visits": ("empty or absent", "one operator's folder"),
        }
        for path, (what, advice) in expected.items():
            answer = cli("inspect", tmp_path / path)
            assert (answer.code, answer.out) == (3, "")
            assert what in answer.err
            assert advice in answer.err
        assert f"keygroups inspect {visits.uri}" in cli("inspect", visits.uri, "--version", 9).err
