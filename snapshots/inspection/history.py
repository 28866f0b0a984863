"""The versions of an operator: what each of them added, and the newest ones, followed while others commit."""

from __future__ import annotations

from dataclasses import dataclass

from keygroups.representation import fields_repr, representation
from snapshots.errors import SnapshotNotFound
from snapshots.filesystem import attempts
from snapshots.format.manifest import Manifest
from snapshots.inspection.activity import Activity, Commit
from snapshots.store import SnapshotStore

VERSIONS_MAX = 32
"""How many of the newest versions are read and kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSummary:
    """A summary of one version, from its manifest alone.

    Attributes
    ----------
    version : int
        The version.
    parent_version : int or None
        The version on which it is based.
    created_at, operation : str
        When and why it was committed.
    parallelism, max_parallelism : int
        The number of subtasks and of key groups.
    states, files, deltas, rows, bytes, in_flight : int
        The number of each; bytes are the sum over all files that the version names.
    bytes_added : int
        The bytes of the files that it added.
    pinned : bool
        Whether it is protected from retention.
    """

    version: int
    parent_version: int | None
    created_at: str
    operation: str
    parallelism: int
    max_parallelism: int
    states: int
    files: int
    deltas: int
    rows: int
    bytes: int
    bytes_added: int
    in_flight: int
    pinned: bool

    __repr__ = fields_repr

    @classmethod
    def of(cls, manifest: Manifest, *, pinned: bool) -> VersionSummary:
        """Summarize a manifest."""
        files = manifest.whole_files
        return cls(
            version=manifest.version,
            parent_version=manifest.parent_version,
            created_at=manifest.created_at,
            operation=manifest.operation,
            parallelism=manifest.parallelism,
            max_parallelism=manifest.max_parallelism,
            states=len(manifest.states),
            files=len(files),
            deltas=sum(file.kind == "delta" for file in files),
            rows=manifest.rows_total,
            bytes=manifest.bytes_total,
            bytes_added=sum(file.bytes for file in files if file.version == manifest.version),
            in_flight=manifest.in_flight_count,
            pinned=pinned,
        )


def history(store: SnapshotStore, limit: int = 20) -> list[VersionSummary]:
    """Return the newest versions, the newest first; this reads one manifest per version.

    Parameters
    ----------
    store : SnapshotStore
        The store of the operator.
    limit : int
        The most versions to return.

    Raises
    ------
    SnapshotCorrupted
        A manifest is damaged.
    """
    pinned = set(store.pinned())
    found = []
    for version in reversed(store.versions()[-limit:]):
        try:
            manifest = store.load(version).manifest
        except SnapshotNotFound:
            continue  # retention has removed it since the listing
        found.append(VersionSummary.of(manifest, pinned=version in pinned))
    return found


class RecentVersions:
    """Follows the newest versions of an operator and reads each manifest once. One thread at a time may use it.

    It only reads. A look without a new version asks for the newest version and reads no manifest.

    Parameters
    ----------
    store : SnapshotStore
        The store of the operator.

    Examples
    --------
    >>> store = SnapshotStore("memory://followed", "enrich")
    >>> _ = store.claim(parallelism=2)
    >>> RecentVersions(store).activity(now=0.0).newest.operation
    'claim'
    """

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._newest: Manifest | None = None
        self._commits: list[Commit] = []

    def __repr__(self) -> str:
        return representation(self, {"store": self._store, "versions": len(self._commits)})

    def activity(self, now: float) -> Activity:
        """Read what is new, and return what the operator has been doing lately.

        Parameters
        ----------
        now : float
            The time in seconds since 1970.

        Raises
        ------
        SnapshotNotFound
            There is no snapshot, or none any more.
        SnapshotCorrupted
            A manifest is damaged or missing.
        """
        newest = self._read_newest()
        if newest is not self._newest:
            self._commits = self._up_to(newest)
            self._newest = newest
        return Activity.of(newest, self._commits, now)

    def _read_newest(self) -> Manifest:
        for _ in attempts():
            version = self._store.newest_version()
            if self._newest is not None and self._newest.version == version:
                return self._newest
            try:
                return self._store.load(version or None).manifest
            except SnapshotNotFound as error:
                if not version:
                    raise
                expired = error  # others have committed and collected garbage since
        raise expired

    def _up_to(self, newest: Manifest) -> list[Commit]:
        """Return the newest version and those before it, the newest first, as far as they are there.

        It goes from each version to its parent, so what is left of a folder that was emptied and filled again is
        forgotten, and no listing is needed.
        """
        known = {commit.snapshot_id: index for index, commit in enumerate(self._commits)}
        manifest, found = newest, [Commit.of(newest)]
        while len(found) < VERSIONS_MAX and manifest.parent_version is not None:
            if manifest.parent_id in known:
                found += self._commits[known[manifest.parent_id] :]
                break
            try:
                parent = self._store.load(manifest.parent_version).manifest
            except SnapshotNotFound:
                break  # retention has removed it
            if parent.snapshot_id != manifest.parent_id:
                break
            manifest = parent
            found.append(Commit.of(parent))
        return found[:VERSIONS_MAX]
