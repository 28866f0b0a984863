"""The steps of a job, all in one manifest: the states of a step are named `step.state` there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from keygroups.names import in_step, split_step
from snapshots.errors import WrongStep
from snapshots.format.manifest import DataFile, Manifest, OperatorStateInfo, StateInfo

_Named = TypeVar("_Named", StateInfo, OperatorStateInfo)


def check_step(manifest: Manifest, step: str | None) -> None:
    """Check that a snapshot has a step; None is the only step of a plain operator.

    Raises
    ------
    WrongStep
        There is no such step, or a job's step is not named.
    """
    if step not in (manifest.step_names or (None,)):
        raise WrongStep(step, manifest.step_names)


def of_step(manifest: Manifest, step: str | None) -> Manifest:
    """Return what a manifest says about one step, as the manifest of a plain operator.

    Parameters
    ----------
    manifest : Manifest
        The manifest of a job.
    step : str or None
        The name of the step. None returns the manifest itself. A step that the job does not have is empty.
    """
    if step is None:
        return manifest
    has_steps = bool(manifest.step_names)
    files = tuple(_files_of_step(manifest.files, step)) if has_steps else ()
    return replace(
        manifest,
        states=_of_step(manifest.states if has_steps else (), step),
        operator_states=_of_step(manifest.operator_states if has_steps else (), step),
        files=files,
        channels=tuple(replace(channel, step=None) for channel in manifest.channels if channel.step == step),
        in_flight_count=sum(file.rows for file in files if file.kind == "in_flight"),
        required_features=tuple(feature for feature in manifest.required_features if feature != "steps"),
        file_lists=(),
    )


def step_of(manifest: Manifest, file: DataFile) -> str | None:
    """Return the step that a file belongs to; None if the snapshot is of one operator."""
    return split_step(file.state)[0] if manifest.step_names and file.state is not None else None


def files_in_step(step: str, files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    """Return a step's files as they stand in the manifest of the job."""
    return tuple(replace(file, state=step if file.state is None else in_step(step, file.state)) for file in files)


def states_in_step(step: str, infos: Iterable[_Named]) -> tuple[_Named, ...]:
    """Return a step's states as they stand in the manifest of the job."""
    return tuple(replace(info, name=in_step(step, info.name)) for info in infos)


def _of_step(infos: Iterable[_Named], step: str) -> tuple[_Named, ...]:
    return tuple(replace(info, name=split_step(info.name)[1]) for info in infos if split_step(info.name)[0] == step)


def _files_of_step(files: Iterable[DataFile], step: str) -> Iterator[DataFile]:
    for file in files:
        assert file.state is not None, "all files of a job name their step"
        held_by, name = split_step(file.state)
        if held_by == step:
            yield replace(file, state=name or None)
