"""A snapshot that is being written: workers write parts, and the coordinator commits them together."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from keygroups.events import Value, observed
from keygroups.ranges import range_of
from snapshots.commit.creation import now_text, put_manifest
from snapshots.commit.writer import SubtaskHandle, write_subtask
from snapshots.errors import IncompatibleSnapshot, IncompleteSnapshot
from snapshots.filesystem import Folder
from snapshots.format.columns import KEY_ENCODING
from snapshots.format.features import features_of
from snapshots.format.layers import carry_over
from snapshots.format.manifest import DataFile, Manifest, StateInfo, check_json
from snapshots.format.subtask import SubtaskSnapshot
from snapshots.observing import log, observed_rescale, sizes_of
from snapshots.restore.snapshot import Snapshot
from snapshots.versions import load_committed

ATTEMPTS_PREFIX_CHARACTERS = 16
"""The ids of all attempts of one commit share a prefix of this length, so one listing finds all their files."""

_SHARED = ("parallelism", "max_parallelism", "hash", "states", "operator_states", "parent_id", "output_schema")
"""The attributes that all parts of a snapshot must share."""


def _new_prefix() -> str:
    return uuid.uuid4().hex[:ATTEMPTS_PREFIX_CHARACTERS]


@dataclass(frozen=True, slots=True)
class PendingSnapshot:
    """A snapshot that is not visible yet. Picklable: workers get a copy.

    A pickle only names the parent, so it is small. A process that unpickles it reads the parent's manifest.

    Attributes
    ----------
    folder : Folder
        The operator's folder.
    operator_id : str
        The operator of the snapshot.
    parent : Manifest or None
        The snapshot on which this one is based: the newest one when it began.
    attempts_prefix : str
        The unique prefix of the ids of all attempts to write a part.
    """

    folder: Folder
    operator_id: str
    parent: Manifest | None
    attempts_prefix: str = field(default_factory=_new_prefix, kw_only=True)

    @property
    def version(self) -> int:
        """The version that a commit would create."""
        return 1 if self.parent is None else self.parent.version + 1

    def __reduce__(self) -> tuple[Any, ...]:
        parent = None if self.parent is None else (self.parent.version, self.parent.snapshot_id)
        return _begun_on, (self.folder, self.operator_id, parent, self.attempts_prefix)

    def write_subtask(self, snapshot: SubtaskSnapshot, outputs: pa.Table | None = None) -> SubtaskHandle:
        """Write one subtask's part. Any process may call it, and may call it again after a failure.

        Parameters
        ----------
        snapshot : SubtaskSnapshot
            The result of the operator's `snapshot()`.
        outputs : pyarrow.Table, optional
            Outputs to deliver once the snapshot is committed.

        Raises
        ------
        UnstorableValue
            A value has a type that cannot be stored; no snapshot refers to the files written so far.
        """
        attempt_id = self.attempts_prefix + uuid.uuid4().hex[ATTEMPTS_PREFIX_CHARACTERS:]
        with observed(log, logging.DEBUG, "write", **self._place) as found:
            handle = write_subtask(self.folder, attempt_id, snapshot, self.parent, outputs)
            found |= {"subtask_index": handle.subtask_index, **sizes_of(handle.files)}
        return handle

    def commit(
        self,
        handles: Iterable[SubtaskHandle],
        *,
        source_position: dict[str, Any] | None = None,
        metrics: dict[str, int] | None = None,
    ) -> Snapshot:
        """Commit the snapshot, unless somebody else has taken its version.

        Raises
        ------
        ConfigError
            The source position cannot be stored as JSON without loss.
        IncompleteSnapshot
            The handles do not cover every key group exactly once, or do not match the stored files.
        IncompatibleSnapshot
            The parent has another max parallelism or hash.
        CommitConflict
            Another writer committed this version.
        CommitOutcomeUnknown
            The storage failed and could not be read back.
        OSError
            The storage refused; nothing was committed.
        """
        check_json("source_position", source_position)
        with observed(log, logging.INFO, "snapshot", **self._place) as found:
            manifest = self._manifest(_one_of_each_subtask(handles), source_position, metrics or {})
            put_manifest(self.folder, manifest)
            kept = set() if self.parent is None else {file.path for file in self.parent.files}
            found |= {
                "parallelism": manifest.parallelism,
                "max_parallelism": manifest.max_parallelism,
                "in_flight": manifest.in_flight_count,
                **sizes_of(file for file in manifest.files if file.path not in kept),
            }
        if self.parent is not None and self.parent.parallelism != manifest.parallelism:
            with observed_rescale(self.operator_id) as tell:
                tell(self.parent, manifest)
        return Snapshot(self.folder, manifest)

    @property
    def _place(self) -> dict[str, Value]:
        return {"operator_id": self.operator_id, "version": self.version}

    def _manifest(
        self, parts: Sequence[SubtaskHandle], source_position: dict[str, Any] | None, metrics: dict[str, int]
    ) -> Manifest:
        """Check that the parts are complete, and return the manifest that names them."""
        first = parts[0]
        if self.parent is not None:
            check_fixed(self.parent, first.max_parallelism, first.hash)
        self._check_parent(first)
        check_stored(self.folder, parts)
        files = self._files(parts)
        check_covered(files, [info.name for info in first.states], first.max_parallelism)
        states = _with_codecs(first.states, parts)
        return Manifest(
            version=self.version,
            snapshot_id=uuid.uuid4().hex,
            parent_version=None if self.parent is None else self.parent.version,
            parent_id=None if self.parent is None else self.parent.snapshot_id,
            created_at=now_text(),
            operator_id=self.operator_id,
            max_parallelism=first.max_parallelism,
            parallelism=first.parallelism,
            hash=first.hash,
            key_encoding=KEY_ENCODING,
            states=states,
            operator_states=first.operator_states,
            files=files,
            channels=tuple(part.channel for part in parts),
            in_flight_count=sum(part.in_flight_count for part in parts),
            source_position=source_position,
            output_schema=first.output_schema,
            metrics=metrics,
            required_features=features_of(files, states),
        )

    def _files(self, parts: Iterable[SubtaskHandle]) -> tuple[DataFile, ...]:
        """Return the files of all parts, and the parent's files of keyed state that are still valid."""
        new = [file for part in parts for file in part.files]
        if self.parent is None:
            return tuple(new)
        declared = {info.name for part in parts for info in part.states}
        old = [file for file in self.parent.files_of("keyed", "delta") if file.state in declared]
        return (*carry_over(old, [file for file in new if file.kind in {"keyed", "delta"}]), *new)

    def _check_parent(self, part: SubtaskHandle) -> None:
        if part.parent_id != (None if self.parent is None else self.parent.snapshot_id):
            raise IncompleteSnapshot(f"subtask {part.subtask_index} wrote its part on top of another snapshot")


