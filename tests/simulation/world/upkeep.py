"""What others do to the snapshots meanwhile: each time a process of its own, perhaps overtaken, perhaps failing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keygroups import ConfigError
from snapshots import Claim, PendingSnapshot, Snapshot, SnapshotNotFound, SnapshotStore, SubtaskHandle
from snapshots.testing import Crash
from snapshots.upkeep.compaction import compact
from snapshots.upkeep.edit import Editor
from snapshots.versions import HINT
from tests.simulation.wild import key_of
from tests.simulation.world.function import MARKS, NOTE
from tests.simulation.world.oracle import attempt_of

if TYPE_CHECKING:
    from tests.simulation.world.world import World

GRACE_SECONDS = 300.0
"""How long a file without a version is kept."""


@dataclass
class Sleeper:
    """A coordinator that has written everything but its manifest, and was paused."""

    pending: PendingSnapshot
    handles: list[SubtaskHandle]
    attempt: str
    since: float


class Upkeep:
    """All that is done to snapshots beside the operators."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.draw = random.Random(f"{world.seed}/upkeep")
        self.sleepers: list[Sleeper] = []
        self.is_late = False
        self._edits = 0

    def step(self) -> None:
        """Do one thing."""
        actions: list[Callable[[SnapshotStore], None]] = [
            self.compact,
            self.compact,
            self.repartition,
            self.rewrite,
            self.edit,
            self.claim,
            self.collect,
            self.collect,
            self.read,
            self.pin,
            self.lose_hint,
            self.settle,
            *([self.wake_up] * 3 if self.sleepers else []),
        ]
        world = self.world
        process = world.storage.process(world.kinds, 0.3)
        try:
            self.draw.choice(actions)(SnapshotStore.on(process))
        except Crash:
            if world.storage.has_lost_power:
                raise
            world.storage.met["crash"] += 1
        except SnapshotNotFound:
            assert not world.oracle.acknowledged, "there is no snapshot any more"
        except Exception as error:  # noqa: BLE001 - judged there
            world.excuse(error, process)

    def compact(self, store: SnapshotStore) -> None:
        """Fold deltas."""
        before = store.load()
        after = self._changed(lambda: compact(store.folder, before, self.world.times().now))
        if after.version != before.version:
            self._done("compact", after)

    def repartition(self, store: SnapshotStore) -> None:
        """Another parallelism over the same files."""
        parallelism = self.draw.randint(1, min(4, store.load().max_parallelism))
        try:
            after = self._changed(lambda: store.repartition(parallelism))
        except ConfigError:
            # Somebody else has rewritten the snapshot meanwhile, to fewer key groups.
            load, live = self.world.clean.load, self.world.oracle.live()
            assert any(load(version).max_parallelism < parallelism for version in live)
            return
        self._done("repartition", after)

    def rewrite(self, store: SnapshotStore) -> None:
        """Another number of key groups, or another hash."""
        groups, hash_ = self.draw.choice((1, 2, 3, 5)), self.draw.choice(self.world.hashes)
        parallelism = self.draw.randint(1, min(4, groups))
        after = self._changed(lambda: store.repartition(parallelism, max_parallelism=groups, hash=hash_, rewrite=True))
        self._done("rewrite", after)

    def edit(self, store: SnapshotStore) -> None:
        """Write notes by hand."""
        before = store.load()
        attempt = attempt_of(before.manifest)
        if attempt is None:
            return
        truth = self.world.oracle.truth_of(before)
        self._edits += 1
        notes = {key: self.draw.randrange(100) for key in truth.histories}
        if self.draw.random() < 0.5:
            notes = {key: note + 1 for key, note in truth.notes.items()}
        self.world.oracle.truths[attempt, (self._edits,)] = truth.edited(self._edits, notes)
        editor = Editor(store.folder, before.manifest)
        if notes == {key: note + 1 for key, note in truth.notes.items()}:
            editor.transform(NOTE.name, one_more)
        else:
            editor.put(NOTE, [(key_of(name), note) for name, note in notes.items()])
        self._done("edit", self._changed(editor.put_items(MARKS, [self._edits]).commit))

    def claim(self, store: SnapshotStore) -> None:
        """Fence whoever else commits."""
        store.load()
        claimed: Claim = self._changed(lambda: store.claim(parallelism=1))
        self._done("claim", claimed.snapshot)

    def collect(self, store: SnapshotStore) -> None:
        """Expire old versions."""
        keep_last = self.draw.randrange(1, 4)
        report = store.collect_garbage(keep_last=keep_last, min_age=GRACE_SECONDS, dry_run=False)
        self.world.storage.met["expired"] += len(report.expired)
        self.world.storage.met["removed"] += len(report.files)

    def read(self, store: SnapshotStore) -> None:
        """A reader of any version that may not go."""
        oracle = self.world.oracle
        versions = sorted({*oracle.pinned, oracle.newest} - {0})
        if not versions:
            return
        version = self.draw.choice(versions)
        try:
            oracle.check_version(store.load(version))
        except SnapshotNotFound:
            # Somebody else may have committed and collected meanwhile.
            latest = self.world.clean.latest()
            is_old = latest is not None and latest.version > version
            assert is_old, f"version {version}, the newest, is gone"
            assert version not in oracle.pinned, f"version {version}, which is pinned, is gone"
        self.world.storage.met["read"] += 1

    def pin(self, store: SnapshotStore) -> None:
        """A user, perhaps in the middle of a collection; pins are not taken and given up by two at once."""
        oracle, clean = self.world.oracle, self.world.clean
        if not oracle.newest:
            return
        given_up = sorted(oracle.pinned - {self.world.restored_from})
        if given_up and self.draw.random() < 0.5:
            version = self.draw.choice(given_up)
            oracle.pinned.discard(version)
            clean.unpin(version)
            return
        version = self.draw.randrange(max(1, oracle.newest - 3), oracle.newest + 1)
        try:
            clean.pin(version)
        except SnapshotNotFound:
            return
        oracle.pinned.add(version)

    def lose_hint(self, store: SnapshotStore) -> None:
        """It may be lost, and fall behind; ahead of the newest it would say that a manifest is missing."""
        old = self.draw.randrange(self.world.oracle.newest + 1)
        self.world.storage.shared.replace(HINT, self.draw.choice([b"", b"%d" % old, b"%020d" % old]))

    def settle(self, store: SnapshotStore) -> None:
        """What was late arrives."""
        self.world.storage.settle()

    def wake_up(self, store: SnapshotStore) -> None:
        """A paused coordinator goes on with its commit."""
        sleeper = self.sleepers.pop(self.draw.randrange(len(self.sleepers)))
        if not self.world.depth:
            self.world.storage.met["pause"] += 1
        # Nobody can help a writer whose files outlive the grace period and go between its last look and its commit.
        self.is_late = self.world.storage.shared.now - sleeper.since >= GRACE_SECONDS
        try:
            commit = sleeper.pending.commit
            snapshot = self._changed(lambda: commit(sleeper.handles, source_position={"attempt": sleeper.attempt}))
        except Exception as error:  # noqa: BLE001 - judged there
            self.world.refuse(sleeper.attempt, error, sleeper.pending.folder)
            return
        finally:
            self.is_late = False
        self._done("woke up", snapshot)

    def _changed(self, change: Callable[[], Any]) -> Any:
        """Do what others may lose a version to, also if its outcome is unknown."""
        try:
            return change()
        finally:
            self.world.disturbances += 1

    def _done(self, what: str, snapshot: Snapshot) -> None:
        self.world.oracle.acknowledge(snapshot)
        self.world.storage.met[what] += 1


def one_more(rows: pa.Table) -> pa.Table:
    """Add one to each note."""
    more = pa.array([note.as_py() + 1 for note in rows["value"]], pa.int64())
    return rows.set_column(rows.schema.get_field_index("value"), "value", more)
