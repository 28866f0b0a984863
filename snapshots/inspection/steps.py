"""The steps of a job, each with its share of a snapshot; from the manifest alone."""

from __future__ import annotations

from dataclasses import dataclass

from snapshots.format.manifest import Manifest
from snapshots.format.steps import of_step


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
