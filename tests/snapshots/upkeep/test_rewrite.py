"""The rewrite: the same content under other key groups, or nothing at all."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_op import AsyncFunction, AsyncWaitOperator
from keygroups import KeyGroupRange, key_group_of, range_of
from keygroups.errors import ConfigError, UnsupportedKey
from keygroups.state import MISSING, MemoryBackend
from snapshots import CommitConflict, IncompatibleSnapshot, Snapshot, SnapshotCorrupted, SnapshotStore, SubtaskSnapshot
from snapshots.filesystem import MemoryFolder
from snapshots.format import files
from snapshots.testing import Crash, Fault, FaultyFolder
from snapshots.upkeep import buckets, rewrite
from snapshots.upkeep.rewrite_engines import engine_named
from tests.examples import scaled
from tests.quick import first_is_quick
from tests.snapshot_kit import G, content_of, new_store, words
from tests.snapshots.increments import Run
from tests.snapshots.upkeep.varied_operator import (
    AMOUNT,
    EMPTY,
    NESTED,
    PROFILE,
    STATES,
    Operator,
    check_layout,
    content,
    elements,
    operator,
    watermark,
)


@pytest.fixture
def filled() -> SnapshotStore:
    store = new_store()
    store.write(operator(5).cut(), source_position={"batch": 7})
    return store


class TestContent:
    @settings(max_examples=scaled(20))
    @given(
        seed=st.integers(0, 2**32),
        hops=st.lists(
            st.tuples(st.integers(1, 5), st.sampled_from([5, 16, 128, 1000]), st.sampled_from(["xxhash64", "flink"])),
            min_size=1,
            max_size=3,
        ),
    )
    def test_is_the_same_after_any_rewrites(self, seed: int, hops: list[tuple[int, int, str]]) -> None:
        store = new_store()
        made = operator(seed)
        before = store.write(made.cut(), source_position={"batch": 7})
        made.change(20)
        before = store.write(made.cut(), source_position={"batch": 8})
        expected, in_flight, mark = content(before), elements(before), watermark(before)
        for parallelism, max_parallelism, hash_ in hops:
            after = store.repartition(parallelism, max_parallelism=max_parallelism, hash=hash_, rewrite=True)
            assert (after.parallelism, after.max_parallelism) == (parallelism, max_parallelism)
            assert (after.manifest.hash, after.manifest.operation) == (hash_, "rewrite")
            check_layout(store, after)
            assert content(after) == content(after, 2) == expected
            assert elements(after) == elements(after, 2) == in_flight
            assert watermark(after) == mark
            assert (after.source_position, after.in_flight_count) == ({"batch": 8}, before.in_flight_count)
        assert content(before) == expected

    @pytest.mark.thorough
    def test_128_to_4096_to_1000_and_back_restores_at_any_parallelism(self, filled: SnapshotStore) -> None:
        first = filled.load(1)
        expected, in_flight = content(first), elements(first)
        for max_parallelism in (4096, 1000, 128):
            after = filled.repartition(3, max_parallelism=max_parallelism, rewrite=True)
            check_layout(filled, after)
            for parallelism in (1, 2, 7):
                assert content(after, parallelism) == expected
                assert elements(after, parallelism) == in_flight

    def test_elements_in_flight_are_cut_at_the_ranges_so_a_subtask_reads_the_files_of_its_own(
        self, filled: SnapshotStore
    ) -> None:
        before = filled.load(1)
        after = filled.repartition(4, max_parallelism=4096, rewrite=True)

        files = after.manifest.files_of("in_flight")
        assert len(files) > before.parallelism
        assert sum(file.rows for file in files) == before.in_flight_count
        for subtask in range(4):
            owned = range_of(subtask, 4, 4096)
            read = after.restore(subtask, 4).manifest.files_of("in_flight")
            assert {file.path for file in read} == {
                file.path for file in files if file.key_groups == owned or file.key_groups.start == 0
            }
        again = filled.repartition(2, max_parallelism=128, rewrite=True)
        assert elements(again) == elements(before)
        assert len(again.manifest.files_of("in_flight")) <= 2 * before.parallelism

    def test_buckets_on_disk_that_are_divided_again_hold_the_same(
        self, filled: SnapshotStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = content(filled.load(1))
        for module, name, value in (
            (buckets, "FLUSH_BYTES", 256),
            (buckets, "BUCKET_BYTES", 512),
            (buckets, "BUCKETS_MAX", 3),
            (files, "FILE_BYTES", 2000),
            (files, "ROW_GROUP_ROWS_MIN", 8),
        ):
            monkeypatch.setattr(module, name, value)

        after = filled.repartition(3, max_parallelism=4096, rewrite=True)

        check_layout(filled, after)
        assert content(after) == expected
        assert len(after.manifest.files_of("keyed")) > len(STATES)

    def test_operator_state_and_outputs_stay_as_they_are(self, filled: SnapshotStore) -> None:
        pending = filled.begin()
        outputs = pa.table({"text": ["a", "b"]})
        handles = [pending.write_subtask(part, outputs) for part in operator(6).cut()]
        before = pending.commit(handles)

        after = filled.repartition(2, max_parallelism=500, rewrite=True)

        for kind in ("operator", "output"):
            assert after.manifest.files_of(kind) == before.manifest.files_of(kind)
        items = [item for n in range(2) for item in after.restore(n).operator_state("offsets")]
        assert items == [f"partition {n}" for n in range(3)]

    def test_a_key_that_the_new_hash_does_not_take_is_named_unless_it_was_deleted(self) -> None:
        store = new_store()
        backend = MemoryBackend([PROFILE], KeyGroupRange(0, 15))
        profiles, key, others = backend.tables["profile"], b"bytes", words(100)

        def write() -> Snapshot:
            owner = {"subtask_index": 0, "parallelism": 1, "max_parallelism": 16, "hash": "xxhash64"}
            return store.write([SubtaskSnapshot(states=backend.cut(), **owner)])

        for each in (key, *others):
            profiles.put(key_group_of(each, 16), each, 1)
        for change in ("nothing", "another key"):
            write()
            with pytest.raises(UnsupportedKey, match="bytes|binary"):
                store.repartition(1, hash="flink", rewrite=True)
            profiles.put(key_group_of(others[0], 16), others[0], change)
        profiles.put(key_group_of(key, 16), key, MISSING)
        assert write().manifest.files_of("delta")

        after = store.repartition(2, hash="flink", rewrite=True)

        assert store.versions() == [1, 2, 3, 4]
        assert content_of(after, descriptors=[PROFILE])["profile"] == dict.fromkeys(others, 1) | {
            others[0]: "another key"
        }


class Sum(AsyncFunction):
    states = (AMOUNT, PROFILE, NESTED, EMPTY)

    async def async_invoke(self, value: Any, ctx: Any) -> tuple[Any]:
        amount = ctx.state(AMOUNT)
        amount.update((amount.value() or 0) + value["add"])
        return ((value["key"], amount.value()),)


def test_a_key_group_all_of_whose_keys_are_deleted_is_rewritten_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "FLUSH_BYTES", 1)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 1)
    run = Run()
    for key in [key for key in run.expected if key_group_of(key, G) == 3]:
        run.remove(key)
    assert run.write().manifest.files_of("delta", state="count")

    rewritten = run.store.repartition(1, max_parallelism=2 * G, rewrite=True)

    assert content_of(rewritten)["count"] == run.expected


@pytest.mark.parametrize("parallelism", first_is_quick([3, 1, 5]))
async def test_operators_continue_after_it_and_write_deltas_on_it(parallelism: int) -> None:
    store = new_store()
    keys = [f"key {n}" for n in range(50)]
    out: list[Any] = []
    first = AsyncWaitOperator(Sum(), out.append, key_by=lambda value: value["key"], max_parallelism=128)
    await first.open()
    for key in keys:
        await first.process({"key": key, "add": 1})
    await first.finish()
    store.write([await first.snapshot()])
    await first.close()

    after = store.repartition(parallelism, max_parallelism=4096, rewrite=True)
    out.clear()
    parts = []
    for subtask in range(parallelism):
        operator = AsyncWaitOperator(
            Sum(),
            out.append,
            key_by=lambda value: value["key"],
            parallelism=parallelism,
            subtask_index=subtask,
            max_parallelism=4096,
        )
        await operator.open(after.restore(subtask))
        for key in keys:
            if key_group_of(key, 4096) in range_of(subtask, parallelism, 4096):
                await operator.process({"key": key, "add": 10})
        await operator.finish()
        parts.append(await operator.snapshot())
        await operator.close()
    last = store.write(parts)

    assert sorted(record.value for record in out) == sorted((key, 11) for key in keys)
    assert store.verify().ok
    assert content(last)["amount"] == dict.fromkeys(keys, 11)


class TestRefusals:
    def test_what_takes_a_rewrite_says_so(self, filled: SnapshotStore) -> None:
        for change in ({"max_parallelism": 4096}, {"hash": "flink"}):
            with pytest.raises(ConfigError, match="rewrite=True"):
                filled.repartition(2, **change)  # type: ignore[arg-type]
        assert filled.repartition(2, max_parallelism=128, hash="xxhash64").manifest.operation == "repartition"

    @pytest.mark.parametrize(
        "change",
        [{"max_parallelism": 1}, {"max_parallelism": 32769}, {"hash": "md5"}, {"engine": "ray"}, {"engine": "spark"}],
    )
    def test_what_cannot_be_is_refused_before_anything_is_read(
        self, filled: SnapshotStore, change: dict[str, Any]
    ) -> None:
        with pytest.raises(ConfigError):
            filled.repartition(2, rewrite=True, **change)
        assert filled.versions() == [1]

    def test_a_writer_of_the_old_key_groups_is_refused(self, filled: SnapshotStore) -> None:
        late = operator(9)
        filled.repartition(2, max_parallelism=4096, rewrite=True)
        with pytest.raises(IncompatibleSnapshot, match="max parallelism"):
            filled.write(late.cut())

    def test_an_overtaken_writer_gets_a_conflict(self, filled: SnapshotStore) -> None:
        def overtake(done: int, total: int) -> None:
            if done == total and len(filled.versions()) == 1:
                filled.repartition(2)

        with pytest.raises(CommitConflict):
            filled.repartition(4, max_parallelism=4096, rewrite=True, progress=overtake)
        newest = filled.latest()
        assert newest is not None
        assert (newest.version, newest.max_parallelism) == (2, 128)

    @pytest.mark.parametrize("kind", ["keyed", "in_flight"])
    def test_a_damaged_file_stops_it(self, filled: SnapshotStore, kind: Any) -> None:
        snapshot = filled.load(1)
        for file in snapshot.manifest.files_of(kind):
            data = bytearray(snapshot.folder.read(file.path))
            data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
            snapshot.folder.filesystem.pipe_file(snapshot.folder.path(file.path), bytes(data))
        with pytest.raises(SnapshotCorrupted):
            filled.repartition(2, max_parallelism=4096, rewrite=True)
        assert filled.versions() == [1]


def test_progress_rises_to_the_total(filled: SnapshotStore) -> None:
    seen: list[tuple[int, int]] = []
    filled.repartition(2, max_parallelism=4096, rewrite=True, progress=lambda *said: seen.append(said))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len({total for _, total in seen}) == 1
    assert seen[-1][0] == seen[-1][1]


class TestCrashes:
    def test_at_every_operation_leaves_the_old_version_whole(self) -> None:
        store = new_store()
        made = Operator(random.Random(3), 2, 128)
        made.change(60)
        made.fill(20)
        store.write(made.cut())
        before = store.load(1)
        inner = before.folder
        expected, in_flight = content(before), elements(before)
        counting = FaultyFolder(inner, {})
        rewrite_in(SnapshotStore.on(counting), commit=False)
        for number in range(len(counting.operations)):
            fault = random.Random(number).choice([Fault.CRASH_BEFORE, Fault.CRASH_DURING])
            with pytest.raises(Crash):
                rewrite_in(SnapshotStore.on(FaultyFolder(inner, {number: fault}, number)))
            assert store.versions() == [1]
            assert store.verify().ok
        store.collect_garbage(min_age=0, dry_run=False)
        after = rewrite_in(store)
        assert after is not None
        assert (content(after), elements(after)) == (expected, in_flight)

    def test_leave_no_temporary_files_and_what_they_wrote_is_collected(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr(buckets, "FLUSH_BYTES", 256)
        store = new_store()
        store.write(operator(5).cut())
        inner = store.load(1).folder
        assert isinstance(inner, MemoryFolder)

        def interrupt(done: int, total: int) -> None:
            assert list(tmp_path.iterdir())
            if done > total * 0.8:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.repartition(2, max_parallelism=4096, rewrite=True, progress=interrupt)
        assert list(tmp_path.iterdir()) == []
        assert store.versions() == [1]
        named = {file.path for file in store.load(1).manifest.files}
        assert {info.name for info in inner.files("data")} > named
        store.collect_garbage(min_age=0, dry_run=False)
        assert {info.name for info in inner.files("data")} == named


def rewrite_in(store: SnapshotStore, *, commit: bool = True) -> Snapshot | None:
    """Rewrite, or do all of it but the commit, to see how many operations there are."""
    if commit:
        return store.repartition(3, max_parallelism=1000, rewrite=True)
    parent = store.load(1).manifest
    target = rewrite.Target.of(parent, 3, 1000, None)
    rewrite.rewritten_manifest(store.load(1).folder, parent, target, engine_named("local"))
    return None
