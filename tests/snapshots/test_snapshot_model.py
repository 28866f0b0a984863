"""A store of snapshots beside plain dicts: whatever is put, cut, lost, restored and rescaled, both hold the same."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keygroups import UnsupportedKey
from keygroups.state.memory import table
from snapshots import CommitConflict, IncompatibleSnapshot, IncompleteSnapshot, InFlightElement, Snapshot
from snapshots.commit import part_writer
from snapshots.format import columns, files
from snapshots.format.layers import layers_of
from snapshots.format.manifest import Manifest
from snapshots.versions import expired_version
from tests.examples import scaled
from tests.snapshot_kit import Content, G, content_of, new_store
from tests.snapshots.modelled_operator import NO_FLINK_KEY, STATES, Barrier, Operator

# Few, so that they meet again.
KEYS = st.sampled_from([*range(-4, 5), "", "a", "ä", b"a", ("a", 1), 1.5])
PARALLELISMS = st.sampled_from([1, 2, 3, 4, 5, 7, G])
# More, fewer, and as many as divide nothing; 4,096 would be the same with more of them empty.
MAX_PARALLELISMS = st.sampled_from([G, 4 * G, G - 5, 3 * G + 1])
COUNTS = st.none() | st.integers(-(2**63), 2**63 - 1)
PROFILES = st.none() | st.integers() | st.text(max_size=3) | st.tuples(st.integers(), st.binary(max_size=3))
SOME_COUNTS = st.dictionaries(KEYS, COUNTS, max_size=4)
ROUNDS = st.tuples(SOME_COUNTS, KEYS, SOME_COUNTS, KEYS)


class SnapshotMachine(RuleBasedStateMachine):
    """An operator and its stores: what it does, what is committed, lost and restored."""

    @initialize(
        parallelism=PARALLELISMS,
        keyed=st.booleans(),
        delta_share=st.sampled_from([0.5, float("inf")]),
        deltas=st.sampled_from([1, 2, part_writer.DELTAS_MAX]),
        file_bytes=st.sampled_from([1, files.FILE_BYTES]),
        changed_min=st.sampled_from([0, 1, table.CHANGED_KEYS_MIN]),
    )
    def start(
        self, parallelism: int, keyed: bool, delta_share: float, deltas: int, file_bytes: int, changed_min: int
    ) -> None:
        self.limits = pytest.MonkeyPatch()
        self.limits.setattr(part_writer, "DELTA_SHARE_MAX", delta_share)
        self.limits.setattr(part_writer, "DELTAS_MAX", deltas)
        self.limits.setattr(files, "FILE_BYTES", file_bytes)
        self.limits.setattr(files, "ROW_GROUP_ROWS_MIN", 4)
        self.limits.setattr(files, "ROW_GROUP_BYTES", 200)
        self.limits.setattr(columns, "PIECE_ROWS_MAX", 2)
        self.limits.setattr(table, "CHANGED_KEYS_MIN", changed_min)
        self.operator = Operator(parallelism, keyed)
        self.restored_from: int | None = None
        self.store = new_store()
        self.other_store = new_store()
        self.history: dict[int, tuple[Content, list[list[InFlightElement]]]] = {}
        self.committed: Content = {state.name: {} for state in STATES}
        self.committed_elements: list[list[InFlightElement]] = []
        self.barrier: Barrier | None = None
        self.snapshot: Snapshot | None = None

    # What the function does with its state.

    @rule(counts=st.dictionaries(KEYS, COUNTS, max_size=8))
    def put(self, counts: dict[Any, int | None]) -> None:
        self.operator.put(counts)

    @rule(key=KEYS, state=st.sampled_from(["count", "profile"]))
    def delete(self, key: Any, state: str) -> None:
        self.operator.delete(key, state)

    @rule(key=KEYS, count=COUNTS, profile=PROFILES, completes=st.booleans())
    def invoke(self, key: Any, count: int | None, profile: object, completes: bool) -> None:
        self.operator.invoke(key, count, profile, completes)

    # What comes in and goes out.

    @rule(key=KEYS, subtask=st.integers(0, G - 1), completed=st.booleans())
    def arrive(self, key: Any, subtask: int, completed: bool) -> None:
        self.operator.arrive(key, subtask, completed)

    @rule(step=st.integers(1, 5))
    def advance(self, step: int) -> None:
        self.operator.advance(step)

    @rule(subtask=st.integers(0, G - 1))
    def emit(self, subtask: int) -> None:
        self.operator.emit(subtask)

    # What the coordinator does.

    @precondition(lambda self: self.barrier is None)
    @rule()
    def cut(self) -> None:
        """The operator goes on at once; what is cut is written later, or never."""
        self.barrier = self.operator.cut()

    @precondition(lambda self: self.barrier is not None)
    @rule(parallelism=PARALLELISMS, again=st.booleans())
    def write(self, parallelism: int, again: bool) -> None:
        assert self.barrier is not None
        self.snapshot = self.store.write(self.barrier.parts, source_position={"identity": self.operator.identity})
        self.committed, self.committed_elements = self.barrier.model, self.barrier.queues
        if not again:
            self.barrier = None
        self.check_snapshot(parallelism)

    @rule(rounds=st.lists(ROUNDS, min_size=1, max_size=4))
    def checkpoint(self, rounds: list[tuple[dict[Any, int | None], Any, dict[Any, int | None], Any]]) -> None:
        """What an undisturbed operator does: some work, a cut, work while it is written, and again."""
        for counts, removed, meanwhile, removed_meanwhile in rounds:
            self.put(counts)
            self.delete(removed, "count")
            self.cut()
            self.put(meanwhile)
            self.delete(removed_meanwhile, "count")
            self.write(self.operator.parallelism, again=False)
            for key in (*counts, *meanwhile):
                self.read(key)

    @precondition(lambda self: self.barrier is not None)
    @rule()
    def write_elsewhere(self) -> None:
        """A second store, fed by the same operator whenever it likes."""
        assert self.barrier is not None
        snapshot = self.other_store.write(self.barrier.parts)
        assert content_of(snapshot) == self.barrier.model

    @precondition(lambda self: self.barrier is not None)
    @rule()
    def fail_to_write(self) -> None:
        """The parts are there, but nobody commits them."""
        assert self.barrier is not None
        pending = self.store.begin()
        for made in self.barrier.parts:
            pending.write_subtask(made)
        self.barrier = None

    @precondition(lambda self: self.barrier is not None and self.snapshot is not None)
    @rule(parallelism=PARALLELISMS)
    def lose_the_commit(self, parallelism: int) -> None:
        assert self.barrier is not None
        pending = self.store.begin()
        handles = [pending.write_subtask(made) for made in self.barrier.parts]
        self.repartition(parallelism)
        with pytest.raises(CommitConflict):
            pending.commit(handles)
        with pytest.raises(IncompleteSnapshot):
            self.store.begin().commit(handles)
        self.barrier = None

    @precondition(lambda self: self.snapshot is not None)
    @rule(parallelism=PARALLELISMS)
    def repartition(self, parallelism: int) -> None:
        self.committed, self.committed_elements = self.history[max(self.store.versions())]
        parallelism = min(parallelism, self.operator.max_parallelism)
        self.snapshot = self.store.repartition(parallelism)
        assert self.snapshot.parallelism == parallelism
        self.check_snapshot(None)

    @precondition(lambda self: self.snapshot is not None)
    @rule(parallelism=PARALLELISMS)
    def compact(self, parallelism: int) -> None:
        self.committed, self.committed_elements = self.history[max(self.store.versions())]
        self.snapshot = self.store.compact()
        manifest = self.snapshot.manifest
        assert not manifest.files_of("delta")
        assert all(file.key_groups == file.file_key_groups for file in manifest.files)
        assert self.store.compact().version == self.snapshot.version
        self.check_snapshot(parallelism)

    @precondition(lambda self: self.snapshot is not None)
    @rule(
        parallelism=PARALLELISMS,
        max_parallelism=MAX_PARALLELISMS,
        hash_=st.sampled_from(["xxhash64", "xxhash64", "flink"]),
    )
    def rewrite(self, parallelism: int, max_parallelism: int, hash_: str) -> None:
        """Other key groups: who runs with the old ones cannot commit any more, and is restored."""
        self.committed, self.committed_elements = self.history[max(self.store.versions())]
        parallelism = min(parallelism, max_parallelism)
        keys = {key for values in self.committed.values() for key in values}
        keys |= {element.key for queue in self.committed_elements for element in queue}
        if hash_ == "flink" and NO_FLINK_KEY in keys:
            with pytest.raises(UnsupportedKey):
                self.store.repartition(parallelism, max_parallelism=max_parallelism, hash=hash_, rewrite=True)
            return
        self.snapshot = self.store.repartition(parallelism, max_parallelism=max_parallelism, hash=hash_, rewrite=True)
        manifest = self.snapshot.manifest
        assert (manifest.max_parallelism, manifest.hash) == (max_parallelism, hash_)
        assert not manifest.files_of("delta")
        if self.barrier is not None and (max_parallelism, hash_) != (self.operator.max_parallelism, self.operator.hash):
            with pytest.raises(IncompatibleSnapshot):
                self.store.write(self.barrier.parts)
        self.other_store = new_store()
        self.check_snapshot(parallelism)
        self.restore(self.snapshot, parallelism)

    @precondition(lambda self: self.history)
    @rule(keep_last=st.integers(1, 4), applies=st.booleans())
    def collect_garbage(self, keep_last: int, applies: bool) -> None:
        """What is not kept goes, and the rest stays as it was; the operator's own version is pinned.

        A version that has expired is kept by its pin only.
        """
        before = self.store.versions()
        folder = self.store.begin().folder
        alive = [version for version in before if version > expired_version(folder)]
        listed = {file.name for file in folder.files("data")}
        report = self.store.collect_garbage(keep_last=keep_last, min_age=0.0, dry_run=not applies)
        kept = {*alive[-keep_last:], self.restored_from} & set(before)
        assert kept <= set(report.retained)
        assert set(report.files) <= listed
        assert report.undeleted == ()
        if not applies:
            assert self.store.versions() == before
            return
        assert self.store.versions() == list(report.retained)
        self.history = {version: held for version, held in self.history.items() if version in report.retained}
        named = {file.path for version in report.retained for file in self.store.load(version).manifest.files}
        # Nothing is older than an instant in which the clock stood still.
        assert named <= {file.name for file in self.store.begin().folder.files("data")} <= named | listed
        assert all(self.store.verify(version).ok for version in report.retained)

    def hold(self, version: int | None) -> None:
        """Pin the version that the operator reads, and no other."""
        before, self.restored_from = self.restored_from, version
        if version == before:
            return
        if version is not None:
            self.store.pin(version)
        if before is not None:
            self.store.unpin(before)

    @precondition(lambda self: self.history)
    @rule(data=st.data(), parallelism=st.none() | PARALLELISMS)
    def restore_an_older_one(self, data: st.DataObject, parallelism: int | None) -> None:
        """The next snapshot is written on top of a newer one, with which it has nothing to do."""
        newest = self.store.load(max(self.history)).manifest
        expired = expired_version(self.store.load(newest.version).folder)
        versions = [
            version
            for version in sorted(self.history)
            if has_same_key_groups(newest, self.store.load(version).manifest) and version > expired
        ]
        version = data.draw(st.sampled_from(versions))
        self.snapshot = self.store.load(version)
        self.committed, self.committed_elements = self.history[version]
        self.restore(self.snapshot, parallelism)

    @rule(parallelism=st.none() | PARALLELISMS)
    def crash_and_restore(self, parallelism: int | None) -> None:
        """All that was not in a snapshot is gone; the rest comes back, at another parallelism as well."""
        latest = self.store.latest()
        if latest is None:
            self.barrier = None
            self.operator.begin(parallelism or self.operator.parallelism, {})
            return
        self.snapshot = latest
        self.committed, self.committed_elements = self.history[latest.version]
        self.restore(latest, parallelism)

    def restore(self, snapshot: Snapshot, parallelism: int | None) -> None:
        self.barrier = None
        snapshot = pickle.loads(pickle.dumps(snapshot))
        self.hold(snapshot.version)
        self.operator.restore(snapshot, parallelism, self.committed, self.committed_elements)

    # What holds at all times.

    @rule(key=KEYS)
    def read(self, key: Any) -> None:
        self.operator.check_value(key)

    @invariant()
    def every_key_group_has_one_owner(self) -> None:
        self.operator.check_owners()

    def check_snapshot(self, parallelism: int | None) -> None:
        assert self.snapshot is not None
        assert self.snapshot.version == max(self.store.versions())
        self.history[self.snapshot.version] = self.committed, self.committed_elements
        for state in STATES:
            layers = self.snapshot.manifest.files_of("keyed", "delta", state=state.name)
            depths = [len(layers_of(layers, key_group)) for key_group in range(self.snapshot.max_parallelism)]
            assert max(depths) <= 1 + part_writer.DELTAS_MAX
        report = self.store.verify()
        assert report.ok, report.problems
        if parallelism is not None:
            parallelism = min(parallelism, self.snapshot.max_parallelism)
        assert content_of(self.snapshot, parallelism) == self.committed
        for state in STATES:
            assert self.snapshot.to_arrow(state.name).num_rows == len(self.committed[state.name])
        assert self.snapshot.in_flight_count == sum(map(len, self.committed_elements))

    @precondition(lambda self: self.history)
    @rule(data=st.data(), parallelism=PARALLELISMS)
    def look_back(self, data: st.DataObject, parallelism: int) -> None:
        """What was committed stays as it was."""
        version = data.draw(st.sampled_from(sorted(self.history)))
        snapshot = self.store.load(version)
        assert content_of(snapshot, min(parallelism, snapshot.max_parallelism)) == self.history[version][0]

    def teardown(self) -> None:
        """The union over the subtasks, loaded whole, is the model."""
        if not hasattr(self, "operator"):
            return
        self.limits.undo()
        self.operator.check_content()


def has_same_key_groups(one: Manifest, other: Manifest) -> bool:
    return (one.max_parallelism, one.hash) == (other.max_parallelism, other.hash)


TestSnapshotModel = SnapshotMachine.TestCase
TestSnapshotModel.settings = settings(max_examples=scaled(80), stateful_step_count=30, deadline=None)
