"""Lists of files: a manifest is the same with them as without, and nobody reads or writes more than is theirs."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from unittest import mock
from weakref import WeakValueDictionary

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import scale
from keygroups import KeyGroupRange, range_of
from snapshots import Snapshot, SnapshotCorrupted, SnapshotNotFound, SnapshotStore, SubtaskRestore, named_manifest
from snapshots.commit import stored_lists
from snapshots.commit.manifest_creation import first_manifest, next_manifest, put_manifest
from snapshots.filesystem import Folder, open_folder
from snapshots.format import file_lists
from snapshots.format.layers import carry_over
from snapshots.format.manifest import Channel, DataFile, Manifest, OperatorStateInfo, features_of, manifest_name
from snapshots.format.manifest_head import FILE_LISTS, Head, list_from_bytes, list_to_bytes
from snapshots.testing import CountingFolder
from snapshots.upkeep.verify import verify_version
from snapshots.versions import load_head, load_manifest
from tests.examples import scaled
from tests.snapshot_kit import content_of, new_store, parts, words
from tests.snapshots.format.test_manifest import KEYED

G = 12
RANGES = st.tuples(st.integers(0, G - 1), st.integers(0, G - 1)).map(lambda ends: KeyGroupRange(min(ends), max(ends)))
numbers = count()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch, inline=1, entries=2)


def limits(patch: pytest.MonkeyPatch, inline: int, entries: int) -> None:
    patch.setattr(stored_lists, "INLINE_MAX", inline)
    patch.setattr(stored_lists, "LIST_ENTRIES_MAX", entries)


@contextmanager
def another_process() -> Iterator[None]:
    """Nothing that was read before is remembered."""
    nothing: Any = WeakValueDictionary()
    with mock.patch.object(file_lists, "_alive", nothing), mock.patch.object(named_manifest, "_last_loaded", {}):
        yield


def new_file(kind: Any, key_groups: KeyGroupRange, version: int, subtask: int = 0, **fields: Any) -> DataFile:
    number = next(numbers)
    path = f"data/{number}/{kind}-{key_groups.start}-{key_groups.end}.parquet"
    state = "profile" if kind in {"keyed", "delta"} else "offsets" if kind == "operator" else None
    fields |= {"key_groups": key_groups, "file_key_groups": key_groups, "path": path, "state": state}
    return replace(KEYED, kind=kind, version=version, subtask=subtask, **fields)


@st.composite
def chains(draw: st.DrawFn) -> list[Manifest]:
    """Manifests that follow each other as commits do: files are added, cut, replaced and dropped, and cuts are new."""
    version, keyed = 1, [new_file("keyed", KeyGroupRange(0, G - 1), 1)]
    manifest = first_manifest("enrich", draw(st.integers(1, 5)), G, "xxhash64", "write", files=tuple(keyed))
    made = [manifest]
    for version in range(2, draw(st.integers(3, 9))):
        what = draw(st.sampled_from(["epoch", "epoch", "epoch", "repartition", "drop"]))
        if what == "repartition":
            made.append(next_manifest(made[-1], "repartition", parallelism=draw(st.integers(1, G))))
            continue
        kind: Any = draw(st.sampled_from(["keyed", "delta"]))
        new: list[DataFile] = []
        for key_groups in draw(st.lists(RANGES, max_size=4)):
            if all(key_groups.intersection(file.key_groups) is None for file in new):
                new.append(new_file(kind, key_groups, version, folds=draw(st.booleans())))
        keyed = [] if what == "drop" else [*carry_over(keyed, new), *new]
        channels, cut, states = draw(cuts(version))
        files = (*keyed, *cut)
        features = features_of(files, (), channels)
        content = {"files": files, "channels": channels, "operator_states": states, "required_features": features}
        made.append(next_manifest(made[-1], "write", parallelism=len(channels), **content))
    return made


@st.composite
def cuts(draw: st.DrawFn, version: int) -> tuple[tuple[Channel, ...], list[DataFile], tuple[OperatorStateInfo, ...]]:
    """The channels of a cut with their files; elements may be of key groups that others own."""
    parallelism, is_dealt = draw(st.integers(1, 6)), draw(st.integers(0, 3)) == 0
    channels, files = [], []
    for subtask in range(parallelism):
        owned = range_of(subtask, parallelism, G)
        keyless = draw(st.integers(0, 2)) if is_dealt else 0
        channels.append(
            Channel(subtask=subtask, key_groups=owned, watermark=subtask, cut_id=uuid.uuid4().hex, keyless=keyless)
        )
        if draw(st.booleans()):
            wide = draw(RANGES)
            held = KeyGroupRange(min(owned.start, wide.start), max(owned.end, wide.end))
            files.append(new_file("in_flight", draw(st.sampled_from([owned, held])), version, subtask))
        if draw(st.booleans()):
            files.append(new_file("output", owned, version, subtask))
    states = (OperatorStateInfo("offsets", "split"),) if draw(st.integers(0, 4)) == 0 else ()
    files += [
        new_file("operator", channel.key_groups, version, channel.subtask, rows=3) for channel in channels if states
    ]
    return tuple(channels), files, states


def stored(folder: Folder, chain: Sequence[Manifest]) -> Iterator[Manifest]:
    """Commit a chain, each on what is known of the one before, or on what a new process reads of it."""
    before: Manifest | None = None
    for number, manifest in enumerate(chain):
        before = put_manifest(folder, replace(manifest, file_lists=() if before is None else before.file_lists))
        yield before
        if number % 3 == 2:
            with another_process():
                before = load_manifest(folder, manifest.version)


def without_lists(manifest: Manifest) -> Manifest:
    """What a manifest says, in an order that does not depend on lists."""
    features = tuple(feature for feature in manifest.required_features if feature != FILE_LISTS)
    files = tuple(sorted(manifest.files, key=lambda file: (file.path, file.key_groups.start)))
    return replace(manifest, files=files, required_features=features)


def new_folder() -> Folder:
    return open_folder(f"memory://{uuid.uuid4().hex}/enrich")


@settings(max_examples=scaled(400))
@given(chains(), st.integers(0, 8), st.integers(1, 6))
def test_a_manifest_is_the_same_with_lists_as_without(chain: list[Manifest], inline: int, entries: int) -> None:
    folder = new_folder()
    with pytest.MonkeyPatch.context() as patch:
        limits(patch, inline, entries)
        for wanted, manifest in zip(chain, stored(folder, chain), strict=True):
            with another_process():
                read = load_manifest(folder, wanted.version)
                head = load_head(folder, wanted.version)
            assert read == manifest
            assert without_lists(read) == without_lists(wanted)
            assert read.channels == wanted.channels
            assert (FILE_LISTS in read.required_features) == bool(read.file_lists) == bool(head.lists)
            assert all(len(one.files) <= entries for one in read.file_lists if not one.channels)
            waiting = [file for file in head.manifest.files if file.kind in {"keyed", "delta"}]
            assert len(waiting) <= inline
            if len(read.files) + len(read.channels) <= inline:
                assert folder.read(manifest_name(wanted.version)) == Head(wanted).to_bytes()


@settings(max_examples=scaled(400))
@given(chains(), st.integers(0, 8), st.integers(1, 6), st.integers(1, G))
def test_a_worker_gets_its_share_of_the_lists_that_it_reads(
    chain: list[Manifest], inline: int, entries: int, parallelism: int
) -> None:
    folder = new_folder()
    with pytest.MonkeyPatch.context() as patch:
        limits(patch, inline, entries)
        for manifest in stored(folder, chain):
            with another_process():
                named = named_manifest.NamedManifest(folder, load_head(folder, manifest.version))
                for index in range(parallelism):
                    owned = range_of(index, parallelism, G)
                    partly = named.within(owned)
                    share = SubtaskRestore.of(folder, partly, index, parallelism)
                    assert share == SubtaskRestore.of(folder, manifest, index, parallelism)
                    of_cut = [(one.cut_id, one.subtask) for one in manifest.channels if one.key_groups == owned]
                    assert of_cut == [(one.cut_id, one.subtask) for one in partly.channels if one.key_groups == owned]
                assert named.complete() == manifest


def test_a_store_works_as_usual() -> None:
    content: Any = {"count": {key: len(key) for key in words(50)}, "profile": {}}
    store = new_store()
    store.write(parts(content))
    for parallelism in (2, 5, 16):
        snapshot = store.repartition(parallelism)
        assert snapshot.manifest.file_lists
        with another_process():
            assert content_of(store.load()) == content
            assert content_of(pickle.loads(pickle.dumps(snapshot))) == content
            assert store.verify().ok
    assert len(store.load().manifest.file_lists) == len(store.load(1).manifest.file_lists)
    other = new_store()
    store.copy_to(other)
    with another_process():
        assert content_of(other.load()) == content
        assert other.verify().ok
    assert listed(other) == {one.info.path for one in other.load().manifest.file_lists}, "nothing is copied in vain"


class TestRetention:
    def test_lists_go_with_the_last_version_that_names_them(self) -> None:
        store = new_store()
        for number in range(4):
            store.write(parts({"count": {"a": number}}))
            store.repartition(3)
        lists = {one.info.path for version in (7, 8) for one in store.load(version).manifest.file_lists}
        before = listed(store)
        assert lists < before
        report = store.collect_garbage(keep_last=2, min_age=0, dry_run=False)

        assert listed(store) == lists
        assert before - lists <= set(report.files)
        with another_process():
            assert content_of(store.load())["count"] == {"a": 3}

    def test_those_of_a_commit_that_did_not_end_go_once_they_are_old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = new_store()
        store.write(parts({"count": {"a": 1}}))
        before = listed(store)
        pending, late = store.begin(), store.begin()
        handles = [pending.write_subtask(part) for part in parts({"count": {"a": 2}})]
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("snapshots.commit.manifest_creation._create", interrupted)
            pending.commit(handles)
        left = listed(store) - before
        assert left
        assert store.versions() == [1]
        assert all(name.startswith(f"data/{pending.attempts_prefix}") for name in left)

        assert store.collect_garbage(min_age=3600, dry_run=False).files == ()
        assert listed(store) == before | left
        store.collect_garbage(min_age=0, dry_run=False)
        assert listed(store) == before
        assert late.commit([late.write_subtask(part) for part in parts({"count": {"a": 3}})]).version == 2

    def test_a_reader_of_a_version_that_has_expired_is_told_so(self) -> None:
        store = new_store()
        snapshot = store.write(parts({"count": {"a": 1}}))
        head = load_head(store.folder, 1)
        store.folder.delete([manifest_name(1), *(info.path for info in head.lists)])
        with another_process(), pytest.raises(SnapshotNotFound):
            named_manifest.NamedManifest(snapshot.folder, head).complete()


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def listed(store: SnapshotStore) -> set[str]:
    return {file.name for file in store.folder.files("data") if "/list-" in file.name}


class TestDamage:
    @pytest.mark.parametrize("place", [0, 5, 40, -1])
    def test_every_reader_is_told_which_list_and_which_key_groups(self, place: int) -> None:
        store = new_store()
        snapshot = store.write(parts({"count": {"a": 1}}))
        info = snapshot.manifest.file_lists[0].info
        data = bytearray(store.folder.read(info.path))
        data[place] ^= 1
        store.folder.filesystem.pipe_file(store.folder.path(info.path), bytes(data))
        check_refused(store, snapshot)

    def test_so_is_a_reader_that_lacks_one(self) -> None:
        store = new_store()
        snapshot = store.write(parts({"count": {"a": 1}}))
        store.folder.delete([snapshot.manifest.file_lists[0].info.path])
        check_refused(store, snapshot)

    def test_a_worker_reads_on_while_the_lists_of_others_are_damaged(self) -> None:
        store = new_store()
        snapshot = store.write(parts({"count": dict.fromkeys(words(50), 1)}))
        of_others = [
            one.info
            for one in snapshot.manifest.file_lists
            if one.info.key_groups.intersection(range_of(0, 2, 16)) is None
        ]
        assert of_others
        store.folder.delete([info.path for info in of_others])
        with another_process():
            worker: Snapshot = pickle.loads(pickle.dumps(snapshot))
            assert worker.restore(0).manifest.files
            with pytest.raises(SnapshotCorrupted):
                worker.restore(1)


def check_refused(store: SnapshotStore, snapshot: Snapshot) -> None:
    info = snapshot.manifest.file_lists[0].info
    place = store.folder.path(info.path), info.key_groups
    for read in (store.latest, store.load, lambda: worker_of(snapshot).restore(0, 1), store.compact, gc(store)):
        with another_process(), pytest.raises(SnapshotCorrupted) as refused:
            read()
        assert (refused.value.path, refused.value.key_groups) == place
    for check in (lambda: store.verify(), lambda: verify_version(store.folder, 1)):
        (problem,) = check().problems
        assert (problem.path, problem.key_groups) == place


def worker_of(snapshot: Snapshot) -> Snapshot:
    worker: Snapshot = pickle.loads(pickle.dumps(snapshot))
    return worker


def gc(store: SnapshotStore) -> Any:
    return lambda: store.collect_garbage(dry_run=False)


class TestCost:
    """What is counted is the benchmark's; here the operators are small, and so are the lists."""

    @pytest.fixture(autouse=True)
    def limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        limits(monkeypatch, inline=32, entries=16)

    def test_a_commit_costs_what_has_changed(self) -> None:
        few, many = (scale.measure(case(key_groups=key_groups)) for key_groups in (256, 2048))

        assert many["manifest: files"] > 2 * few["manifest: files"]
        assert many["commit, on average: requests"] <= few["commit, on average: requests"] + 1
        # Only the names of more lists.
        more = (many["manifest: lists"] - few["manifest: lists"]) * 256
        assert many["commit, on average: bytes"] < few["commit, on average: bytes"] + 2 * more

    @pytest.mark.thorough
    def test_what_a_worker_reads_does_not_grow_with_the_others(self) -> None:
        few, many = (scale.measure(case(parallelism=parallelism)) for parallelism in (32, 128))

        for what in ("manifest of a part, on average", "manifest of a restore"):
            assert many[f"{what}: requests"] <= few[f"{what}: requests"] + 2
            more = max(many["manifest: lists"] - few["manifest: lists"], 0) * 256
            assert many[f"{what}: bytes"] < few[f"{what}: bytes"] + more + 8192

    def test_a_process_reads_a_list_once(self) -> None:
        folder = CountingFolder(new_folder())
        store = SnapshotStore.on(folder)
        content: Any = {"count": {key: len(key) for key in words(500)}}
        with pytest.MonkeyPatch.context() as patch:
            limits(patch, inline=1, entries=2)
            first = store.write(parts(content, parallelism=16))
            store.repartition(3)
        with another_process():
            folder.reset()
            held = store.load(1)
            assert folder.operations["read"] == 1 + len(first.manifest.file_lists)
            folder.reset()
            assert store.load(2).manifest.file_lists == held.manifest.file_lists
            assert folder.operations["read"] == 1


