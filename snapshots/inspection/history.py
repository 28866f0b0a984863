"""The versions of an operator: what each of them added."""

from __future__ import annotations

from dataclasses import dataclass

from snapshots.errors import SnapshotNotFound
from snapshots.manifest import Manifest
from snapshots.store import SnapshotStore


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSummary:
    """One version, by its manifest alone.

    Attributes
    ----------
    version : int
        The version.
    parent_version : int or None
        What it continues.
    created_at, operation : str
        When and why it was committed.
    parallelism, max_parallelism : int
        P and G.
    states, files, deltas, rows, bytes, in_flight : int
        How many of each there are; bytes are those of all files that it names.
    bytes_added : int
        Of the files that it added.
    pinned : bool
        Whether retention leaves it alone.
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
    """Return the newest versions, the newest first; a manifest is read for each.

    Parameters
    ----------
    store : SnapshotStore
        The operator's.
    limit : int
        At most so many.

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
            continue  # removed by retention since it was listed
        found.append(VersionSummary.of(manifest, pinned=version in pinned))
    return found
