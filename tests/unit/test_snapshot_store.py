from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import pickle
import threading
import zoneinfo
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keygroups import ConfigError, KeyGroupRange, UnstorableValue, ValueState, key_group_of, range_of
from keygroups.codec import unpack
from keygroups.state import MemoryBackend
from keygroups.values import values_of
from snapshots import (
    CommitConflict,
    CommitOutcomeUnknown,
    IncompatibleSnapshot,
    IncompleteSnapshot,
    Snapshot,
    SnapshotCorrupted,
    SnapshotNotFound,
    SnapshotStore,
    SubtaskSnapshot,
    files,
)
from snapshots.filesystem import Folder, MemoryFolder, open_folder, retry
from snapshots.manifest import Manifest, manifest_name
from snapshots.testing import Fault, FaultyFolder, restless_threads
from snapshots.writer import SubtaskHandle
from tests.snapshot_kit import (
    COUNT,
    PROFILE,
    G,
    content_of,
    new_store,
    part,
    parts,
    record,
    restored,
    words,
)

CONTENT: dict[str, dict[Any, object]] = {
    "count": {key: number for number, key in enumerate(words(50))},
    "profile": {key: {"name": key, "seen": (number, None)} for number, key in enumerate(words(30))},
}


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    return new_store(str(tmp_path) if request.param == "local" else None)


def position(number: int) -> dict[str, Any]:
    return {"batch": number}


class TestWriteAndRestore:
    @pytest.mark.parametrize("new", [1, 2, 3, 5, G])
    @pytest.mark.parametrize("old", [1, 2, 7, G])
    def test_a_snapshot_is_restored_at_every_parallelism(self, old: int, new: int) -> None:
        snapshot = new_store().write(parts(CONTENT, parallelism=old))

        assert snapshot.parallelism == old
        assert content_of(snapshot, new) == CONTENT

    def test_what_was_written_is_what_is_loaded(self, store: SnapshotStore) -> None:
        written = store.write(parts(CONTENT, in_flight=[record("a", 0)]), source_position={"batch": 7, "of": "ü"})
        loaded = SnapshotStore.at(store.uri).load(1)

        assert loaded.manifest == written.manifest
        assert (loaded.version, loaded.parallelism, loaded.max_parallelism) == (1, 2, G)
        assert (loaded.state_names, loaded.in_flight_count) == (("count", "profile"), 1)
        assert loaded.source_position == {"batch": 7, "of": "ü"}
        assert content_of(loaded) == CONTENT
        assert store.verify().ok

    @pytest.mark.parametrize("parallelism", [1, 3, G])
    def test_repartition_is_a_manifest_over_the_same_files(self, parallelism: int) -> None:
        store = new_store()
        before = store.write(parts(CONTENT, in_flight=[record("a", 0)]), source_position=position(1))
        after = store.repartition(parallelism)

        assert after.manifest == store.load(2).manifest
        assert after.manifest.files == before.manifest.files
        assert (after.version, after.parallelism, after.source_position) == (2, parallelism, position(1))
        assert (after.manifest.parent_version, after.manifest.parent_id) == (1, before.manifest.snapshot_id)
        assert after.manifest.snapshot_id != before.manifest.snapshot_id
        assert content_of(after) == content_of(before) == CONTENT
        assert store.verify().ok

    def test_repartition_may_follow_itself_and_a_write_follow_that(self) -> None:
        store = new_store()
        store.write(parts(CONTENT, parallelism=4))
        for parallelism in (1, G, 3):
            store.repartition(parallelism)
        snapshot = store.latest()
        assert snapshot is not None
        again = store.write([part(restored(snapshot, subtask), subtask, 3) for subtask in range(3)])

        assert again.version == 5
        assert content_of(again, 2) == CONTENT
        assert store.verify().ok

    def test_what_a_restored_subtask_never_touched_is_in_its_next_snapshot(self) -> None:
        store = new_store()
        first = store.write(parts(CONTENT))
        backends = [restored(first, subtask, 3) for subtask in range(3)]
        key_group = key_group_of("key 7", G)
        (owner,) = (b for index, b in enumerate(backends) if key_group in range_of(index, 3, G))
        owner.tables["count"].put(key_group, "key 7", -1)
        second = store.write([part(backend, index, 3) for index, backend in enumerate(backends)])

        assert content_of(second) == CONTENT | {"count": CONTENT["count"] | {"key 7": -1}}
        assert content_of(first) == CONTENT

    def test_subtasks_without_any_row_are_whole(self) -> None:
        """Restored, cut and written without a touch, a subtask's part has key groups of which none has a row."""
        store = new_store()
        first = store.write(parts({"count": {"a": 1}}, parallelism=1))
        second = store.write([part(restored(first, subtask, G), subtask, G) for subtask in range(G)])

        assert content_of(second) == {"count": {"a": 1}, "profile": {}}
        assert second.to_arrow("count").to_pydict() == {"key_group": [key_group_of("a", G)], "key": ["a"], "value": [1]}
        assert store.verify().problems == ()

    def test_a_newly_declared_state_starts_empty(self) -> None:
        snapshot = new_store().write(parts({"count": {"a": 1}}, [COUNT]))

        assert content_of(snapshot, descriptors=[COUNT, PROFILE]) == {"count": {"a": 1}, "profile": {}}

    @pytest.mark.parametrize(
        ("declared", "what"),
        [
            ([PROFILE], "a state"),
            ([ValueState("count", pa.int32()), PROFILE], "state 'count'"),
            ([ValueState("count"), PROFILE], "state 'count'"),
            ([COUNT, ValueState("profile", pa.string())], "state 'profile'"),
        ],
        ids=["forgotten", "narrowed", "untyped", "typed"],
    )
    def test_a_state_that_is_declared_differently_is_refused(self, declared: list[ValueState], what: str) -> None:
        snapshot = new_store().write(parts(CONTENT))

        with pytest.raises(IncompatibleSnapshot) as refused:
            snapshot.restore(0).states(declared)
        assert refused.value.what == what

    @pytest.mark.parametrize(
        ("subtask_index", "parallelism", "name"),
        [(2, None, "subtask_index"), (-1, None, "subtask_index"), (0, 0, "parallelism"), (0, G + 1, "parallelism")],
    )
    def test_there_is_no_restore_of_a_subtask_that_cannot_be(
        self, subtask_index: int, parallelism: int | None, name: str
    ) -> None:
        snapshot = new_store().write(parts({}))

        with pytest.raises(ConfigError) as refused:
            snapshot.restore(subtask_index, parallelism)
        assert refused.value.name == name

    def test_a_restore_fits_one_operator_only(self) -> None:
        restore = new_store().write(parts({})).restore(1, 3)
        restore.check_fits(1, 3, G, "xxhash64")

        for arguments in ((0, 3, G, "xxhash64"), (1, 2, G, "xxhash64"), (1, 3, 2 * G, "xxhash64"), (1, 3, G, "flink")):
            with pytest.raises(IncompatibleSnapshot):
                restore.check_fits(*arguments)

    def test_a_key_group_is_loaded_by_the_operator_while_a_cut_of_it_is_written(self) -> None:
        """They take the groups of one file from one reader, at the same time."""
        store = new_store()
        many: dict[str, dict[Any, object]] = {"count": dict.fromkeys(range(30), 1), "profile": {}}
        snapshot = store.write(parts(many, parallelism=1))
        for _ in range(150):
            groups = snapshot.restore(0).states([COUNT, PROFILE])["count"]
            start = threading.Barrier(4)

            def load(groups: Any = groups, start: threading.Barrier = start) -> dict[Any, object]:
                start.wait()
                return {key: value for group in groups.values() for key, value in group.load().items()}

            with restless_threads(), ThreadPoolExecutor(4) as pool:
                loading = [pool.submit(load) for _ in range(4)]
                assert [thread.result() for thread in loading] == [many["count"]] * 4


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

        assert two.latest() is None
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

        for use in (lambda: store.load(2), store.latest, store.begin, other.latest, lambda: store.repartition(1)):
            with pytest.raises(SnapshotCorrupted, match="moved or renamed"):
                use()
        assert store.load(1).version == 1


