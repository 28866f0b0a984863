"""Coordinators, collectors and sleepers on one storage that fails, one step at a time, and what must hold meanwhile."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from snapshots import (
    Claim,
    CommitConflict,
    CommitOutcomeUnknown,
    IncompleteSnapshot,
    PendingSnapshot,
    Snapshot,
    SnapshotNotFound,
    SnapshotStore,
    SubtaskHandle,
    WriterFenced,
)
from snapshots.commit.claim import ClaimedSnapshot
from snapshots.filesystem import FileInfo, Folder, open_folder
from snapshots.format.manifest import Manifest
from snapshots.testing import Crash, Fault, FaultyFolder, FolderWrapper
from snapshots.testing.wrappers import Operation
from snapshots.versions import HINT, expired_version
from tests.snapshot_kit import G, content_of, parts

GRACE = 300.0
"""Ticks that a file without a version is kept."""

Content = dict[str, int]


class Clocked(FolderWrapper):
    """A storage whose clock the simulation turns."""

    def __init__(self, inner: Folder) -> None:
        super().__init__(inner)
        self.now = 0.0
        self.times: dict[str, float] = {}

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], Any]) -> Any:
        result = run()
        if operation in {"create", "write", "replace"}:
            self.times[name] = self.now
        return result

    def files(self, folder: str = "") -> list[FileInfo]:
        return [file._replace(modified=self.times[file.name]) for file in self.inner.files(folder)]


class Interrupted(FolderWrapper):
    """A process's way to the storage, on which others may overtake it."""

    def __init__(self, inner: Folder, interrupt: Callable[[], None]) -> None:
        super().__init__(inner)
        self.interrupt = interrupt

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], Any]) -> Any:
        # Sizes are asked for by several threads at once, whose order is not the seed's.
        if operation != "size":
            self.interrupt()
        return run()


@dataclass
class Sleeper:
    """A writer that has written everything but its manifest."""

    pending: PendingSnapshot
    handles: list[SubtaskHandle]
    attempt: str
    since: float


