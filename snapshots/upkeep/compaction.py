"""Compaction: rewrites the layers of keyed state as one file."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TypeAlias

from keygroups.ranges import KeyGroupRange
from snapshots.commit.manifest_creation import next_manifest, put_manifest
from snapshots.filesystem import Folder
from snapshots.format.columns import GATHERED_ROWS_MAX, PieceSize, common_key_type, index_columns, keyed_schema
from snapshots.format.expiry import unexpired
from snapshots.format.files import FileLabel, FileWriter, KeyedWriter
from snapshots.format.layers import carry_over
from snapshots.format.manifest import DataFile, Manifest, StateInfo, features_of, manifest_name
from snapshots.restore.reader import Span, StateReader, in_schema, merge, runs, stored_key_type
from snapshots.restore.snapshot import Snapshot

Run: TypeAlias = list[Span]
"""Neighbouring ranges, each with its layers."""


def compact(folder: Folder, snapshot: Snapshot, now: int) -> Snapshot:
    """Commit a snapshot with the same content in fewer files, or return it unchanged; see `SnapshotStore.compact`.

    Values that have expired by `now` (milliseconds since the epoch) are left out.
    """
    parent = snapshot.manifest
    files = compacted_files(folder, parent, now)
    if files == parent.files:
        return snapshot
    manifest = next_manifest(
        parent, "compact", files=files, required_features=features_of(files, parent.states, parent.channels)
    )
    return Snapshot(folder, put_manifest(folder, manifest))


def compacted_files(folder: Folder, manifest: Manifest, now: int) -> tuple[DataFile, ...]:
    """Rewrite ranges that have deltas, or that are in a partly outdated file, as new files.

    One key group and two files are in memory at a time.

    Parameters
    ----------
    folder : Folder
        The operator's folder.
    manifest : Manifest
        The snapshot to compact.
    now : int
        The processing time (milliseconds since the epoch): values that have expired by then are left out.

    Returns
    -------
    tuple of DataFile
        All files of a snapshot with the same content; the manifest's own files if there is nothing to do.
    """
    path = folder.path(manifest_name(manifest.version))
    with FileWriter(folder, uuid.uuid4().hex) as files:
        for info in manifest.states:
            layers = StateReader(folder, manifest.files_of("keyed", "delta", state=info.name), path)
            for run in _runs(layers.spans(KeyGroupRange(0, manifest.max_parallelism - 1))):
                _write(files, info, manifest.version + 1, run, now)
        new = files.stored()
    if not new:
        return manifest.files
    others = (file for file in manifest.files if file.kind not in {"keyed", "delta"})
    return (*carry_over(manifest.files_of("keyed", "delta"), new), *new, *others)


def _runs(spans: Run) -> Iterator[Run]:
    """Join neighbouring ranges that have to be rewritten: a base is rewritten completely or not at all."""
    changed = {
        base.file.path for _, (base, *deltas) in spans if deltas or base.file.key_groups != base.file.file_key_groups
    }
    run: Run = []
    for span, layers in spans:
        if layers[0].file.path in changed:
            run.append((span, layers))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _write(files: FileWriter, info: StateInfo, version: int, run: Run, now: int) -> None:
    found = {layer for _, layers in run for layer in layers if layer.file.rows}
    columns = index_columns(info.kind)
    types = [common_key_type({stored_key_type(layer, column) for layer in found}) for column in columns]
    schema = keyed_schema(info, *types)
    label = FileLabel(kind="keyed", state=info.name, subtask=run[0][1][0].file.subtask, version=version)
    writer = KeyedWriter(files, label, schema, KeyGroupRange(run[0][0].start, run[-1][0].end))
    piece = PieceSize(GATHERED_ROWS_MAX)
    for span, layers in run:
        for key_groups, tables in runs(span, layers, piece):
            writer.add(key_groups.start, [in_schema(unexpired(merge(tables), now), schema)])
    writer.finish()
