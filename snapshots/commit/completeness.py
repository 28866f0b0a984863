"""Which parts make a whole snapshot: one of each subtask, and in a job of each step, all of one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from keygroups.ranges import range_of
from snapshots.commit.part_writer import SubtaskHandle
from snapshots.errors import IncompatibleSnapshot, IncompleteSnapshot, UnequalCopies
from snapshots.filesystem import Folder
from snapshots.format.manifest import DataFile, Manifest
from snapshots.format.steps import of_step

ATTEMPTS_PREFIX_CHARACTERS = 16
"""The ids of all attempts of one commit share a prefix of this length, so one listing finds all their files."""

_SHARED_BY_STEPS = ("parallelism", "max_parallelism", "hash", "parent_id")
"""The attributes that all parts of a snapshot must share."""

_SHARED_IN_STEP = (*_SHARED_BY_STEPS, "states", "operator_states", "output_schema")
"""The attributes that all parts of a step, or of the one operator, must share."""


def whole_parts(handles: Iterable[SubtaskHandle]) -> tuple[tuple[SubtaskHandle, ...], ...]:
    """Return one part of each subtask, step by step in the order of their first parts; an operator is one step.

    Raises
    ------
    IncompleteSnapshot
        A subtask is missing, or the parts do not belong together.
    UnequalCopies
        Two subtasks hold different copies of a broadcast operator state.
    """
    by_step: dict[str | None, list[SubtaskHandle]] = {}
    for handle in handles:
        by_step.setdefault(handle.step, []).append(handle)
    if not by_step:
        raise IncompleteSnapshot("no subtask wrote its part")
    if None in by_step and len(by_step) > 1:
        raise IncompleteSnapshot("some parts are of a step and some are not")
    steps = tuple(map(_one_of_each_subtask, by_step.values()))
    _check_steps([parts[0] for parts in steps])
    return steps


def _check_steps(steps: Sequence[SubtaskHandle]) -> None:
    first = steps[0]
    for step in steps[1:]:
        for what in _SHARED_BY_STEPS:
            if getattr(step, what) != getattr(first, what):
                raise IncompleteSnapshot(f"the steps {first.step} and {step.step} differ in {what}")
    with_outputs = [str(step.step) for step in steps if step.output_schema is not None]
    if len(with_outputs) > 1:
        raise IncompleteSnapshot(f"one step of a job has outputs, not several: {', '.join(with_outputs)}")


def _one_of_each_subtask(handles: Iterable[SubtaskHandle]) -> tuple[SubtaskHandle, ...]:
    """Keep one attempt of each subtask, and check that together they are the whole operator or step."""
    parts: dict[int, SubtaskHandle] = {}
    for handle in handles:
        parts.setdefault(handle.subtask_index, handle)
    first = next(iter(parts.values()))
    of = "" if first.step is None else f" of step {first.step}"
    for part in parts.values():
        for what in _SHARED_IN_STEP:
            if getattr(part, what) != getattr(first, what):
                which = f"subtasks {first.subtask_index} and {part.subtask_index}{of}"
                raise IncompleteSnapshot(f"{which} differ in {what}")
        if part.key_groups != range_of(part.subtask_index, part.parallelism, part.max_parallelism):
            raise IncompleteSnapshot(f"subtask {part.subtask_index}{of} wrote the key groups of another")
    missing = set(range(first.parallelism)) - parts.keys()
    if missing:
        raise IncompleteSnapshot(f"subtasks {sorted(missing)}{of} wrote nothing")
    _check_copies(parts.values())
    return tuple(parts[index] for index in range(first.parallelism))


def _check_copies(parts: Iterable[SubtaskHandle]) -> None:
    """Check that all subtasks hold the same copy of each broadcast state: a restore reads any one of them."""
    first, *others = parts
    for part in others:
        for name, digest in part.copies.items():
            if digest != first.copies[name]:
                raise UnequalCopies(name, (first.subtask_index, part.subtask_index))


def check_follows(parent: Manifest | None, first: SubtaskHandle, steps: Iterable[str | None]) -> None:
    """Check that parts continue their parent: they were written on it, and nothing that it holds has been forgotten.

    Raises
    ------
    IncompleteSnapshot
        The parts were written on another snapshot, or a step of the parent has no part.
    IncompatibleSnapshot
        The parent has another max parallelism or hash, or it has the content of an operator where a job commits.
    """
    if parent is not None:
        check_fixed(parent, first.max_parallelism, first.hash)
    if first.parent_id != (None if parent is None else parent.snapshot_id):
        raise IncompleteSnapshot(f"subtask {first.subtask_index} wrote its part on top of another snapshot")
    if parent is not None:
        _check_nothing_lost(parent, [step for step in steps if step is not None])


def _check_nothing_lost(parent: Manifest, steps: Sequence[str]) -> None:
    if bool(steps) != bool(parent.step_names) and _has_content(parent):
        next_step = "a job and a plain operator cannot continue each other: use another folder"
        raise IncompatibleSnapshot("the list of steps", list(steps), list(parent.step_names), next_step)
    for step in parent.step_names if steps else ():
        if step not in steps and _has_content(of_step(parent, step)):
            raise IncompleteSnapshot(
                f"step {step}, which has state or elements in version {parent.version}, has no part"
            )


def _has_content(manifest: Manifest) -> bool:
    return bool(manifest.states) or any(file.kind != "output" for file in manifest.files)


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
