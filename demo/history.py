"""What the manifests say of the run: the durable record, which a kill cannot take back."""

from __future__ import annotations

from datetime import datetime

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
        self._told = 0

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
        """The snapshots that an epoch wrote; a restart and the command line commit some, too."""
        return [snapshot for snapshot in self.snapshots if snapshot.manifest.operation == "write"]

    def take_new_epochs(self) -> list[Snapshot]:
        """Return the epochs that no call has returned before."""
        new = self.epochs[self._told :]
        self._told += len(new)
        return new

    @property
    def version(self) -> int:
        """The newest version; 0 if there is none."""
        return max(self._snapshots, default=0)

    @property
    def in_flight(self) -> int:
        """Elements in flight at the newest barrier."""
        return self.snapshots[-1].in_flight_count if self._snapshots else 0

    def total(self, counter: str, until: int | None = None) -> int:
        """Sum a counter over all epochs, or over those up to a version."""
        epochs = (epoch for epoch in self.epochs if until is None or epoch.version <= until)
        return sum(epoch.manifest.metrics[counter] for epoch in epochs)

    def bytes_written(self) -> int:
        """Bytes of all files that a snapshot names, each counted once."""
        return sum({file.path: file.bytes for snapshot in self.snapshots for file in snapshot.manifest.files}.values())


def in_words(epoch: Snapshot) -> str:
    """Tell in a line what an epoch did, and at which parallelism."""
    metrics, position = epoch.manifest.metrics, epoch.source_position
    assert position is not None, "an epoch has one"
    what = "drain without input" if position["kind"] == "drain" else f"micro-batch {position['batch_id']}"
    return (
        f"epoch {epoch.version}, {what}, {epoch.parallelism} subtasks: {metrics['rows']:,} rows in, "
        f"{metrics['outputs']:,} out, {epoch.in_flight_count:,} carried over in flight"
    )


def committed_at(snapshot: Snapshot) -> float:
    """When a snapshot was committed, in seconds since 1970."""
    return datetime.fromisoformat(snapshot.manifest.created_at).timestamp()
