"""Checks every byte of a snapshot against its manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from keygroups.ranges import KeyGroupRange
from keygroups.representation import counted, fields_repr, html_table
from snapshots.errors import ManifestMissing, SnapshotCorrupted, SnapshotNotFound
from snapshots.filesystem import Folder
from snapshots.folder_hints import not_found
from snapshots.format import compute as pc
from snapshots.format.file_lists import read_list
from snapshots.format.manifest import DataFile, ListInfo, Manifest, manifest_name
from snapshots.format.parquet import KEY_GROUP, ParquetReader, damage_named
from snapshots.format.subtask import NO_KEY_GROUP
from snapshots.lineage import LINEAGE, verify_lineage
from snapshots.progress import Progress, progress_of
from snapshots.restore.reader import StateReader
from snapshots.versions import load_manifest, load_requested, lost_text, lost_versions, newest_version


@dataclass(frozen=True, slots=True)
class Problem:
    """One damaged file: its path, the key groups in it (None for a manifest) and what is wrong."""

    path: str
    key_groups: KeyGroupRange | None
    what: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a verification.

    Attributes
    ----------
    version : int
        The snapshot's version.
    files, bytes : int
        The number of files, lists of files included, and of their bytes, as the manifest says.
    problems : tuple of Problem
        The damaged files; empty for a sound snapshot.
    """

    version: int
    files: int
    bytes: int
    problems: tuple[Problem, ...]

    __repr__ = fields_repr

    def _repr_html_(self) -> str:
        verdict = "is whole" if self.ok else f"has {counted(len(self.problems), 'problem')}"
        title = f"snapshot {self.version} {verdict}: {counted(self.files, 'file')}, {self.bytes:,} bytes"
        return html_table(title, ("path", "problem"), [(problem.path, problem.what) for problem in self.problems])

    @property
    def ok(self) -> bool:
        """Whether no damage was found."""
        return not self.problems


def verify_version(folder: Folder, version: int | None, progress: Progress | None = None) -> VerifyReport:
    """Read every file of a version and compare it with the manifest.

    None means the newest version; then older versions must also be there, unless retention has removed them, and the
    folder's lineage must be the manifest's.

    Raises
    ------
    SnapshotNotFound
        There is no such version.
    FolderMoved
        The folder holds the snapshots of another operator.
    """
    tell = progress_of(progress)
    try:
        checked = newest_version(folder) if version is None else version
    except ManifestMissing as error:
        return VerifyReport(error.version, 0, 0, (_problem(error),))
    if checked is None:
        raise not_found(folder)
    try:
        report = verify(folder, load_requested(folder, checked), tell)
    except SnapshotCorrupted as error:
        report = VerifyReport(checked, 0, 0, (_problem(error),))
    if version is not None:
        return report
    return replace(report, problems=(*report.problems, *_lost(folder), *_other_lineage(folder, checked)))


def verify(folder: Folder, manifest: Manifest, tell: Progress) -> VerifyReport:
    """Read every file of a snapshot and compare it with the manifest."""
    problems, done = [], 0
    objects = manifest.objects
    total = sum(one.bytes for one in objects)
    for one in objects:
        try:
            _verify_object(folder, one)
        except SnapshotCorrupted as error:
            problems.append(_problem(error))
        done += one.bytes
        tell(done, total)
    try:
        _verify_layers(folder, manifest)
    except SnapshotCorrupted as error:
        problems.append(_problem(error))
    return VerifyReport(manifest.version, len(objects), total, tuple(problems))


def _lost(folder: Folder) -> Iterator[Problem]:
    for gap in lost_versions(folder):
        yield Problem(folder.path(manifest_name(gap[0])), None, lost_text(gap))


def _other_lineage(folder: Folder, newest: int) -> Iterator[Problem]:
    # Older manifests may have another lineage, which was changed since.
    try:
        verify_lineage(folder, load_manifest(folder, newest))
    except SnapshotNotFound:
        return  # retention removed it meanwhile
    except SnapshotCorrupted as error:
        if error.path == folder.path(LINEAGE):
            yield _problem(error)


def _problem(error: SnapshotCorrupted) -> Problem:
    return Problem(error.path, error.key_groups, error.damage)


def _verify_layers(folder: Folder, manifest: Manifest) -> None:
    """Check that each key group of each state has one base, and its deltas in order."""
    path = folder.path(manifest_name(manifest.version))
    for state in manifest.states:
        files = manifest.files_of("keyed", "delta", state=state.name)
        StateReader(folder, files, path).spans(KeyGroupRange(0, manifest.max_parallelism - 1))


def _verify_object(folder: Folder, one: DataFile | ListInfo) -> None:
    if isinstance(one, DataFile):
        _verify_file(folder, one)
    else:
        read_list(folder, one)  # again: the process may have had it before it was damaged


def _verify_file(folder: Folder, file: DataFile) -> None:
    path = folder.path(file.path)
    with damage_named(path, file.key_groups):
        data = folder.read(file.path, 0, file.bytes + 1)
    if len(data) != file.bytes:
        found = f"{len(data)} bytes" if len(data) < file.bytes else "more bytes"
        raise SnapshotCorrupted(path, f"{found} instead of {file.bytes}", file.key_groups)
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise SnapshotCorrupted(path, "its content is not what was written", file.key_groups)
    table = ParquetReader(folder, file).read_all()
    if table.num_rows != file.rows:
        raise SnapshotCorrupted(path, f"{table.num_rows} rows instead of {file.rows}", file.key_groups)
    if file.kind in {"keyed", "delta", "in_flight"}:
        _verify_key_groups(table, path, file)


def _verify_key_groups(table: pa.Table, path: str, file: DataFile) -> None:
    owned = file.file_key_groups
    column = table.column(KEY_GROUP)
    inside = pc.and_(pc.greater_equal(column, owned.start), pc.less_equal(column, owned.end))
    if file.kind == "in_flight":
        inside = pc.or_(inside, pc.equal(column, NO_KEY_GROUP))
    if not pc.all(inside, min_count=0).as_py():
        raise SnapshotCorrupted(path, "it has rows of key groups outside of its range", owned)
