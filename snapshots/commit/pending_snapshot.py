"""A snapshot that is being written: workers write parts, and the coordinator commits them together."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from keygroups.arguments import check_instance
from keygroups.events import Value, observed
from keygroups.names import STEP_NAME
from keygroups.ranges import KeyGroupRange
from keygroups.representation import representation
from snapshots.commit.completeness import (
    ATTEMPTS_PREFIX_CHARACTERS,
    check_covered,
    check_follows,
    check_stored,
    whole_parts,
)
from snapshots.commit.manifest_creation import now_text, put_manifest
from snapshots.commit.part_writer import SubtaskHandle, write_subtask
from snapshots.filesystem import Folder
from snapshots.format.columns import KEY_ENCODING
from snapshots.format.delivered import last_delivered, undelivered
from snapshots.format.layers import carry_over
from snapshots.format.manifest import DataFile, Manifest, StateInfo, features_of
from snapshots.format.sealing import check_json
from snapshots.format.steps import of_step
from snapshots.format.subtask import SubtaskSnapshot
from snapshots.lineage import new_lineage
from snapshots.named_manifest import AnyManifest, complete, head_of, load_committed, within
from snapshots.observing import log, observed_rescale, sizes_of
from snapshots.restore.snapshot import Snapshot

_PARTS = "pass what the `snapshot()` of operators returned: one part for each subtask"


def _new_prefix() -> str:
    return uuid.uuid4().hex[:ATTEMPTS_PREFIX_CHARACTERS]


@dataclass(frozen=True, slots=True)
class PendingSnapshot:
    """A snapshot that is not visible yet. Picklable: workers get a copy.

    A pickle only names the parent, so it is small. A process that unpickles it reads the parent's manifest, and of a
    large one only what its subtasks need.

    Attributes
    ----------
    folder : Folder
        The operator's folder.
    operator_id : str
        The operator of the snapshot.
    attempts_prefix : str
        The unique prefix of the ids of all attempts to write a part.
    """

    folder: Folder
    operator_id: str
    _parent: AnyManifest | None
    attempts_prefix: str = field(default_factory=_new_prefix, kw_only=True)
    _parents: dict[str, Manifest] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def first(cls, folder: Folder, operator_id: str) -> PendingSnapshot:
        """Begin the first version, for a run that found none when it began.

        It is not based on what may be there by now: another run has committed that, and this one has not restored it.
        So the later one's commit raises `CommitConflict`.
        """
        return cls(folder, operator_id, None)

    def __repr__(self) -> str:
        return representation(self, {"version": self.version, "uri": self.folder.uri})

    @property
    def parent(self) -> Manifest | None:
        """The complete description of the snapshot on which this one is based: the newest one when it began."""
        return None if self._parent is None else complete(self._parent)

    @property
    def version(self) -> int:
        """The version that a commit would create."""
        return 1 if self._parent is None else head_of(self._parent).version + 1

    def __reduce__(self) -> tuple[Any, ...]:
        head = None if self._parent is None else head_of(self._parent)
        parent = None if head is None else (head.version, head.snapshot_id)
        return _begun_on, (self.folder, self.operator_id, parent, self.attempts_prefix)

    def write_subtask(
        self, snapshot: SubtaskSnapshot, outputs: pa.Table | None = None, *, step: str | None = None
    ) -> SubtaskHandle:
        """Write one subtask's part. Any process may call it, and may call it again after a failure.

        Parameters
        ----------
        snapshot : SubtaskSnapshot
            The result of the operator's `snapshot()`.
        outputs : pyarrow.Table, optional
            Outputs to deliver once the snapshot is committed; in a job, the outputs of one step only.
        step : str, optional
            The step of a job that the subtask belongs to: letters, digits, `_` and `-`. A job writes the parts of all
            its steps, and commits them together.

        Raises
        ------
        ConfigError
            The part is not what an operator's `snapshot()` returns, or the step is not a valid name.
        UnstorableValue
            A value has a type that cannot be stored; no snapshot refers to the files written so far.
        """
        check_instance("snapshot", snapshot, SubtaskSnapshot, reason=_PARTS)
        if step is not None:
            STEP_NAME.check("step", step)
        attempt_id = self.attempts_prefix + uuid.uuid4().hex[ATTEMPTS_PREFIX_CHARACTERS:]
        with observed(log, logging.DEBUG, "write", **self._place) as found:
            parent = self._parent_of(snapshot.key_groups) if step is None else self._parent_of_step(step)
            handle = write_subtask(self.folder, attempt_id, snapshot, parent, outputs, step)
            found |= {"subtask_index": handle.subtask_index, **sizes_of(handle.files)}
        return handle

    def commit(
        self,
        handles: Iterable[SubtaskHandle],
        *,
        source_position: dict[str, Any] | None = None,
        metrics: dict[str, float] | None = None,
    ) -> Snapshot:
        """Commit the snapshot, unless another writer has taken its version.

        Raises
        ------
        ConfigError
            The source position cannot be stored as JSON without loss.
        IncompleteSnapshot
            The handles do not cover every key group of every step exactly once, or do not match the stored files.
        UnequalCopies
            Two subtasks hold different copies of a broadcast operator state.
        IncompatibleSnapshot
            The parent has another max parallelism or hash, or is of an operator where a job commits, or vice versa.
        CommitConflict
            Another writer committed this version.
        CommitOutcomeUnknown
            The storage failed and could not be read back.
        OSError
            The storage refused; nothing was committed.
        """
        check_json("source_position", source_position)
        with observed(log, logging.INFO, "snapshot", **self._place) as found:
            manifest = self._manifest(whole_parts(handles), source_position, metrics or {})
            manifest = put_manifest(self.folder, manifest, self.attempts_prefix)
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

    def _parent_of(self, key_groups: KeyGroupRange) -> Manifest | None:
        """Return what the parent says to the subtask that owns some key groups."""
        return None if self._parent is None else within(self._parent, key_groups)

    def _parent_of_step(self, step: str) -> Manifest | None:
        """Return what the parent says about a step; all subtasks of the step use the same."""
        if self.parent is None:
            return None
        if step not in self._parents:
            self._parents[step] = of_step(self.parent, step)
        return self._parents[step]

    @property
    def _place(self) -> dict[str, Value]:
        return {"operator_id": self.operator_id, "version": self.version}

    def _manifest(
        self,
        steps: tuple[tuple[SubtaskHandle, ...], ...],
        source_position: dict[str, Any] | None,
        metrics: dict[str, float],
    ) -> Manifest:
        """Check that the parts are complete, and return the manifest that names them."""
        parts, firsts = tuple(chain.from_iterable(steps)), [step[0] for step in steps]
        first, channels = firsts[0], tuple(part.channel for part in parts)
        check_follows(self.parent, first, [one.step for one in firsts])
        check_stored(self.folder, parts)
        files = self._files(parts)
        states = tuple(chain.from_iterable(map(_with_codecs, steps)))
        check_covered(files, [info.name for info in states], first.max_parallelism)
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
            operator_states=tuple(state for one in firsts for state in one.operator_states),
            files=files,
            channels=channels,
            in_flight_count=sum(part.in_flight_count for part in parts),
            source_position=source_position,
            output_schema=next((one.output_schema for one in firsts if one.output_schema is not None), None),
            metrics=metrics,
            required_features=features_of(files, states, channels),
            lineage=self._lineage(parts),
            file_lists=() if self.parent is None else self.parent.file_lists,
        )

    def _lineage(self, parts: Iterable[SubtaskHandle]) -> str:
        """Return the parent's lineage; in a first snapshot, the one under which the parts have made their calls."""
        if self.parent is not None and self.parent.lineage is not None:
            return self.parent.lineage
        own = next((part.lineage for part in parts if part.lineage is not None), None)
        return new_lineage() if own is None else own

    def _files(self, parts: Iterable[SubtaskHandle]) -> tuple[DataFile, ...]:
        """Return the files of all parts, and the parent's files that are still valid.

        A job keeps the outputs of versions that are not marked as delivered: its sink may be behind its commits.
        """
        new = [file for part in parts for file in part.files]
        if self.parent is None:
            return tuple(new)
        declared = {info.name for part in parts for info in part.states}
        old = [file for file in self.parent.files_of("keyed", "delta") if file.state in declared]
        keyed = carry_over(old, [file for file in new if file.kind in {"keyed", "delta"}])
        return (*keyed, *self._waiting_outputs(parts), *new)

    def _waiting_outputs(self, parts: Iterable[SubtaskHandle]) -> Iterable[DataFile]:
        outputs = () if self.parent is None else self.parent.files_of("output")
        if not outputs or all(part.step is None for part in parts):
            return ()
        return chain.from_iterable(undelivered(outputs, last_delivered(self.folder)))


