"""Sizes from the manifest alone: of a range of key groups, of the share of each subtask, of the steps of a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keygroups.ranges import KeyGroupRange, range_of, subtask_of
from snapshots.format.layers import share_of
from snapshots.format.manifest import DataFile, Manifest
from snapshots.format.steps import of_step


@dataclass(frozen=True, slots=True)
class Size:
    """Rows and bytes of a range of key groups.

    Attributes
    ----------
    rows, bytes : int
        The number of each.
    is_exact : bool
        False if a file extends beyond the range and is counted by its share of key groups, or if a delta may have rows
        for keys that its base also has.
    """

    rows: int
    bytes: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class SubtaskShare:
    """What one subtask would restore of a snapshot.

    Attributes
    ----------
    index : int
        The number of the subtask.
    key_groups : KeyGroupRange
        The range that it owns.
    state : Size
        Its keyed state.
    in_flight : Size
        Its in-flight elements, watermarks included.
    """

    index: int
    key_groups: KeyGroupRange
    state: Size
    in_flight: Size


def size_of(files: Iterable[DataFile], key_groups: KeyGroupRange) -> Size:
    """Add up the parts of files in a range.

    A file is assumed to hold the same amount for each key group of its own range.

    Parameters
    ----------
    files : iterable of DataFile
        The files to count.
    key_groups : KeyGroupRange
        The range.
    """
    rows = size = 0.0
    is_exact = True
    for file in files:
        common = file.key_groups.intersection(key_groups)
        if common is None:
            continue
        share = share_of(file, key_groups)
        rows += file.rows * share
        size += file.bytes * share
        is_exact = is_exact and common == file.file_key_groups and file.kind != "delta"
    return Size(round(rows), round(size), is_exact)


def shares_of(manifest: Manifest) -> tuple[SubtaskShare, ...]:
    """Return the share of each subtask, for the manifest's own parallelism."""
    states = _by_subtask(manifest, manifest.files_of("keyed", "delta"))
    in_flight = _by_subtask(manifest, manifest.files_of("in_flight"))
    owned = [range_of(index, manifest.parallelism, manifest.max_parallelism) for index in range(manifest.parallelism)]
    return tuple(
        SubtaskShare(index, key_groups, size_of(states[index], key_groups), size_of(in_flight[index], key_groups))
        for index, key_groups in enumerate(owned)
    )


def _by_subtask(manifest: Manifest, files: Iterable[DataFile]) -> list[list[DataFile]]:
    # Sorted out first, because there may be as many subtasks as files: looking at each pair would take minutes.
    found: list[list[DataFile]] = [[] for _ in range(manifest.parallelism)]
    for file in files:
        first, last = (
            subtask_of(key_group, manifest.parallelism, manifest.max_parallelism)
            for key_group in (file.key_groups.start, file.key_groups.end)
        )
        for subtask in range(first, last + 1):
            found[subtask].append(file)
    return found


@dataclass(frozen=True, slots=True)
class StepSummary:
    """A step of a job.

    Attributes
    ----------
    name : str
        The step.
    states : tuple of str
        Its keyed states, without the name of the step.
    rows, bytes : int
        The rows and bytes of all its files.
    in_flight : int
        Its elements in flight, watermarks included.
    watermarks : tuple of int or None
        The newest watermark that each of its channels had emitted.
    """

    name: str
    states: tuple[str, ...]
    rows: int
    bytes: int
    in_flight: int
    watermarks: tuple[int | None, ...]

    @property
    def watermark(self) -> int | None:
        """The lowest watermark of its channels; None if one of them has none."""
        marks = [mark for mark in self.watermarks if mark is not None]
        return min(marks) if len(marks) == len(self.watermarks) else None


def steps_of(manifest: Manifest) -> tuple[StepSummary, ...]:
    """Return the steps of a job, in order; none if the snapshot is of one operator."""
    return tuple(_summary(name, of_step(manifest, name)) for name in manifest.step_names)


def _summary(name: str, step: Manifest) -> StepSummary:
    states = tuple(state.name for state in step.states)
    return StepSummary(name, states, step.rows_total, step.bytes_total, step.in_flight_count, step.watermarks)