def case(**fields: Any) -> scale.Case:
    return replace(scale.Case(parallelism=32, key_groups=512, state_bytes=4 * scale.TERABYTE, versions=24), **fields)


def test_what_every_subtask_needs_may_not_be_in_a_list() -> None:
    info = new_store().write(parts({"count": {"a": 1}})).manifest.file_lists[0].info
    for kind in ("operator", "in_flight"):
        file = new_file(kind, info.key_groups, 1)
        one = replace(info, files=1, channels=0)
        with pytest.raises(SnapshotCorrupted, match="every subtask needs"):
            list_from_bytes(list_to_bytes((file,), ()), one, "list")


def test_channels_may_not_be_in_lists_beside_operator_state() -> None:
    head = Head.of(new_store().write(parts({"count": {"a": 1}})).manifest)
    manifest = replace(head.manifest, operator_states=(OperatorStateInfo("offsets", "split"),))
    with pytest.raises(SnapshotCorrupted, match="operator state"):
        Head.from_bytes(replace(head, manifest=manifest).to_bytes(), "manifest")


def test_the_name_of_a_list_may_not_lead_out() -> None:
    with pytest.raises(ValueError, match="no part of its path"):
        replace(new_store().write(parts({"count": {"a": 1}})).manifest.file_lists[0].info, path="data/../../x")