class TestPickling:
    def test_a_snapshot_is_written_by_workers_and_read_by_others(self, store: SnapshotStore) -> None:
        pending = store.begin()
        copies = [pickle.loads(pickle.dumps(pending)) for _ in range(2)]
        handles = [copy.write_subtask(made) for copy, made in zip(copies, parts(CONTENT), strict=True)]
        assert store.versions() == []
        snapshot = pending.commit(pickle.loads(pickle.dumps(handles)))
        copy = pickle.loads(pickle.dumps(snapshot))

        assert copy.manifest == snapshot.manifest
        assert content_of(copy, 3) == CONTENT
        assert copy.to_arrow("count").num_rows == 50

    def test_a_restore_is_picked_up_in_another_process(self, store: SnapshotStore) -> None:
        snapshot = store.write(parts(CONTENT, in_flight=[record("a", 0)]))
        restores = [pickle.loads(pickle.dumps(snapshot.restore(subtask, 3))) for subtask in range(3)]
        loaded: dict[Any, object] = {}
        for restore in restores:
            for group in restore.states([COUNT, PROFILE])["count"].values():
                loaded |= group.load()

        assert loaded == CONTENT["count"]
        assert sum(len(restore.queue().elements) for restore in restores) == 1


class TestCommit:
    def test_the_second_of_two_writers_meets_a_conflict_and_has_written_nothing_visible(
        self, store: SnapshotStore
    ) -> None:
        one, two = store.begin(), store.begin()
        handles = [two.write_subtask(made) for made in parts({"count": {"a": 2}})]
        one.commit([one.write_subtask(made) for made in parts({"count": {"a": 1}})])

        with pytest.raises(CommitConflict) as conflict:
            two.commit(handles)
        assert (conflict.value.uri, conflict.value.version) == (store.uri, 1)
        assert store.versions() == [1]
        assert content_of(store.load(1))["count"] == {"a": 1}

    def test_one_of_many_racing_writers_wins(self, store: SnapshotStore) -> None:
        start = threading.Barrier(8)

        def race(number: int) -> Snapshot | CommitConflict:
            pending = store.begin()
            handles = [pending.write_subtask(made) for made in parts({"count": {"a": number}})]
            start.wait()
            try:
                return pending.commit(handles)
            except CommitConflict as conflict:
                return conflict

        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(race, range(8)))

        (won,) = (outcome for outcome in outcomes if isinstance(outcome, Snapshot))
        assert store.load(1).manifest == won.manifest
        assert store.versions() == [1]

    def test_a_repartition_that_is_overtaken_meets_a_conflict(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = new_store()
        store.write(parts({"count": {"a": 1}}))
        create = MemoryFolder.create

        def overtaken(folder: MemoryFolder, name: str, data: bytes) -> None:
            monkeypatch.setattr(MemoryFolder, "create", create)
            store.write(parts({"count": {"a": 2}}))
            create(folder, name, data)

        monkeypatch.setattr(MemoryFolder, "create", overtaken)
        with pytest.raises(CommitConflict, match="version 2"):
            store.repartition(1)
        assert content_of(store.load(2))["count"] == {"a": 2}

    def test_of_several_attempts_of_a_subtask_one_counts(self) -> None:
        """Spark may run a task twice; both attempts report."""
        store = new_store()
        pending = store.begin()
        first, second = parts({"count": {"a": 1, "b": 2, "c": 3}})
        handles = [pending.write_subtask(made) for made in (second, first, second, first, first)]
        snapshot = pending.commit(handles)

        assert content_of(snapshot)["count"] == {"a": 1, "b": 2, "c": 3}
        assert len({file.path for handle in handles for file in handle.files}) == 10
        assert len(snapshot.manifest.files) == 4
        assert store.verify().ok

    @pytest.mark.parametrize(
        ("chosen", "problem"),
        [
            ([], "no subtask wrote its part"),
            ([0, 1], r"subtasks \[2\] wrote nothing"),
            ([2, 2, 2], r"subtasks \[0, 1\] wrote nothing"),
        ],
    )
    def test_a_commit_without_all_subtasks_commits_nothing(self, chosen: list[int], problem: str) -> None:
        store = new_store()
        pending = store.begin()
        handles = [pending.write_subtask(made) for made in parts(CONTENT, parallelism=3)]

        with pytest.raises(IncompleteSnapshot, match=problem):
            pending.commit([handles[index] for index in chosen])
        assert store.versions() == []

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"parallelism": 4}, "differ in parallelism"),
            ({"max_parallelism": 2 * G}, "differ in max_parallelism"),
            ({"hash": "flink"}, "differ in hash"),
            ({"states": ()}, "differ in states"),
            ({"key_groups": KeyGroupRange(0, G - 1)}, "key groups of another"),
        ],
        ids=lambda value: None if isinstance(value, dict) else value,
    )
    def test_parts_that_are_not_of_one_run_commit_nothing(self, change: dict[str, Any], problem: str) -> None:
        store = new_store()
        pending = store.begin()
        first, second = [pending.write_subtask(made) for made in parts(CONTENT)]

        with pytest.raises(IncompleteSnapshot, match=problem):
            pending.commit([first, dataclasses.replace(second, **change)])
        assert store.versions() == []

    @pytest.mark.parametrize(("name", "value"), [("max_parallelism", 2 * G), ("hash", "flink")])
    def test_what_is_fixed_stays_as_in_the_parent(self, name: str, value: object) -> None:
        store = new_store()
        store.write([SubtaskSnapshot(subtask_index=0, parallelism=1, max_parallelism=G, hash="xxhash64")])
        changed = SubtaskSnapshot(
            **({"subtask_index": 0, "parallelism": 1, "max_parallelism": G, "hash": "xxhash64"} | {name: value})  # type: ignore[arg-type]
        )

        with pytest.raises(IncompatibleSnapshot, match="fixed once a snapshot exists"):
            store.write([changed])
        assert store.versions() == [1]

    @pytest.mark.parametrize("parallelism", [0, -1, G + 1])
    def test_an_impossible_repartition_commits_nothing(self, parallelism: int) -> None:
        store = new_store()
        store.write(parts({}))

        with pytest.raises(ConfigError, match=f"parallelism={parallelism}"):
            store.repartition(parallelism)
        assert store.versions() == [1]

    @pytest.mark.parametrize("source_position", [{0: 1}, {"at": dt.date(2026, 1, 1)}, {"range": (1, 2)}])
    def test_a_source_position_that_would_come_back_changed_is_refused(self, source_position: dict[Any, Any]) -> None:
        store = new_store()

        with pytest.raises(ConfigError, match="source_position"):
            store.write(parts({}), source_position=source_position)
        assert store.versions() == []


