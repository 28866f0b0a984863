"""Errors of snapshots; each says what to do next."""

from __future__ import annotations

from keygroups.errors import ConfigError, KeyGroupsError, in_message
from keygroups.ranges import KeyGroupRange


class SnapshotNotFound(KeyGroupsError, FileNotFoundError):
    """There is no such snapshot."""

    uri: str
    """The folder."""
    version: int | None = None
    """The requested version; None for the newest."""
    nearby: tuple[str, ...] = ()
    """Nearby folders that have snapshots."""
    advice: str | None = None
    """What to do, if it is not the usual."""

    def _message(self) -> str:
        wanted = "no snapshot" if self.version is None else f"no snapshot of version {self.version}"
        return f"{wanted} in {self.uri}{self._usual_advice() if self.advice is None else self.advice}"

    def _usual_advice(self) -> str:
        cause = "check the URI (it names one operator's folder)" if self.version is None else "it may have expired"
        return f"; {cause}; to see which versions there are, run `keygroups inspect {self.uri}`"


class EmptyBesideOthers(UserWarning):
    """There is no snapshot where one was asked for, but there are some in folders inside or beside this one.

    Attributes
    ----------
    uri : str
        The folder.
    nearby : tuple of str
        The folders that have snapshots.
    """

    def __init__(self, uri: str, nearby: tuple[str, ...]) -> None:
        super().__init__(uri, nearby)
        self.uri = uri
        self.nearby = nearby

    def __str__(self) -> str:
        return (
            f"{self.uri} has no snapshot, so its operator begins empty; there are snapshots in "
            f"{', '.join(self.nearby)}: if it is not new, check uri and operator_id"
        )


class SnapshotCorrupted(KeyGroupsError):
    """A file of a snapshot is missing or is not what its manifest says."""

    is_permanent = True

    path: str
    """The damaged file."""
    damage: str
    """What is wrong with it."""
    key_groups: KeyGroupRange | None = None
    """The key groups of the file; None for a manifest."""

    def _message(self) -> str:
        owned = self.key_groups
        held = "" if owned is None else f", which holds key groups {owned.start} to {owned.end},"
        return f"{self.path}{held} is damaged: {self.damage}; {self._next_step()}"

    def _next_step(self) -> str:
        if "/manifests/" not in self.path:
            return (
                "run `keygroups verify` to see what else is damaged, "
                "then put the file back from a copy, or load an older version by its number"
            )
        return (
            "put it back from a copy of the folder, or load an older version by its number; or, if it is the newest, "
            "to give it up and continue from the version before: move this file out of the folder, then run "
            "`keygroups claim URI --accept-loss` (SnapshotStore.claim(accept_loss=True))"
        )


class ManifestMissing(SnapshotCorrupted):
    """A manifest that must have existed is missing, and no newer one has replaced it."""

    def __init__(self, uri: str, path: str, version: int, newest: int | None) -> None:
        self.uri: str = uri
        """The operator's folder."""
        self.version: int = version
        """The newest version that is known to have existed."""
        self.newest: int | None = newest
        """The newest version that still exists; None if there is none."""
        self.path = path
        self.damage: str = "it is missing"
        self.key_groups: KeyGroupRange | None = None
        left = "no other is there" if newest is None else f"version {newest} is the newest that is there"
        super(SnapshotCorrupted, self).__init__(
            f"{uri} had a snapshot of version {version}, whose manifest {path} is missing, and {left}: put it back "
            "from a copy of the folder; or, to give up what is missing and continue from what exists, run "
            f"`keygroups claim {uri} --accept-loss` (SnapshotStore.claim(accept_loss=True))"
        )


class IncompatibleSnapshot(KeyGroupsError, ValueError):
    """A snapshot does not fit its intended use."""

    is_permanent = True

    what: str
    """The property that differs, such as "max parallelism"."""
    expected: object
    """What the reader needs."""
    found: object
    """What the snapshot has."""
    next_step: str
    """What to do."""

    _template = "{what} of the snapshot is {found!r}, but {expected!r} is needed: {next_step}"