def _begun_on(
    folder: Folder, operator_id: str, parent: tuple[int, str] | None, attempts_prefix: str
) -> PendingSnapshot:
    manifest = None if parent is None else load_committed(folder, *parent)
    return PendingSnapshot(folder, operator_id, manifest, attempts_prefix=attempts_prefix)


def check_fixed(manifest: Manifest, max_parallelism: int | None, hash_: str | None) -> None:
    """Check the properties that are fixed once a snapshot exists; None matches every value.

    Raises
    ------
    IncompatibleSnapshot
        The snapshot has another max parallelism or hash.
    """
    for what, expected, found in (
        ("max parallelism", max_parallelism, manifest.max_parallelism),
        ("hash", hash_, manifest.hash),
    ):
        if expected not in (None, found):
            raise IncompatibleSnapshot(what, expected, found, "it is fixed once a snapshot exists")


def _one_of_each_subtask(handles: Iterable[SubtaskHandle]) -> list[SubtaskHandle]:
    """Keep one attempt of each subtask, and check that together they are the whole operator."""
    parts: dict[int, SubtaskHandle] = {}
    for handle in handles:
        parts.setdefault(handle.subtask_index, handle)
    if not parts:
        raise IncompleteSnapshot("no subtask wrote its part")
    first = next(iter(parts.values()))
    for part in parts.values():
        for what in _SHARED:
            if getattr(part, what) != getattr(first, what):
                raise IncompleteSnapshot(f"subtasks {first.subtask_index} and {part.subtask_index} differ in {what}")
        if part.key_groups != range_of(part.subtask_index, part.parallelism, part.max_parallelism):
            raise IncompleteSnapshot(f"subtask {part.subtask_index} wrote the key groups of another")
    missing = set(range(first.parallelism)) - parts.keys()
    if missing:
        raise IncompleteSnapshot(f"subtasks {sorted(missing)} wrote nothing")
    return [parts[index] for index in range(first.parallelism)]