Failure = Callable[["Faulty", str, bytes], None]


class Faulty(MemoryFolder):
    """A folder whose storage fails at the commit, in the given way."""

    def __init__(self, folder: Folder, failure: Failure) -> None:
        super().__init__(folder.filesystem, folder.root)
        self.failure = failure
        self.silent = False

    def create(self, name: str, data: bytes) -> None:
        self.failure(self, name, data)

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        if self.silent:
            raise TimeoutError("no answer")
        return super().read(name, start, end)


def lost_reply(folder: Faulty, name: str, data: bytes) -> None:
    MemoryFolder.create(folder, name, data)
    raise ConnectionResetError("reset by peer")


def retried_by_the_client(folder: Faulty, name: str, data: bytes) -> None:
    MemoryFolder.create(folder, name, data)
    MemoryFolder.create(folder, name, data)


def lost_request(folder: Faulty, name: str, data: bytes) -> None:
    raise TimeoutError("no answer")


def gone_silent(folder: Faulty, name: str, data: bytes) -> None:
    MemoryFolder.create(folder, name, data)
    folder.silent = True
    raise TimeoutError("no answer")


def gone_silent_on_the_retry(folder: Faulty, name: str, data: bytes) -> None:
    folder.silent = True
    retried_by_the_client(folder, name, data)


