"""What the page shows beside the snapshot itself: the newest epochs, what has changed since the parent, and samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from snapshots.errors import IncompatibleSnapshot, SnapshotNotFound
from snapshots.format.schemas import ENTRY_COLUMNS
from snapshots.inspection import Commit, Difference, RecentVersions, compare
from snapshots.restore.reader import decode_column
from snapshots.restore.snapshot import Snapshot
from snapshots.restore.streaming import StateStream, all_key_groups
from snapshots.store import SnapshotStore


@dataclass(frozen=True, slots=True)
class ReportedEpoch:
    """An epoch of a pipeline or a job.

    Attributes
    ----------
    version : int
        The version that it committed.
    seconds : float
        The time since the version before.
    calls : int or None
        The calls that it made; None if it does not say.
    """

    version: int
    seconds: float
    calls: int | None


@dataclass(frozen=True, slots=True)
class StateRow:
    """A row of a state."""

    key: Any
    entry: Any
    value: Any


def newest_epochs(store: SnapshotStore, snapshot: Snapshot) -> list[ReportedEpoch]:
    """Return the epochs among the newest versions up to a snapshot, from old to new; this reads their manifests."""
    return epochs_among(RecentVersions(store).activity(0.0).recent, snapshot.version)


def epochs_among(commits: Sequence[Commit], version_max: int) -> list[ReportedEpoch]:
    """Return the epochs among versions, the oldest of which only tells when the next one began."""
    return [
        ReportedEpoch(after.version, after.seconds - before.seconds, after.count("calls"))
        for before, after in pairwise(commits)
        if after.is_epoch and after.version <= version_max
        # Another machine with another clock may have taken over.
        and before.seconds is not None and after.seconds is not None and after.seconds >= before.seconds
    ]  # fmt: skip


def since_parent(store: SnapshotStore, snapshot: Snapshot) -> Difference | None:
    """Compare a snapshot with its parent; None if that is gone or has other key groups."""
    manifest = snapshot.manifest
    if manifest.parent_version is None:
        return None
    try:
        parent = store.load(manifest.parent_version)
        return compare(parent, snapshot) if parent.manifest.snapshot_id == manifest.parent_id else None
    except (SnapshotNotFound, IncompatibleSnapshot):
        return None


def samples_of(snapshot: Snapshot, limit: int) -> dict[str, list[StateRow]]:
    """Return the first rows of each state, by key group."""
    return {name: _samples(snapshot, name, limit) for name in snapshot.state_names} if limit else {}


def _samples(snapshot: Snapshot, name: str, limit: int) -> list[StateRow]:
    stream = StateStream.of(snapshot.folder, snapshot.manifest, name)
    entry = next((column for column in ENTRY_COLUMNS.values() if column in stream.schema.names), None)
    found: list[StateRow] = []
    for table in stream.tables(all_key_groups(snapshot.manifest)):
        rows = table.slice(0, limit - len(found))
        entries = [None] * rows.num_rows if entry is None else decode_column(rows, entry)
        found += map(StateRow, decode_column(rows, "key"), entries, decode_column(rows, "value"))
        if len(found) >= limit:
            break
    return found
