"""The restore: what was written comes back, at every parallelism and in other processes."""

from __future__ import annotations

import itertools
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from keygroups import ConfigError, ValueState, key_group_of, range_of
from snapshots import IncompatibleSnapshot, SnapshotStore
from snapshots.testing import restless_threads
from tests.quick import few_are_quick
from tests.snapshot_kit import COUNT, PROFILE, G, content_of, new_store, part, parts, record, restored
from tests.snapshots.snapshot_content import CONTENT, position


class TestWriteAndRestore:
    @pytest.mark.parametrize(("old", "new"), few_are_quick(itertools.product([1, 2, 7, G], [1, 2, 3, 5, G])))
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