def rival(data: bytes, **changes: object) -> bytes:
    made = Manifest.from_bytes(data, "ours")
    return dataclasses.replace(made, snapshot_id="of another", **changes).to_bytes()  # type: ignore[arg-type]


def overtaken(folder: Faulty, name: str, data: bytes) -> None:
    MemoryFolder.create(folder, name, rival(data))
    MemoryFolder.create(folder, name, data)


def overtaken_without_a_reply(folder: Faulty, name: str, data: bytes) -> None:
    MemoryFolder.create(folder, name, rival(data))
    raise TimeoutError("no answer")


def overtaken_by_a_newer_release(folder: Faulty, name: str, data: bytes) -> None:
    body = json.loads(data)["manifest"] | {"format_version": 99}
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(text).hexdigest().encode()
    MemoryFolder.create(folder, name, b'{"manifest":%b,"sha256":"%b"}' % (text, digest))
    MemoryFolder.create(folder, name, data)


def half_of_something_is_there(folder: Faulty, name: str, data: bytes) -> None:
    MemoryFolder.create(folder, name, data[: len(data) // 2])
    raise ConnectionResetError("reset by peer")


class TestAmbiguousOutcome:
    def commit(self, store: SnapshotStore, failure: Failure) -> Snapshot:
        healthy = store.begin()
        pending = dataclasses.replace(healthy, folder=Faulty(healthy.folder, failure))
        return pending.commit([pending.write_subtask(made) for made in parts({"count": {"a": 1}})])

    @pytest.mark.parametrize("failure", [lost_reply, retried_by_the_client])
    def test_a_commit_that_took_place_succeeds_though_the_reply_was_lost(self, failure: Failure) -> None:
        store = new_store()
        snapshot = self.commit(store, failure)

        assert store.load(1).manifest == snapshot.manifest
        assert content_of(store.load(1))["count"] == {"a": 1}

    @pytest.mark.parametrize("failure", [overtaken, overtaken_without_a_reply, overtaken_by_a_newer_release])
    def test_a_commit_that_another_won_is_a_conflict(self, failure: Failure) -> None:
        with pytest.raises(CommitConflict):
            self.commit(new_store(), failure)

    @pytest.mark.parametrize(
        "failure", [lost_request, gone_silent, gone_silent_on_the_retry, half_of_something_is_there]
    )
    def test_what_cannot_be_read_back_is_unknown_and_nothing_is_deleted(self, failure: Failure) -> None:
        store = new_store()
        with pytest.raises(CommitOutcomeUnknown) as unknown:
            self.commit(store, failure)

        assert (unknown.value.uri, unknown.value.version) == (store.uri, 1)
        assert len(open_folder(store.uri).names("data")) == 2
        if failure is gone_silent:
            assert content_of(store.load(1))["count"] == {"a": 1}


class TestRetries:
    """Of a commit, with the pauses between its attempts."""

    @pytest.fixture
    def pauses(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        pauses: list[float] = []
        monkeypatch.setattr(retry, "pause", pauses.append)
        return pauses

    def failing(self, store: SnapshotStore, operation: str, fault: Fault, times: int) -> SnapshotStore:
        """Return the store on a storage that fails at the first operations of a kind."""
        rehearsal = FaultyFolder(open_folder(new_store().uri), {})
        SnapshotStore.on(rehearsal).write(parts({}))
        first = next(n for n, asked in enumerate(rehearsal.operations) if asked.startswith(operation))
        return SnapshotStore.on(FaultyFolder(open_folder(store.uri), dict.fromkeys(range(first, first + times), fault)))

    @pytest.mark.parametrize("times", [1, 2, 3])
    def test_a_request_that_is_lost_is_sent_again(self, pauses: list[float], times: int) -> None:
        """Each attempt is followed by a look, which is lost as well."""
        store = new_store()
        self.failing(store, "create manifests", Fault.LOST_REQUEST, times).write(parts({}))

        assert store.versions() == [1]
        assert len(pauses) == times
        assert max(pauses) < 1.0

    def test_there_is_an_end_to_it(self, pauses: list[float]) -> None:
        store = new_store()
        with pytest.raises(CommitOutcomeUnknown):
            self.failing(store, "create manifests", Fault.LOST_REQUEST, 100).write(parts({}))

        assert store.versions() == []
        assert len(pauses) == retry.ATTEMPTS_MAX - 1

    def test_what_arrives_late_is_recognised(self, pauses: list[float]) -> None:
        store = new_store()
        snapshot = self.failing(store, "create manifests", Fault.LATE, 1).write(parts({}))

        assert store.load(1).manifest == snapshot.manifest
        assert len(pauses) <= 1

    @pytest.mark.parametrize("error", [PermissionError(13, "not allowed"), OSError(28, "No space left on device")])
    def test_a_refusal_is_not_tried_again_and_nothing_is_unknown(self, pauses: list[float], error: OSError) -> None:
        store = new_store()

        def refuse(folder: Faulty, name: str, data: bytes) -> None:
            raise error

        pending = dataclasses.replace(store.begin(), folder=Faulty(store.begin().folder, refuse))
        with pytest.raises(type(error)) as refused:
            pending.commit([pending.write_subtask(made) for made in parts({})])
        assert refused.value is error
        assert pauses == []

    def test_what_is_read_back_must_be_what_was_put(self) -> None:
        store = new_store()

        def corrupt(folder: Faulty, name: str, data: bytes) -> None:
            MemoryFolder.create(folder, name, data[:-1] + b"?")

        pending = dataclasses.replace(store.begin(), folder=Faulty(store.begin().folder, corrupt))
        with pytest.raises(SnapshotCorrupted, match="not what was just written"):
            pending.commit([pending.write_subtask(made) for made in parts({})])


class TestReports:
    """What workers report is looked at before it is committed."""

    def refused(self, change: Callable[[Folder, list[SubtaskHandle]], list[SubtaskHandle]], problem: str) -> None:
        store = new_store()
        pending = store.begin()
        handles = [pending.write_subtask(made) for made in parts(CONTENT, in_flight=[record("a", 0)])]
        with pytest.raises(IncompleteSnapshot, match=problem):
            pending.commit(change(pending.folder, handles))
        assert store.versions() == []

    def test_files_that_only_the_worker_sees(self) -> None:
        def lose(folder: Folder, handles: list[SubtaskHandle]) -> list[SubtaskHandle]:
            folder.delete([handles[1].files[0].path])
            return handles

        self.refused(lose, "subtask 1 wrote .* finds nothing: all workers must reach the same storage")

    def test_files_of_another_size(self) -> None:
        def truncate(folder: Folder, handles: list[SubtaskHandle]) -> list[SubtaskHandle]:
            path = handles[0].files[1].path
            folder.replace(path, folder.read(path)[:-1])
            return handles

        self.refused(truncate, "subtask 0 wrote .* finds [0-9]+ bytes")

    def test_elements_that_were_not_written(self) -> None:
        def forget(folder: Folder, handles: list[SubtaskHandle]) -> list[SubtaskHandle]:
            return [dataclasses.replace(handle, in_flight_count=handle.in_flight_count + 1) for handle in handles]

        self.refused(forget, r"subtask 0 had \d elements in flight and wrote \d")

    def test_a_file_that_is_named_twice(self) -> None:
        def double(folder: Folder, handles: list[SubtaskHandle]) -> list[SubtaskHandle]:
            return [dataclasses.replace(handle, files=handle.files + handle.files[:1]) for handle in handles]

        self.refused(double, "name the same file")

    def test_a_file_of_other_key_groups(self) -> None:
        def move(folder: Folder, handles: list[SubtaskHandle]) -> list[SubtaskHandle]:
            return [dataclasses.replace(handles[0], files=handles[1].files), handles[1]]

        def swap(folder: Folder, handles: list[SubtaskHandle]) -> list[SubtaskHandle]:
            first, second = ([file for file in handle.files if file.kind == "keyed"] for handle in handles)
            others = [[file for file in handle.files if file.kind != "keyed"] for handle in handles]
            return [
                dataclasses.replace(handles[0], files=(*second, *others[0])),
                dataclasses.replace(handles[1], files=(*first, *others[1])),
            ]

        self.refused(move, "name the same file")
        self.refused(swap, "key groups of another")

    def test_key_groups_without_a_base_file(self) -> None:
        def narrow(folder: Folder, handles: list[SubtaskHandle]) -> list[SubtaskHandle]:
            files = tuple(dataclasses.replace(file, key_groups=KeyGroupRange(0, 1)) for file in handles[0].files)
            return [dataclasses.replace(handles[0], files=files), handles[1]]

        self.refused(narrow, "do not hold each key group exactly once")


def arrow_of(keys: list[Any], values: list[Any], descriptor: ValueState = COUNT, parallelism: int = 2) -> pa.Table:
    content = {descriptor.name: dict(zip(keys, values, strict=True))}
    return new_store().write(parts(content, [descriptor], parallelism)).to_arrow(descriptor.name)


class TestToArrow:
    @pytest.mark.parametrize(
        ("keys", "kind"),
        [
            ([1, -(2**63), 2**63 - 1], pa.int64()),
            ([1.5, float("inf"), -2.0], pa.float64()),
            (["a", "", "ä"], pa.string()),
            ([b"a", b"", b"\xff"], pa.binary()),
        ],
        ids=lambda value: str(value) if isinstance(value, pa.DataType) else None,
    )
    @pytest.mark.parametrize("parallelism", [1, 2, G])
    def test_keys_of_one_kind_are_a_column_of_that_kind(
        self, keys: list[Any], kind: pa.DataType, parallelism: int
    ) -> None:
        table = arrow_of(keys, [1, 2, 3], parallelism=parallelism)

        assert table.schema.names == ["key_group", "key", "value"]
        assert table.schema.types == [pa.int32(), kind, pa.int64()]
        assert dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == dict(
            zip(keys, [1, 2, 3], strict=True)
        )
        assert table["key_group"].to_pylist() == [key_group_of(key, G) for key in table["key"].to_pylist()]

    @pytest.mark.parametrize(
        "keys",
        [
            [1, "a", b"b", 2.5],
            [True, False],
            [("user", 1), ("user", 2)],
            [dt.date(2026, 1, 1), dt.datetime(2026, 1, 1)],
            [2, "two", 4, "four", 8, "eight"],
        ],
        ids=["all kinds", "bool", "tuple", "date", "two kinds"],
    )
    @pytest.mark.parametrize("parallelism", [1, 2, G])
    def test_other_keys_are_msgpack_whatever_each_subtask_has(self, keys: list[Any], parallelism: int) -> None:
        """At a parallelism of G each file has keys of one kind, and together they have not."""
        values = list(range(len(keys)))
        table = arrow_of(keys, values, parallelism=parallelism)

        assert table.schema.field("key").type == pa.binary()
        found = {
            unpack(key): value for key, value in zip(*(table[n].to_pylist() for n in ("key", "value")), strict=True)
        }
        assert found == dict(zip(keys, values, strict=True))
        assert set(map(type, found)) == set(map(type, keys))

    def test_keys_come_back_with_their_types_after_another_snapshot(self) -> None:
        """The second snapshot adds keys of another kind to files that had one kind only."""
        store = new_store()
        first = store.write(parts({"count": {1: 1, 2: 2}, "profile": {}}))
        backends = [restored(first, subtask) for subtask in range(2)]
        for key in ("a", b"b"):
            group = key_group_of(key, G)
            backends[group * 2 // G].tables["count"].put(group, key, 3)
        second = store.write([part(backend, subtask, 2) for subtask, backend in enumerate(backends)])

        assert content_of(second)["count"] == {1: 1, 2: 2, "a": 3, b"b": 3}

    @pytest.mark.parametrize(
        ("type_", "value"),
        [
            (pa.int8(), -1),
            (pa.uint64(), 2**64 - 1),
            (pa.float32(), 1.5),
            (pa.float64(), 0.1),
            (pa.bool_(), True),
            (pa.string(), "ä"),
            (pa.large_string(), "ä"),
            (pa.binary(), b"\x00"),
            (pa.binary(2), b"ab"),
            (pa.date32(), dt.date(2026, 1, 2)),
            (pa.date64(), dt.date(2026, 1, 2)),
            (pa.time32("s"), dt.time(1, 2, 3)),
            (pa.time64("us"), dt.time(1, 2, 3, 4)),
            (pa.timestamp("s"), dt.datetime(2026, 1, 2, 3, 4, 5)),
            (pa.timestamp("ms", "UTC"), dt.datetime(2026, 1, 2, 3, 4, 5, 6000, dt.UTC)),
            (pa.timestamp("us"), dt.datetime(2026, 1, 2, 3, 4, 5, 6)),
            (pa.duration("s"), dt.timedelta(seconds=5)),
            (pa.decimal128(10, 2), Decimal("1.20")),
            (pa.list_(pa.timestamp("s")), [dt.datetime(2026, 1, 2), None]),
            (pa.list_(pa.int64(), 2), [1, 2]),
            (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]), {"a": 1, "b": ["x"]}),
            (pa.map_(pa.string(), pa.int64()), {"a": 1}),
            (pa.dictionary(pa.int32(), pa.string()), "a"),
        ],
        ids=lambda value: str(value) if isinstance(value, pa.DataType) else None,
    )
    def test_values_have_the_declared_type_here_and_in_later_snapshots(self, type_: pa.DataType, value: object) -> None:
        state = ValueState("typed", type_)
        content: dict[str, dict[Any, object]] = {"typed": {"a": value, "b": None}}
        store = new_store()
        snapshot = store.write(parts(content, [state]))
        for _ in range(2):
            table = snapshot.to_arrow("typed")
            assert table.schema.field("value").type == type_
            assert dict(zip(table["key"].to_pylist(), values_of(table["value"]), strict=True)) == content["typed"]
            assert content_of(snapshot, 3, [state]) == content
            assert store.verify().ok
            snapshot = store.write([part(restored(snapshot, n, 3, [state]), n, 3) for n in range(3)])

    def test_values_of_an_undeclared_type_are_msgpack_and_say_so(self) -> None:
        table = arrow_of(["a", "b"], [{"x": (1,)}, None], PROFILE)

        field = table.schema.field("value")
        assert (field.type, field.metadata) == (pa.binary(), {b"keygroups.encoding": b"msgpack"})
        assert {
            key: unpack(value) for key, value in zip(*(table[n].to_pylist() for n in ("key", "value")), strict=True)
        } == {
            "a": {"x": (1,)},
            "b": None,
        }

    @pytest.mark.parametrize(("descriptor", "type_"), [(COUNT, pa.int64()), (PROFILE, pa.binary())])
    def test_an_empty_state_has_its_columns_and_types(self, descriptor: ValueState, type_: pa.DataType) -> None:
        table = arrow_of([], [], descriptor)

        assert table.num_rows == 0
        assert table.schema.names == ["key_group", "key", "value"]
        assert table.schema.field("value").type == type_
        assert (table.schema.field("value").metadata or {}) == (
            {} if descriptor is COUNT else {b"keygroups.encoding": b"msgpack"}
        )

    def test_a_state_that_is_not_there_is_refused_with_those_that_are(self) -> None:
        with pytest.raises(ConfigError, match=r"state_name='other'.*\['count', 'profile'\]"):
            new_store().write(parts({})).to_arrow("other")

    def test_rows_are_sorted_by_key_group_within_each_file(self) -> None:
        groups = arrow_of(words(200), list(range(200)), parallelism=3)["key_group"].to_pylist()

        assert groups == sorted(groups)

    @pytest.mark.parametrize(
        ("type_", "value", "type_name"),
        [
            (None, {"deep": [object()]}, "object"),
            (pa.int64(), "text", "str that does not fit int64"),
            (pa.int64(), 2**70, "int that does not fit int64"),
            (pa.int64(), True, "bool that does not fit int64"),
            (pa.int64(), 1.5, "float that does not fit int64"),
            (pa.int64(), Decimal("1.5"), "Decimal that does not fit int64"),
            (pa.float64(), 2**60 + 1, "int that does not fit double"),
            (pa.float32(), 1e300, "float that does not fit float"),
            (pa.string(), b"bytes", "bytes that does not fit string"),
            (pa.binary(), "text", "str that does not fit binary"),
            (pa.date32(), dt.datetime(2026, 1, 2, 3), "datetime that does not fit date32"),
            (pa.timestamp("ms"), dt.datetime(2026, 1, 2, 3, 4, 5, 6), r"datetime that does not fit timestamp[ms]"),
            (pa.timestamp("us"), dt.datetime(2026, 1, 2, tzinfo=dt.UTC), r"datetime that does not fit timestamp[us]"),
            (pa.timestamp("us", "UTC"), dt.datetime(2026, 1, 2), "datetime that does not fit timestamp[us, tz=UTC]"),
            (pa.time32("s"), dt.time(1, 2, 3, 4), "time that does not fit time32"),
            (pa.duration("s"), dt.timedelta(microseconds=1), "timedelta that does not fit duration"),
            (pa.decimal128(10, 1), Decimal("1.25"), "Decimal that does not fit decimal128"),
            (pa.list_(pa.int64()), [1, 1.5], "list that does not fit list"),
            (pa.list_(pa.int64()), (1, 1.5), "tuple that does not fit list"),
            (pa.list_(pa.int64()), np.array([1.0, 2.5]), "ndarray that does not fit list"),
            (pa.list_(pa.float32()), np.array([1.0, 1e300]), "ndarray that does not fit list"),
            (pa.list_(pa.float32()), [1.0, 1e300], "list that does not fit list"),
            (pa.struct([("a", pa.int64())]), {"a": "x"}, "dict that does not fit struct"),
            (pa.struct([("a", pa.int64())]), {"a": 1, "b": 2}, "dict that does not fit struct"),
            (pa.struct([("a", pa.int64())]), {}, "dict that does not fit struct"),
            (pa.map_(pa.string(), pa.int64()), {"a": 1.5}, "dict that does not fit map"),
            (pa.map_(pa.string(), pa.int64()), [("a", 1), ("a", 2)], "list that does not fit map"),
        ],
        ids=lambda value: str(value) if isinstance(value, pa.DataType) else repr(value)[:20],
    )
    def test_a_value_that_would_not_come_back_is_named_with_its_state_and_nothing_is_committed(
        self, type_: pa.DataType | None, value: object, type_name: str
    ) -> None:
        store = new_store()
        state = ValueState("profile", type_)
        content: dict[str, dict[Any, object]] = {"profile": {"good": None, "bad": value, "good too": None}}

        with pytest.raises(UnstorableValue) as refused:
            store.write(parts(content, [state]))
        assert refused.value.where == "state 'profile' of key 'bad'"
        assert refused.value.type_name.startswith(type_name)
        assert store.versions() == []

    @pytest.mark.parametrize(
        ("type_", "value", "found"),
        [
            (pa.float32(), 0.1, 0.10000000149011612),
            (pa.list_(pa.float32()), [0.1, None], [0.10000000149011612, None]),
            (pa.float64(), 7, 7.0),
            (pa.float64(), np.float64(0.1), 0.1),
            (pa.int64(), np.int32(7), 7),
            (pa.float64(), float("-inf"), float("-inf")),
            (pa.float32(), float("-inf"), float("-inf")),
            (pa.list_(pa.int64()), (1, None, 2), [1, None, 2]),
            (pa.list_(pa.float64()), np.array([1.0, 2.5]), [1.0, 2.5]),
            (pa.list_(pa.float32()), np.array([1.5, 0.1]), [1.5, 0.10000000149011612]),
            (pa.list_(pa.int64()), np.array([1.0, 2.0]), [1, 2]),
            (pa.list_(pa.float32(), 2), np.array([1.5, 2.5], np.float32), [1.5, 2.5]),
            (pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", 2)], {"a": 1, "b": 2}),
            (pa.struct([("a", pa.list_(pa.int8()))]), {"a": (1, 2)}, {"a": [1, 2]}),
        ],
        ids=lambda value: str(value) if isinstance(value, pa.DataType) else repr(value)[:20],
    )
    def test_what_the_declared_type_asks_for_is_no_loss(self, type_: pa.DataType, value: object, found: object) -> None:
        state = ValueState("profile", type_)
        snapshot = new_store().write(parts({"profile": {"a": value}}, [state]))

        assert content_of(snapshot, descriptors=[state]) == {"profile": {"a": found}}

    def test_not_a_number_is_a_number(self) -> None:
        state = ValueState("profile", pa.list_(pa.float64()))
        snapshot = new_store().write(parts({"profile": {"a": [float("nan"), 1.0]}}, [state]))
        (value,) = content_of(snapshot, descriptors=[state])["profile"].values()

        assert repr(value) == "[nan, 1.0]"

    @pytest.mark.parametrize("fold", [0, 1])
    def test_a_time_in_the_hour_that_a_clock_repeats_is_kept(self, fold: int) -> None:
        """Python says that it equals no time of another zone."""
        berlin = dt.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=fold)
        state = ValueState("profile", pa.timestamp("us", "UTC"))
        snapshot = new_store().write(parts({"profile": {"a": berlin}}, [state]))

        assert content_of(snapshot, descriptors=[state])["profile"] == {"a": berlin.astimezone(dt.UTC)}

    def test_an_unstorable_key_is_named_with_its_state(self) -> None:
        backend = MemoryBackend([COUNT], KeyGroupRange(0, G - 1))
        backend.tables["count"].put(3, frozenset({1j}), 1)

        with pytest.raises(UnstorableValue, match="a key of state 'count' holds a complex"):
            new_store().write([part(backend, 0, 1)])


class TestRowGroups:
    def test_a_restore_reads_only_the_row_groups_of_its_range(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The rest may even be damaged."""
        monkeypatch.setattr(files, "ROW_GROUP_ROWS_MIN", 1)
        snapshot = new_store().write(parts(CONTENT, parallelism=1))
        (file,) = snapshot.manifest.files_of("keyed", state="count")
        whole = snapshot.folder.read(file.path)
        read = [load_all(snapshot, subtask) for subtask in range(4)]
        starts = first_bytes_of_key_groups(snapshot, whole)
        for subtask in range(4):
            own = range_of(subtask, 4, G)
            damaged = bytearray(whole)
            for key_group, (start, end) in starts.items():
                if key_group not in own:
                    damaged[start:end] = bytes(end - start)
            snapshot.folder.filesystem.pipe_file(snapshot.folder.path(file.path), bytes(damaged))

            assert load_all(snapshot, subtask) == read[subtask]
            with pytest.raises(SnapshotCorrupted):
                load_all(snapshot, (subtask + 1) % 4)

    def test_small_key_groups_share_a_row_group(self) -> None:
        snapshot = new_store().write(parts(CONTENT, parallelism=1))

        assert len(set(first_bytes_of_key_groups(snapshot).values())) == 1


def load_all(snapshot: Snapshot, subtask: int) -> dict[Any, object]:
    groups = snapshot.restore(subtask, 4).states([COUNT, PROFILE])["count"]
    return {key: value for group in groups.values() for key, value in group.load().items()}


def first_bytes_of_key_groups(snapshot: Snapshot, data: bytes | None = None) -> dict[int, tuple[int, int]]:
    """Return where the row group of each key group begins and ends."""
    (file,) = snapshot.manifest.files_of("keyed", state="count")
    metadata = pq.read_metadata(pa.BufferReader(data or snapshot.folder.read(file.path)))
    spans: dict[int, tuple[int, int]] = {}
    for number in range(metadata.num_row_groups):
        row_group = metadata.row_group(number)
        statistics = row_group.column(0).statistics
        chunks = [row_group.column(column) for column in range(row_group.num_columns)]
        start = min(chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks)
        end = start + sum(chunk.total_compressed_size for chunk in chunks)
        spans |= dict.fromkeys(range(statistics.min, statistics.max + 1), (start, end))
    return spans