def _with_codecs(states: Iterable[StateInfo], parts: Iterable[SubtaskHandle]) -> tuple[StateInfo, ...]:
    """Return the states with the codecs of all parts."""
    return tuple(
        replace(info, codecs=tuple(sorted(set[str]().union(*(part.codecs[info.name] for part in parts)))))
        for info in states
    )


def check_covered(files: Iterable[DataFile], states: Iterable[str], max_parallelism: int) -> None:
    """Check that each key group of each state has exactly one base file.

    Raises
    ------
    IncompleteSnapshot
        A key group has no base file, or several.
    """
    bases = [file for file in files if file.kind == "keyed"]
    for state in states:
        ranges = sorted((file.key_groups.start, file.key_groups.end) for file in bases if file.state == state)
        starts = [start for start, _ in ranges]
        if starts != [0, *(end + 1 for _, end in ranges[:-1])] or ranges[-1][1] != max_parallelism - 1:
            raise IncompleteSnapshot(f"the files of state {state!r} do not hold each key group exactly once")


def check_stored(folder: Folder, parts: Sequence[SubtaskHandle]) -> None:
    """Check that the coordinator finds every file of every part, with the size that its writer reported.

    One listing shows the sizes of a thousand files; readers compare the digests. This check mainly finds a path that is
    not shared, so that each worker wrote to its own disk.

    Raises
    ------
    IncompleteSnapshot
        A file is missing, has another size, or does not belong to its part.
    """
    names = [file.path for part in parts for file in part.files]
    if len(set(names)) < len(names):
        raise IncompleteSnapshot("two parts name the same file")
    for part in parts:
        rows = sum(file.rows for file in part.files if file.kind == "in_flight")
        if rows != part.in_flight_count:
            raise IncompleteSnapshot(
                f"subtask {part.subtask_index} had {part.in_flight_count} elements in flight and wrote {rows}"
            )
        keyed = [file.key_groups for file in part.files if file.kind in {"keyed", "delta"}]
        if any(key_groups.intersection(part.key_groups) != key_groups for key_groups in keyed):
            raise IncompleteSnapshot(f"subtask {part.subtask_index} names a file of key groups of another")
    _check_sizes(folder, {file.path: (part.subtask_index, file.bytes) for part in parts for file in part.files})


def _check_sizes(folder: Folder, written: Mapping[str, tuple[int, int]]) -> None:
    """Compare the sizes of files, by path, with those that the subtasks reported."""
    found: dict[str, int] = {}
    for prefix in {name[: len("data/") + ATTEMPTS_PREFIX_CHARACTERS] for name in written}:
        found |= folder.sizes(prefix)
    for name, (subtask, expected) in written.items():
        if found.get(name) == expected:
            continue
        # A listing may be stale, so files that it does not show are looked up one by one.
        size = _size(folder, name)
        if size != expected:
            shown = "nothing" if size is None else f"{size} bytes"
            raise IncompleteSnapshot(
                f"subtask {subtask} wrote {expected} bytes to {name}, and the coordinator finds {shown}: "
                "all workers must reach the same storage"
            )


def _size(folder: Folder, name: str) -> int | None:
    try:
        return folder.size(name)
    except FileNotFoundError:
        return None
