"""When a snapshot is a delta, what it holds, and what reading it costs."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from keygroups import KeyGroupRange, ValueState, key_group_of, range_of, subtask_of
from keygroups.state import MISSING, KeyedStateBackend, LazyGroup, identity_of
from snapshots import (
    IncompatibleSnapshot,
    IncompleteSnapshot,
    OperatorStateCut,
    Snapshot,
    SnapshotCorrupted,
    SnapshotStore,
    SubtaskSnapshot,
    files,
    writer,
)
from snapshots.filesystem import MemoryFolder
from snapshots.layers import carry_over, layers_of, spans
from snapshots.manifest import DataFile, Manifest, manifest_name
from snapshots.schemas import state_info, widens
from tests.backends import new_backend
from tests.snapshot_kit import COUNT, PROFILE, G, content_of, new_store, part, parts, record, restored, words

pytestmark = pytest.mark.usefixtures("each_backend")

KEYS = words(200)
CONTENT: dict[str, dict[Any, object]] = {"count": {key: n for n, key in enumerate(KEYS)}, "profile": {}}


def kinds(snapshot: Snapshot, state: str = "count") -> list[tuple[str, int]]:
    """Return kind and version of a state's files, of subtask 0."""
    return [(f.kind, f.version) for f in snapshot.manifest.files if f.state == state and f.subtask == 0]


def put(backends: list[KeyedStateBackend], key: Any, value: object, state: str = "count") -> None:
    key_group = key_group_of(key, G)
    backends[subtask_of(key_group, len(backends), G)].tables[state].put(key_group, identity_of(key), value)


def cut(backends: list[KeyedStateBackend]) -> list[SubtaskSnapshot]:
    return [part(backend, n, len(backends)) for n, backend in enumerate(backends)]


class Run:
    """An operator with one subtask that has been restored from its first snapshot."""

    def __init__(self, parallelism: int = 1) -> None:
        self.store = new_store()
        self.first = self.store.write(parts(CONTENT, parallelism=parallelism))
        self.backends = [restored(self.first, n, parallelism) for n in range(parallelism)]
        self.expected = dict(CONTENT["count"])

    def change(self, key: str, value: object) -> None:
        put(self.backends, key, value)
        self.expected[key] = value

    def remove(self, key: str) -> None:
        put(self.backends, key, MISSING)
        self.expected.pop(key, None)

    def write(self, store: SnapshotStore | None = None) -> Snapshot:
        snapshot = (store or self.store).write(cut(self.backends))
        assert content_of(snapshot)["count"] == self.expected
        assert (store or self.store).verify().ok
        return snapshot


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
        for number in range(writer.DELTAS_MAX):
            run.change(f"key {number}", -1)
            run.remove(f"key {100 + number}")
            run.write()
        run.change("key 0", -2)
        run.change("key 100", -2)
        snapshot = run.write()

        assert kinds(snapshot) == [("keyed", 1), ("delta", writer.DELTAS_MAX + 2)]
        (delta,) = snapshot.manifest.files_of("delta")
        assert (delta.rows, delta.folds) == (2 * writer.DELTAS_MAX, True)

    def test_half_of_the_rows_are_a_whole_snapshot(self) -> None:
        run = Run()
        for key in KEYS[:100]:
            run.change(key, -1)
        assert kinds(run.write()) == [("keyed", 1), ("delta", 2)]
        run.change("key 0", -2)

        assert kinds(run.write()) == [("keyed", 3)]

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

    def test_a_rescale_narrows_files_and_deltas_go_on(self) -> None:
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


