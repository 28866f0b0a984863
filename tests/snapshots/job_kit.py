"""Jobs: the snapshots of several operators, in one store as the steps of a job and each in a store of its own."""

from __future__ import annotations

from collections.abc import Mapping

from snapshots import OperatorStateCut, Snapshot, SnapshotStore, SubtaskSnapshot
from snapshots.format.steps import of_step
from tests.snapshot_kit import G, new_store


def source_parts(parallelism: int = 2, max_parallelism: int = G, items: int = 5) -> list[SubtaskSnapshot]:
    """Return a source: a step without keyed state, whose positions are a split operator state."""
    return [
        SubtaskSnapshot(
            subtask_index=subtask,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            hash="xxhash64",
            operator_states=(
                OperatorStateCut("positions", "split", tuple((n, 10 * n) for n in range(subtask, items, parallelism))),
            ),
        )
        for subtask in range(parallelism)
    ]


def alone(job: Snapshot, step: str) -> Snapshot:
    """Return a step of a job's snapshot as if it were the snapshot of an operator."""
    return Snapshot(job.folder, of_step(job.manifest, step))


def write_both(
    job: SnapshotStore, stores: Mapping[str, SnapshotStore], parts: Mapping[str, list[SubtaskSnapshot]]
) -> Snapshot:
    """Write the same cuts as the steps of a job, and each to a store of its own."""
    for step, cuts in parts.items():
        stores[step].write(cuts)
    return job.write(parts)


def new_stores(*steps: str) -> dict[str, SnapshotStore]:
    return {step: new_store() for step in steps}
