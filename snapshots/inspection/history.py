"""The history of an operator: its versions, and what each of them added."""

from __future__ import annotations

from dataclasses import dataclass

from keygroups.representation import fields_repr
from snapshots.errors import SnapshotNotFound
from snapshots.format.manifest import Manifest
from snapshots.store import SnapshotStore


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