class TestSplitting:
    def test_a_large_state_is_several_files_of_neighbouring_ranges(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "FILE_BYTES", 1000)
        monkeypatch.setattr(files, "ROW_GROUP_ROWS_MIN", 1)
        snapshot = new_store().write(parts(CONTENT, parallelism=1))

        ranges = [file.key_groups for file in snapshot.manifest.files_of("keyed", state="count")]
        assert len(ranges) > 3
        assert [key_group for key_groups in ranges for key_group in key_groups] == list(range(G))
        assert content_of(snapshot, 3) == CONTENT

    def test_a_large_key_group_is_several_row_groups(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "ROW_GROUP_BYTES", 100)
        monkeypatch.setattr("snapshots.columns.PIECE_ROWS_MAX", 3)
        snapshot = new_store().write(parts(CONTENT, parallelism=1))

        assert content_of(snapshot, 5) == CONTENT


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bytes of each request for data files."""
    made: list[int] = []
    original = MemoryFolder.read

    def counting(self: MemoryFolder, name: str, start: int | None = None, end: int | None = None) -> bytes:
        data = original(self, name, start, end)
        if name.startswith("data/"):
            made.append(len(data))
        return data

    monkeypatch.setattr(MemoryFolder, "read", counting)
    monkeypatch.setattr(MemoryFolder, "open", None)
    return made


class TestReading:
    def large(self, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
        monkeypatch.setattr(files, "ROW_GROUP_ROWS_MIN", 1)
        content: dict[str, dict[Any, object]] = {"count": {f"{n:0100}": n for n in range(20_000)}, "profile": {}}
        return new_store().write(parts(content, parallelism=1))

    def test_nothing_is_read_before_the_first_touch_which_reads_its_row_group(
        self, reads: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        snapshot = self.large(monkeypatch)
        (file,) = snapshot.manifest.files_of("keyed", state="count")
        backend = restored(snapshot, 1, 4)
        assert reads == []

        backend.tables["count"].get(5, "key")
        assert len(reads) == 2, "the footer and a row group"
        assert sum(reads) - file.footer_bytes < 1.1 * file.bytes / G
        backend.tables["count"].get(5, "another")
        assert len(reads) == 2

    @pytest.mark.parametrize("parallelism", [2, 4, 8])
    def test_a_share_of_the_key_groups_costs_that_share(
        self, parallelism: int, reads: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        snapshot = self.large(monkeypatch)
        (file,) = snapshot.manifest.files_of("keyed", state="count")
        for group in snapshot.restore(1, parallelism).states([COUNT, PROFILE])["count"].values():
            group.load()

        assert sum(reads) - file.footer_bytes < 1.1 * file.bytes / parallelism
        assert len(reads) == 1 + G // parallelism

    def test_a_restore_carries_only_what_its_range_needs(self) -> None:
        def size(parallelism: int) -> int:
            snapshot = new_store().write(parts(CONTENT, parallelism=parallelism))
            return max(len(pickle.dumps(snapshot.restore(n))) for n in range(parallelism))

        assert size(16) < 1.1 * size(2)

    def test_elements_without_a_key_are_read_by_those_who_get_them(self, reads: list[int]) -> None:
        elements = [record(None, n, channel) for channel in range(8) for n in range(10)]
        snapshot = new_store().write(parts({}, parallelism=8, in_flight=elements))
        found = []
        for subtask in range(8):
            reads.clear()
            found += [element.element_id for element in snapshot.restore(subtask).queue().elements]
            assert len(reads) == 2, "a footer and a row group of one file"
        assert found == [element.element_id for element in elements]

    def test_key_groups_are_loaded_by_another_thread_and_installed_by_the_owner(self) -> None:
        run = Run()
        table = run.backends[0].tables["count"]
        assert set(table.unloaded()) == set(range(G))
        run.change("key 1", -1)
        waiting: dict[int, LazyGroup] = dict(table.unloaded())
        assert len(waiting) == G - 1
        late = key_group_of("key 2", G)
        content = {key_group: group.load() for key_group, group in waiting.items()}
        run.change("key 2", -2)
        for key_group, group in content.items():
            table.install(key_group, group)

        assert table.unloaded() == {}
        assert table.get(late, "key 2") == -2
        assert [kind for kind, _ in kinds(run.write())] == ["keyed", "delta"]


class TestTypedKeys:
    SAME: tuple[Any, ...] = (1, 1.0, True, (1, "a"), (1.0, "a"), (True, "a"))

    def test_keys_that_are_equal_in_python_stay_apart_in_one_key_group(self) -> None:
        backend = new_backend([COUNT], KeyGroupRange(0, G - 1))
        for number, key in enumerate(self.SAME):
            backend.tables["count"].put(3, identity_of(key), number)
        store = new_store()
        store.write([part(backend, 0, 1)])
        backend.tables["count"].put(3, identity_of(True), 10)
        backend.tables["count"].put(3, identity_of(1.0), MISSING)
        snapshot = store.write([part(backend, 0, 1)])
        found = snapshot.restore(0).states([COUNT])["count"][3].load()

        expected = dict(zip(map(identity_of, self.SAME), range(6), strict=True)) | {identity_of(True): 10}
        del expected[identity_of(1.0)]
        assert found == expected
        assert len(found) == 5

    def test_the_same_key_has_one_identity(self) -> None:
        moment = dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)
        other = moment.astimezone(dt.timezone(dt.timedelta(hours=5)))
        same: list[tuple[Any, Any]] = [
            (0.0, -0.0),
            (float("nan"), float("nan")),
            (1, np.int64(1)),
            (1.5, np.float64(1.5)),
            (moment, other),
            (("a", moment), ("a", other)),
        ]
        for one, two in same:
            assert {identity_of(one): 1}[identity_of(two)] == 1
        assert len({identity_of(key) for key in self.SAME}) == len(self.SAME)


def evolved(old: pa.DataType, new: pa.DataType, value: Any) -> Any:
    store = new_store()
    snapshot = store.write(parts({"typed": {"a": value}}, [ValueState("typed", old)]))
    after = [ValueState("typed", new)]
    backends = [restored(snapshot, n, 2, after) for n in range(2)]
    put(backends, "b", None, "typed")
    second = store.write(cut(backends))
    assert second.to_arrow("typed").schema.field("value").type == new
    content = content_of(snapshot, descriptors=after)["typed"]
    assert content_of(second, descriptors=after)["typed"] == content | {"b": None}
    return content["a"]


class TestEvolution:
    @pytest.mark.parametrize(
        ("old", "new", "value", "found"),
        [
            (pa.int32(), pa.int64(), 7, 7),
            (pa.uint8(), pa.int16(), 255, 255),
            (pa.int32(), pa.float64(), 7, 7.0),
            (pa.float32(), pa.float64(), 1.5, 1.5),
            (pa.string(), pa.large_string(), "ä", "ä"),
            (pa.list_(pa.int32()), pa.large_list(pa.int64()), [1, None], [1, None]),
            (
                pa.struct([("a", pa.int32()), ("b", pa.string())]),
                pa.struct([("c", pa.string()), ("a", pa.int64())]),
                {"a": 1, "b": "x"},
                {"c": None, "a": 1},
            ),
            (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), {"a": 1}, {"a": 1}),
        ],
        ids=str,
    )
    def test_a_wider_type_reads_what_was_written(
        self, old: pa.DataType, new: pa.DataType, value: object, found: object
    ) -> None:
        assert evolved(old, new, value) == found

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (pa.int64(), pa.int32()),
            (pa.int64(), pa.float64()),
            (pa.int32(), pa.uint64()),
            (pa.float64(), pa.float32()),
            (pa.string(), pa.binary()),
            (pa.struct([("a", pa.int32())]), pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.int8(), False)])),
            (pa.timestamp("us"), pa.timestamp("us", "UTC")),
            (pa.int64(), None),
        ],
        ids=str,
    )
    def test_any_other_type_is_refused_with_both(self, old: pa.DataType, new: pa.DataType | None) -> None:
        assert not widens(old, new)
        snapshot = new_store().write(parts({}, [ValueState("typed", old)]))
        with pytest.raises(IncompatibleSnapshot, match="state 'typed'") as refused:
            snapshot.restore(0).states([ValueState("typed", new)])
        assert str(old) in str(refused.value)

    def test_fields_keep_their_ids_and_no_id_is_given_twice(self) -> None:
        def info(names: str, before: Any = None) -> Any:
            return state_info(ValueState("s", pa.struct([(name, pa.int64()) for name in names])), before)

        first = info("ab")
        second = info("bc", first)
        third = info("abc", second)
        assert [first.field_ids[f"value.{name}"] for name in "ab"] == [5, 6]
        assert [second.field_ids[f"value.{name}"] for name in "bc"] == [6, 7]
        assert [third.field_ids[f"value.{name}"] for name in "abc"] == [8, 6, 7]
        assert info("abc", third) is third


class TestOperatorState:
    def snapshot(self, parallelism: int = 2) -> Snapshot:
        made = []
        for subtask, cuts in enumerate(parts({}, parallelism=parallelism)):
            states = (
                OperatorStateCut("offsets", "split", tuple((subtask, n) for n in range(subtask + 2))),
                OperatorStateCut("seen", "union", (subtask,)),
                OperatorStateCut("rules", "broadcast", ("rule", {"n": 1})),
                OperatorStateCut("none", "split", ()),
            )
            made.append(
                SubtaskSnapshot(
                    subtask_index=subtask,
                    parallelism=parallelism,
                    max_parallelism=G,
                    hash="xxhash64",
                    states=cuts.states,
                    operator_states=states,
                )
            )
        store = new_store()
        snapshot = store.write(made)
        assert store.verify().ok
        return snapshot

    @pytest.mark.parametrize("parallelism", [1, 2, 3, 7])
    def test_items_are_dealt_by_their_mode(self, parallelism: int) -> None:
        snapshot = self.snapshot()
        restores = [pickle.loads(pickle.dumps(snapshot.restore(n, parallelism))) for n in range(parallelism)]

        dealt = [restore.operator_state("offsets") for restore in restores]
        assert [item for share in dealt for item in share] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
        assert [restore.operator_state("seen") for restore in restores] == [[0, 1]] * parallelism
        assert [restore.operator_state("rules") for restore in restores] == [["rule", {"n": 1}]] * parallelism
        assert [restore.operator_state("none") for restore in restores] == [[]] * parallelism
        assert restores[0].operator_state("unknown") == []

    def test_only_needed_files_are_read(self, reads: list[int]) -> None:
        snapshot = self.snapshot()
        reads.clear()
        snapshot.restore(0).operator_state("offsets")

        assert len(reads) == 2


def data_file(kind: Any, version: int, start: int, end: int, **fields: Any) -> DataFile:
    return DataFile(
        kind=kind, state="s", subtask=0, version=version, key_groups=KeyGroupRange(start, end),
        file_key_groups=KeyGroupRange(start, end), path=f"data/{kind}-{version}-{start}", rows=0, bytes=0, sha256="",
        footer_bytes=0, footer_sha256="", **fields,
    )  # fmt: skip


class TestLayers:
    def test_a_new_base_in_the_middle_leaves_two_ranges_of_the_old_one(self) -> None:
        old = [data_file("keyed", 1, 0, 15), data_file("delta", 2, 4, 11)]
        left = list(carry_over(old, [data_file("keyed", 3, 5, 9)]))

        assert [(f.version, f.key_groups.start, f.key_groups.end) for f in left] == [
            (1, 0, 4), (1, 10, 15), (2, 4, 4), (2, 10, 11),
        ]  # fmt: skip

    def test_a_folded_delta_takes_the_place_of_deltas_only(self) -> None:
        old = [data_file("keyed", 1, 0, 15), data_file("delta", 2, 0, 7), data_file("delta", 3, 4, 11)]
        left = list(carry_over(old, [data_file("delta", 4, 0, 9, folds=True)]))

        assert [(f.version, f.key_groups.start, f.key_groups.end) for f in left] == [(1, 0, 15), (3, 10, 11)]

    def test_spans_are_the_runs_with_the_same_layers(self) -> None:
        stored = [data_file("keyed", 1, 0, 7), data_file("keyed", 1, 8, 15), data_file("delta", 2, 6, 9)]

        found = spans(stored, KeyGroupRange(2, 12))
        assert [(span.start, span.end, [f.version for f in layers]) for span, layers in found] == [
            (2, 5, [1]), (6, 7, [1, 2]), (8, 9, [1, 2]), (10, 12, [1]),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        "stored",
        [
            [],
            [data_file("delta", 1, 0, 3)],
            [data_file("keyed", 1, 0, 3), data_file("keyed", 2, 0, 3)],
            [data_file("delta", 1, 0, 3), data_file("keyed", 2, 0, 3)],
            [data_file("keyed", 1, 0, 3), data_file("delta", 2, 0, 3), data_file("delta", 2, 0, 3)],
        ],
        ids=["none", "no base", "two bases", "base above", "same version"],
    )
    def test_any_other_order_is_corruption(self, stored: list[DataFile]) -> None:
        with pytest.raises(ValueError, match="key group 2"):
            layers_of(stored, 2)

    def test_a_manifest_without_a_base_is_found(self) -> None:
        run = Run()
        run.change("key 1", -1)
        snapshot = run.write()
        without: Callable[[DataFile], bool] = lambda file: not (file.kind == "keyed" and file.state == "count")  # noqa: E731
        fields = {name: getattr(snapshot.manifest, name) for name in snapshot.manifest.__slots__}
        wrong = Manifest(**(fields | {"version": 3, "files": tuple(filter(without, snapshot.manifest.files))}))
        snapshot.folder.create(manifest_name(3), wrong.to_bytes())

        (problem,) = run.store.verify(3).problems
        assert "takes one keyed file" in problem.what
        with pytest.raises(SnapshotCorrupted, match="takes one keyed file"):
            run.store.load(3).restore(0).states([COUNT, PROFILE])
