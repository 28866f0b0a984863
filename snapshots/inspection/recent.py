"""The newest versions of an operator, followed while others commit."""

from __future__ import annotations

from keygroups.representation import representation
from snapshots.errors import SnapshotNotFound
from snapshots.filesystem import attempts
from snapshots.format.manifest import Manifest
from snapshots.inspection.activity import Activity, Commit
from snapshots.store import SnapshotStore

VERSIONS_MAX = 32
"""How many of the newest versions are read and kept."""


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
