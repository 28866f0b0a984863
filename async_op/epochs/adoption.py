"""Whether a job or a pipeline may go on from the newest snapshot: what both check before they claim it.

A refused start then stops no running job. `changed_keys` compares key columns, and `snapshots.lineage` lineages.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from async_op.options import OperatorOptions
from snapshots import IncompatibleSnapshot, Snapshot
from snapshots.format.steps import of_step
from snapshots.restore.declared import check_operator_states, check_states


class RepartitionUndone(UserWarning):
    """A job or a pipeline starts with another parallelism than the one that its snapshot was repartitioned to.

    Attributes
    ----------
    chosen : int
        The parallelism of the newest snapshot, which was chosen since the last run.
    parallelism : int
        The parallelism that the job or the pipeline was given.
    """

    def __init__(self, chosen: int, parallelism: int) -> None:
        super().__init__(chosen, parallelism)
        self.chosen = chosen
        self.parallelism = parallelism

    def __str__(self) -> str:
        return (
            f"the newest snapshot was repartitioned to {self.chosen} subtasks, and parallelism={self.parallelism} "
            f"undoes that: pass parallelism={self.chosen} to keep it"
        )


def check_kind(latest: Snapshot | None, *, is_of_job: bool) -> None:
    """Raise `IncompatibleSnapshot` if a job finds the snapshot of an operator, or the other way round."""
    if latest is None or bool(latest.step_names) == is_of_job:
        return
    kinds = ["an operator's", "a job's"]
    name = "job_id" if is_of_job else "operator_id"
    advice = f"it was written by {'an operator or a pipeline' if is_of_job else 'a job'}: choose another {name}"
    raise IncompatibleSnapshot("the kind of snapshot", kinds[is_of_job], kinds[not is_of_job], advice)


def check_fixed(latest: Snapshot | None, *, max_parallelism: int | None, hash: str, parallelism: int | None) -> None:
    """Check what is fixed with the first snapshot; a max parallelism of None takes the snapshot's.

    Raises
    ------
    IncompatibleSnapshot
        The newest snapshot has another max parallelism or hash.
    """
    if latest is None:
        return
    for what, wanted, found, option in (
        ("max parallelism", max_parallelism, latest.max_parallelism, "--max-parallelism"),
        ("hash", hash, latest.manifest.hash, "--hash"),
    ):
        if wanted not in (None, found):
            place = f"{latest.folder.uri} --rewrite --parallelism {parallelism or latest.parallelism}"
            advice = f"pass the snapshot's, or rewrite it first: keygroups repartition {place} {option} {wanted}"
            raise IncompatibleSnapshot(what, wanted, found, advice)


def check_declared(latest: Snapshot | None, options: OperatorOptions, step: str | None = None) -> None:
    """Raise `IncompatibleSnapshot` if an operator, or a step of a job, does not declare the states of its snapshot."""
    if latest is not None:
        manifest, uri = of_step(latest.manifest, step), latest.folder.uri
        check_states(manifest, options.states, uri, step)
        check_operator_states(manifest, options.operator_states, uri, step)


def check_steps(latest: Snapshot, names: Sequence[str]) -> None:
    """Raise `IncompatibleSnapshot` if a snapshot has something in a step that a job does not have, or has elsewhere.

    An element in flight has passed the steps before its own. In another order it would pass one of them twice, or none.
    """
    unknown = [name for name in latest.step_names if name not in names and _holds_anything(latest, name)]
    if unknown:
        advice = "give the step that replaces it this name, or put the step back to finish what it has"
        raise IncompatibleSnapshot("a step", sorted(names), ", ".join(unknown), advice)
    found = [name for name in latest.step_names if name in names]
    wanted = [name for name in names if name in found]
    if found != wanted and latest.in_flight_count:
        advice = "put the steps back in this order, and let stop(drain=True) finish what is in flight first"
        what = "the order of the steps of elements in flight"
        raise IncompatibleSnapshot(what, ", ".join(wanted), ", ".join(found), advice)


def warn_of_repartition(latest: Snapshot | None, noted: int | None, parallelism: int | None) -> None:
    """Warn with `RepartitionUndone` if a run begins with another parallelism than was chosen.

    Parameters
    ----------
    latest : Snapshot or None
        The newest snapshot.
    noted : int or None
        The parallelism in its source position, which the last run has noted.
    parallelism : int or None
        The parallelism of the run; None for the snapshot's.
    """
    if latest is None or noted in (None, latest.parallelism) or parallelism in (None, latest.parallelism):
        return
    warnings.warn(RepartitionUndone(latest.parallelism, parallelism), stacklevel=2)


def _holds_anything(snapshot: Snapshot, name: str) -> bool:
    step = of_step(snapshot.manifest, name)
    return bool(step.states or step.in_flight_count or step.files_of("operator"))