def write_and_commit(
    pending: PendingSnapshot,
    subtask_snapshots: Iterable[SubtaskSnapshot] | Mapping[str, Iterable[SubtaskSnapshot]],
    source_position: dict[str, Any] | None,
) -> Snapshot:
    """Write and commit the parts of all subtasks, or of all steps by the name of the step."""
    check_instance("subtask_snapshots", subtask_snapshots, Iterable, reason=_PARTS)
    by_step = subtask_snapshots if isinstance(subtask_snapshots, Mapping) else {None: subtask_snapshots}
    handles = [pending.write_subtask(part, step=step) for step, parts in by_step.items() for part in parts]
    return pending.commit(handles, source_position=source_position)


def _begun_on(
    folder: Folder, operator_id: str, parent: tuple[int, str] | None, attempts_prefix: str
) -> PendingSnapshot:
    manifest = None if parent is None else load_committed(folder, *parent)
    return PendingSnapshot(folder, operator_id, manifest, attempts_prefix=attempts_prefix)


def _with_codecs(parts: tuple[SubtaskHandle, ...]) -> tuple[StateInfo, ...]:
    """Return the states of an operator or a step with the codecs of all its parts."""
    return tuple(
        replace(info, codecs=tuple(sorted(set[str]().union(*(part.codecs[info.name] for part in parts)))))
        for info in parts[0].states
    )