@dataclass
class Storage:
    """The whole run: a shared storage, what happened to it, and what was promised to whom.

    Attributes
    ----------
    contents : dict of str to Content
        What each attempt would commit; the attempt is in its manifest, as the source position.
    acknowledged : dict of int to str
        The id of the snapshot whose commit returned, by version.
    refused : set of str
        Attempts that were told that they have no effect.
    """

    seed: int
    fault_rate: float = 0.3
    contents: dict[str | None, Content] = field(default_factory=lambda: {None: {}})
    acknowledged: dict[int, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    claims: list[Claim] = field(default_factory=list)
    sleepers: list[Sleeper] = field(default_factory=list)
    faulty: list[FaultyFolder] = field(default_factory=list)
    pinned: set[int] = field(default_factory=set)
    outcomes: Counter[str] = field(default_factory=Counter)
    depth: int = 0
    is_late: bool = False
    newest: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.shared = Clocked(open_folder(f"memory://{uuid.uuid4().hex}/enrich"))
        self.clean = SnapshotStore.on(self.shared)

    # What may happen.

    def step(self) -> None:
        """One process does one thing, perhaps overtaken by others in the middle of it, perhaps failing."""
        if self.depth == 0:
            # What is interrupted takes no time: the grace period must exceed the longest commit.
            self.shared.now += self.random.choice([0.0, 1.0, 10.0, 100.0])
        actions: list[Callable[[], None]] = [
            self.write,
            self.write,
            self.fall_asleep,
            self.wake_up,
            self.claim,
            self.write_claimed,
            self.write_claimed,
            self.repartition,
            self.collect,
            self.pin,
            self.lose_hint,
            self.settle,
        ]
        action = self.random.choice(actions)
        try:
            action()
        except Crash:
            self.outcomes["crash"] += 1
        except CommitOutcomeUnknown:
            self.outcomes["unknown"] += 1
        except (ConnectionError, TimeoutError):
            self.outcomes["storage failed"] += 1

    def write(self) -> None:
        """An optimistic coordinator: from the newest to the next."""
        pending = self.store().begin()
        self.commit(pending, *self.prepare(pending))

    def fall_asleep(self) -> None:
        claim = self.some_claim()
        try:
            pending = self.store().begin() if claim is None or self.random.random() < 0.5 else claim.begin()
        except WriterFenced:
            return
        handles, attempt = self.prepare(pending)
        self.sleepers.append(Sleeper(pending, handles, attempt, self.shared.now))

    def wake_up(self) -> None:
        if self.sleepers:
            sleeper = self.sleepers[self.random.randrange(len(self.sleepers))]
            if isinstance(sleeper.pending, ClaimedSnapshot) and sleeper.pending.claim._lock.locked():
                return
            self.sleepers.remove(sleeper)
            # Nobody can help a writer whose files outlive the grace period and go between its last look and its commit.
            self.is_late = self.shared.now - sleeper.since >= GRACE
            try:
                self.commit(sleeper.pending, sleeper.handles, sleeper.attempt)
            finally:
                self.is_late = False

    def claim(self) -> None:
        store = self.store()
        try:
            claim = store.claim(parallelism=2, max_parallelism=G)
        except CommitConflict:
            self.outcomes["claim lost"] += 1
            return
        self.acknowledge(claim.snapshot)
        self.claims = [*self.claims, claim][-3:]

    def write_claimed(self) -> None:
        claim = self.some_claim()
        if claim is None:
            return
        try:
            pending = claim.begin()
        except WriterFenced:
            self.claims.remove(claim)
            return
        self.commit(pending, *self.prepare(pending))

    def some_claim(self) -> Claim | None:
        """One that is not in the middle of a commit, where others would wait for it."""
        idle = [claim for claim in self.claims if not claim._lock.locked()]
        return self.random.choice(idle) if idle else None

    def repartition(self) -> None:
        store, before = self.store(), dict(self.acknowledged)
        try:
            self.acknowledge(store.repartition(self.random.randrange(1, 5)))
        except SnapshotNotFound:
            assert not before
        except CommitConflict:
            self.outcomes["conflict"] += 1

    def collect(self) -> None:
        store, before = self.store(), dict(self.acknowledged)
        try:
            report = store.collect_garbage(keep_last=self.random.randrange(1, 4), min_age=GRACE, dry_run=False)
        except SnapshotNotFound:
            assert not before
            return
        self.outcomes["expired"] += len(report.expired)
        self.outcomes["removed"] += len(report.files)

    def pin(self) -> None:
        """A user who is not in a hurry: pins are not taken and given up by two at once."""
        if self.depth or not self.newest:
            return
        if self.pinned and self.random.random() < 0.5:
            version = self.random.choice(sorted(self.pinned))
            self.pinned.discard(version)
            self.clean.unpin(version)
            return
        version = self.random.randrange(max(1, self.newest - 5), self.newest + 1)
        try:
            self.clean.pin(version)
        except SnapshotNotFound:
            return
        self.pinned.add(version)

    def lose_hint(self) -> None:
        """It may be lost, and fall behind; ahead of the newest it would say that a manifest is missing."""
        old = self.random.randrange(self.newest + 1)
        self.shared.replace(HINT, self.random.choice([b"", b"%d" % old, b"%020d" % old]))

    def settle(self) -> None:
        """What was late arrives."""
        for folder in self.faulty:
            folder.settle()
        self.faulty.clear()

    # How it happens.

    def store(self) -> SnapshotStore:
        """Return what a new process sees of the storage."""
        faults = {}
        if self.random.random() < self.fault_rate:
            for _ in range(self.random.randrange(1, 3)):
                faults[self.random.randrange(40)] = self.random.choice(list(Fault))
        faulty = FaultyFolder(self.shared, faults, self.random.randrange(2**32), fresh=("expired", "pins"))
        self.faulty.append(faulty)
        return SnapshotStore.on(Interrupted(faulty, self.interrupt))

    def interrupt(self) -> None:
        if self.depth < 2 and not self.is_late and self.random.random() < 0.03:
            self.depth += 1
            try:
                self.step()
            finally:
                self.depth -= 1

    def prepare(self, pending: PendingSnapshot) -> tuple[list[SubtaskHandle], str]:
        """Write the parts of a snapshot whose content continues its parent's."""
        attempt = f"attempt {len(self.contents)}"
        content = dict(self.contents[attempt_of(pending.parent)])
        key = f"key {self.random.randrange(4)}"
        content[key] = content.get(key, 0) + 1
        self.contents[attempt] = content
        return [pending.write_subtask(part) for part in parts({"count": content, "profile": {}})], attempt

    def commit(self, pending: PendingSnapshot, handles: list[SubtaskHandle], attempt: str) -> None:
        try:
            snapshot = pending.commit(handles, source_position={"attempt": attempt})
        except (CommitConflict, WriterFenced):
            self.refused.add(attempt)
            self.outcomes["conflict"] += 1
        except IncompleteSnapshot:
            # Its files were older than the grace period.
            self.refused.add(attempt)
            self.outcomes["too late"] += 1
        else:
            self.acknowledge(snapshot)

    def acknowledge(self, snapshot: Snapshot) -> None:
        assert snapshot.version not in self.acknowledged, "two writers were told that they have the version"
        self.acknowledged[snapshot.version] = snapshot.manifest.snapshot_id
        self.outcomes["acknowledged"] += 1

    # What must hold.

    def check(self) -> None:
        """The newest snapshot is whole and is what was promised; each version continues the one before."""
        latest = self.clean.latest()
        if latest is None:
            assert not self.acknowledged
            return
        assert latest.version >= max([self.newest, *self.acknowledged], default=0)
        self.newest = latest.version
        mark = expired_version(self.shared)
        assert self.pinned <= set(self.clean.versions())
        live = [version for version in self.clean.versions() if version > mark or version in self.pinned]
        assert live[-1] == latest.version
        before: Manifest | None = None
        for version in live:
            manifest = self.clean.load(version).manifest
            assert self.acknowledged.get(version, manifest.snapshot_id) == manifest.snapshot_id
            assert attempt_of(manifest) not in self.refused
            if before is not None and before.version + 1 == version:
                assert manifest.parent_id == before.snapshot_id
            before = manifest
        assert content_of(latest)["count"] == self.contents[attempt_of(latest.manifest)]

    def check_all(self) -> None:
        """Every version that remains is whole."""
        self.settle()
        self.check()
        mark = expired_version(self.shared)
        for version in self.clean.versions():
            if version > mark or version in self.pinned:
                assert self.clean.verify(version).ok
                snapshot = self.clean.load(version)
                assert content_of(snapshot)["count"] == self.contents[attempt_of(snapshot.manifest)]


def attempt_of(manifest: Manifest | None) -> str | None:
    return None if manifest is None or manifest.source_position is None else manifest.source_position["attempt"]