class FolderMoved(IncompatibleSnapshot):
    """A folder holds the snapshots of another operator: it was moved or copied by hand. Nothing is damaged."""

    uri: str
    """The folder."""
    operator_id: str
    """The operator that the snapshots belong to."""
    is_copy: bool
    """Whether the folder of that operator is still there, beside this one."""

    def __init__(self, uri: str, operator_id: str, *, is_copy: bool) -> None:
        self.uri = uri
        self.operator_id = operator_id
        self.is_copy = is_copy
        parent, _, name = uri.rpartition("/")
        original = f"{parent}/{operator_id}"
        if is_copy:
            advice = (
                f"{uri} was moved or copied by hand, and {original} has snapshots, too; for its newest one under the "
                f"name {name!r} remove {uri} first, then run `keygroups copy {original} {uri}`; to keep what is in "
                f"{uri}, such as a backup, move it into another folder, under the name {operator_id!r}"
            )
        else:
            advice = (
                f"{uri} was moved or copied by hand; move it to {original}, where it can be used as it is, and for a "
                f"snapshot under the name {name!r} run `keygroups copy {original} {uri}`"
            )
        super().__init__("operator", name, operator_id, advice)


class WrongStep(ConfigError):
    """A snapshot of a job was used without a step, or with one that it does not have; or a plain one with a step."""

    step_names: tuple[str, ...]
    """The steps of the snapshot; none if it is of one operator."""

    def __init__(self, step: str | None, step_names: tuple[str, ...]) -> None:
        self.step_names = step_names
        there = ", ".join(step_names)
        if not step_names:
            reason = "the snapshot is of one operator and has no steps: leave it out"
        elif step is None:
            reason = f"the snapshot is of a job: name one of its steps {there}"
        else:
            reason = f"the job has no such step: name one of {there}"
        super().__init__("step", step, reason)


class IncompleteSnapshot(KeyGroupsError, ValueError):
    """The parts given to a commit do not make a whole snapshot."""

    problem: str
    """What is missing, duplicate or different."""

    _template = "{problem}; nothing was committed: commit exactly one part of every subtask of one run"


class UnequalCopies(IncompleteSnapshot):
    """Two subtasks hold different copies of a broadcast operator state."""

    state: str
    """The name of the state."""
    subtasks: tuple[int, int]
    """The first two subtasks that differ."""

    def __init__(self, state: str, subtasks: tuple[int, int]) -> None:
        self.state = state
        self.subtasks = subtasks
        one, other = subtasks
        self.problem: str = f"subtasks {one} and {other} hold different copies of operator state {state!r}"
        super(IncompleteSnapshot, self).__init__(
            f"{self.problem}; nothing was committed: in `open`, write the same entries in every subtask, such as only "
            "while `runtime.restored` is false, or use an OperatorListState for what may differ"
        )


class DuplicateKey(KeyGroupsError, ValueError):
    """A key, or an entry of a key, occurs twice in the rows of a state."""

    state: str
    """The state."""
    key: object
    """The key."""
    entry: object = None
    """In a list the position, in a map the map key; else None."""

    def _message(self) -> str:
        what = f"key {in_message(self.key)}"
        if self.entry is not None:
            what = f"entry {in_message(self.entry)} of {what}"
        return (
            f"state {self.state!r} was given {what} twice; nothing was committed: keep one row for it, such as the "
            "newest"
        )


class SnapshotExists(KeyGroupsError, FileExistsError):
    """A first snapshot cannot be written, because there is one already."""

    uri: str
    """The operator's folder."""
    version: int
    """The newest version there."""

    _template = (
        "{uri} already has snapshots, the newest of version {version}; nothing was written: choose a folder without "
        "snapshots (another operator id), or change what is there (`keygroups edit`, SnapshotStore.edit)"
    )


class CommitConflict(KeyGroupsError):
    """Another writer committed the version first."""

    is_permanent = True

    uri: str
    """The operator's folder."""
    version: int
    """The version that both writers wanted."""

    _template = (
        "version {version} of {uri} was committed by another writer; make sure that one coordinator runs per operator, "
        "then start again from the newest version"
    )


class CommitOutcomeUnknown(KeyGroupsError):
    """A commit was sent, but the storage failed before its outcome could be read back."""

    uri: str
    """The operator's folder."""
    version: int
    """The version whose outcome is unknown."""

    _template = (
        "it is unknown whether version {version} of {uri} was committed; delete nothing, and load the newest version "
        "once the storage answers again"
    )


class WriterFenced(KeyGroupsError):
    """A newer owner has taken over, so this writer must not commit any more."""

    is_permanent = True

    uri: str
    """The operator's folder."""
    version: int
    """The version that this writer expected to write."""
    newest: int
    """The newest version in the storage."""
    committed: str = ""
    """When and by which process the newest version was committed; empty if that is not known."""

    def _message(self) -> str:
        by = f" ({self.committed})" if self.committed else ""
        return (
            f"{self.uri} is already at version {self.newest}{by}, so this writer, which would write version "
            f"{self.version}, is stale; stop it: another coordinator owns the operator"
        )
