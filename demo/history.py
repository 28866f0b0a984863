"""What the manifests say of the run: the durable record, which a kill cannot take back."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

from demo.workspace import OPERATOR_ID, Workspace
from snapshots import Snapshot, SnapshotStore


class History:
    """The committed snapshots of the run, each read once.

    Parameters
    ----------
    workspace : Workspace
        The folder of the run.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._store = SnapshotStore(workspace.snapshots, OPERATOR_ID)
        self._snapshots: dict[int, Snapshot] = {}

    def refresh(self) -> None:
        """Read what was committed meanwhile."""
        for version in self._store.versions():
            if version not in self._snapshots:
                self._snapshots[version] = self._store.load(version)

    @property
    def snapshots(self) -> list[Snapshot]:
        """All snapshots, in the order of their commit."""
        return [self._snapshots[version] for version in sorted(self._snapshots)]

    @property
    def epochs(self) -> list[Snapshot]:
        """The snapshots that an epoch wrote; a rescale commits one too, over the files of its parent."""
        snapshots = self.snapshots
        rescaled = {new.version for old, new in pairwise(snapshots) if new.manifest.files == old.manifest.files}
        return [snapshot for snapshot in snapshots if snapshot.version not in rescaled]

    @property
    def version(self) -> int:
        """The newest version; 0 if there is none."""
        return max(self._snapshots, default=0)

    @property
    def in_flight(self) -> int:
        """Elements in flight at the newest barrier."""
        return self.snapshots[-1].in_flight_count if self._snapshots else 0

    def total(self, counter: str) -> int:
        """Sum a counter over all epochs."""
        return sum(epoch.manifest.metrics[counter] for epoch in self.epochs)

    def bytes_written(self) -> int:
        """Bytes of all files that a snapshot names, each counted once."""
        return sum({file.path: file.bytes for snapshot in self.snapshots for file in snapshot.manifest.files}.values())


def committed_at(snapshot: Snapshot) -> float:
    """When a snapshot was committed, in seconds since 1970."""
    return datetime.fromisoformat(snapshot.manifest.created_at).timestamp()
