"""The delta: when a snapshot is one, what it holds, and what folds it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from keygroups import KeyGroupRange, MapState, key_group_of, range_of
from keygroups.state import Transaction
from snapshots import IncompleteSnapshot
from snapshots.commit import part_writer
from snapshots.format.columns import RowEncoder
from tests.backends import new_backend
from tests.snapshot_kit import COUNT, PROFILE, G, content_of, new_store, part, parts, restored
from tests.snapshots.increments import CONTENT, KEYS, Run, cut, kinds, put

pytestmark = pytest.mark.usefixtures("each_backend")


class TestWhen:
    def test_what_changed_since_the_restore_is_a_delta_on_the_files_of_the_parent(self) -> None:
        run = Run()
        run.change("key 1", -1)
        run.change("new", -2)
        run.remove("key 2")
        run.remove("never there")
        snapshot = run.write()

        assert kinds(snapshot) == [("keyed", 1), ("delta", 2)]
        (delta,) = snapshot.manifest.files_of("delta")
        assert (delta.rows, delta.parent_id) == (4, run.first.manifest.snapshot_id)
        assert snapshot.manifest.required_features == ("delta",)
        assert content_of(run.first) == CONTENT

    def test_what_did_not_change_costs_nothing(self) -> None:
        run = Run()
        snapshot = run.write()

        assert snapshot.manifest.files == run.first.manifest.files

    def test_each_cut_is_relative_to_the_one_before(self) -> None:
        run = Run()
        for version in range(2, 6):
            run.change("key 1", -version)
            snapshot = run.write()

        assert kinds(snapshot) == [("keyed", 1), ("delta", 2), ("delta", 3), ("delta", 4), ("delta", 5)]
        assert [file.rows for file in snapshot.manifest.files_of("delta")] == [1, 1, 1, 1]

    def test_the_ninth_delta_folds_those_before_it(self) -> None:
        run = Run()
        for number in range(part_writer.DELTAS_MAX):
            run.change(f"key {number}", -1)
            run.remove(f"key {100 + number}")
            run.write()
        run.change("key 0", -2)
        run.change("key 100", -2)
        snapshot = run.write()

        assert kinds(snapshot) == [("keyed", 1), ("delta", part_writer.DELTAS_MAX + 2)]
        (delta,) = snapshot.manifest.files_of("delta")
        assert (delta.rows, delta.folds) == (2 * part_writer.DELTAS_MAX, True)

    def test_half_of_the_rows_are_a_whole_snapshot(self) -> None:
        run = Run()
        for key in KEYS[:100]:
            run.change(key, -1)
        assert kinds(run.write()) == [("keyed", 1), ("delta", 2)]
        run.change("key 0", -2)

        assert kinds(run.write()) == [("keyed", 3)]

    def test_few_changes_in_many_key_groups_are_encoded_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run, pieces = Run(), list[int]()
        table = RowEncoder._table

        def counted(encoder: RowEncoder, key_groups: pa.Array, *others: Any) -> pa.Table:
            pieces.append(len(set(key_groups.to_pylist())))
            return table(encoder, key_groups, *others)

        monkeypatch.setattr(RowEncoder, "_table", counted)
        for key in KEYS[:80]:
            run.change(key, -1)
        snapshot = run.write()

        (delta,) = snapshot.manifest.files_of("delta")
        assert delta.rows == 80
        assert pieces == [len({key_group_of(key, G) for key in KEYS[:80]})]
        assert content_of(snapshot) == CONTENT | {"count": CONTENT["count"] | dict.fromkeys(KEYS[:80], -1)}

    def test_the_first_cut_of_a_new_operator_is_whole_and_the_second_a_delta(self) -> None:
        store = new_store()
        backends = [new_backend([COUNT, PROFILE], range_of(n, 2, G)) for n in range(2)]
        for key in KEYS:
            put(backends, key, 1)
        assert kinds(store.write(cut(backends))) == [("keyed", 1)]
        put(backends, "key 1", 2)
        put(backends, "key 2", 2)
        put(backends, "key 3", 2)

        assert {file.kind for file in store.write(cut(backends)).manifest.files} == {"keyed", "delta"}

    def test_a_cut_that_was_lost_makes_the_next_one_whole_and_the_one_after_a_delta(self) -> None:
        run = Run()
        run.change("key 1", -1)
        cut(run.backends)
        run.change("key 2", -1)
        assert kinds(run.write()) == [("keyed", 2)]
        run.change("key 3", -1)

        assert kinds(run.write()) == [("keyed", 2), ("delta", 3)]

    def test_a_second_store_gets_deltas_as_long_as_it_gets_every_cut(self) -> None:
        run, other = Run(), new_store()
        for expected in (["keyed"], ["keyed", "delta"]):
            run.change("key 1", len(expected))
            made = cut(run.backends)
            run.store.write(made)
            assert [kind for kind, _ in kinds(other.write(made))] == expected
        run.change("key 2", -1)
        run.write()
        run.change("key 3", -1)

        assert kinds(run.write(other)) == [("keyed", 3)]

    def test_on_top_of_a_newer_snapshot_than_was_restored_it_is_whole(self) -> None:
        run = Run()
        run.store.write(parts({"count": {"other": 1}}, parallelism=1))
        run.change("key 1", -1)

        assert kinds(run.write()) == [("keyed", 3)]

    def test_a_rescale_narrows_files_and_deltas_continue(self) -> None:
        run = Run(parallelism=2)
        run.store.repartition(3)
        latest = run.store.latest()
        assert latest is not None
        run.backends = [restored(latest, n, 3) for n in range(3)]
        run.change("key 1", -1)
        assert {file.kind for file in run.write().manifest.files_of("keyed", "delta")} == {"keyed", "delta"}
        owned = range_of(1, 3, G)
        for key in KEYS:
            if key_group_of(key, G) in owned:
                run.change(key, -2)
        manifest = run.write().manifest

        bases = manifest.files_of("keyed", state="count")
        assert sorted((file.key_groups.start, file.key_groups.end) for file in bases) == [(0, 5), (6, 10), (11, 15)]
        assert all(file.file_key_groups != file.key_groups for file in bases if file.version == 1)

    def test_a_repartition_or_compaction_in_between_keeps_deltas_right(self) -> None:
        run = Run()
        run.change("key 1", -1)
        run.write()
        assert run.store.compact().version == 3
        run.change("key 2", -1)
        assert kinds(run.write()) == [("keyed", 3), ("delta", 4)]
        run.store.repartition(1)
        run.change("key 3", -1)

        assert kinds(run.write()) == [("keyed", 3), ("delta", 4), ("delta", 6)]

    def test_parts_that_were_written_on_another_parent_are_refused(self) -> None:
        run = Run()
        run.change("key 1", -1)
        pending = run.store.begin()
        handles = [pending.write_subtask(made) for made in cut(run.backends)]
        run.store.write(parts(CONTENT, parallelism=1))

        with pytest.raises(IncompleteSnapshot, match="on top of another snapshot"):
            run.store.begin().commit(handles)

    def test_a_state_that_is_not_declared_any_more_leaves_nothing(self) -> None:
        run = Run()
        snapshot = run.store.write([part(new_backend([PROFILE], KeyGroupRange(0, G - 1)), 0, 1)])

        assert {file.state for file in snapshot.manifest.files} == {"profile"}

    def test_too_many_removals_to_note_are_a_whole_snapshot(self) -> None:
        run = Run()
        for number in range(20_000):
            run.change(f"passing {number}", 1)
            run.remove(f"passing {number}")

        assert kinds(run.write()) == [("keyed", 2)]


class TestCompaction:
    def test_it_folds_deltas_and_narrowed_files_and_keeps_all_else(self) -> None:
        run = Run(parallelism=2)
        run.change("key 1", -1)
        before = run.store.write(cut(run.backends), source_position={"at": 1})
        after = run.store.compact()

        assert (after.version, after.source_position) == (3, {"at": 1})
        assert after.manifest.channels == before.manifest.channels
        assert {file.kind for file in after.manifest.files} == {"keyed"}
        assert after.manifest.required_features == ()
        assert content_of(after)["count"] == run.expected
        assert run.store.compact().version == 3

    def test_files_that_need_no_folding_stay(self) -> None:
        run = Run(parallelism=2)
        run.change("key 1", -1)
        before = run.write().manifest
        after = run.store.compact().manifest

        kept = set(before.files) & set(after.files)
        assert len(kept) == 3
        assert len(set(after.files) - kept) == 1


def test_a_map_with_negative_keys_that_is_gone_is_deleted_by_a_delta() -> None:
    places = MapState("places", pa.map_(pa.int64(), pa.int64()))
    backend = new_backend([places], KeyGroupRange(0, G - 1))
    store = new_store()
    for key in ("a", "b", "c"):
        invocation = Transaction(backend, key, key_group_of(key, G))
        invocation.state(places).put(-5, 1)
        invocation.commit()
    store.write([part(backend, 0, 1)])

    invocation = Transaction(backend, "a", key_group_of("a", G))
    invocation.state(places).remove(-5)
    invocation.commit()
    after = store.write([part(backend, 0, 1)])

    assert after.manifest.files_of("delta")
    assert sorted(content_of(after, descriptors=[places])["places"]) == ["b", "c"]
