"""Writes the parts of a cut and commits them; the job's manifest is the only commit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from async_op.epochs.coordinator import Coordinator
from async_op.epochs.position import JobPosition
from async_op.job.counters import Counts, counts_of_written
from async_op.job.delivery import CommittedEpoch
from async_op.job.outputs import OUTPUT_SCHEMA, EpochOutputs
from async_op.retention import Retention
from snapshots import PendingSnapshot, SnapshotStore, SubtaskHandle, SubtaskSnapshot
from snapshots.threads import DaemonPool

_WRITERS = 8
"""How many parts are written at the same time: on remote storage, most of the time is waiting."""

Part = tuple[str, SubtaskSnapshot]
"""The name of a step, and what one of its subtasks had at the cut."""

Written = tuple[SubtaskHandle, float]
"""A part that was written, and how many seconds that took."""


class Committer(Coordinator):
    """Commits the snapshots of one job.

    Parameters
    ----------
    store, retention
        As for `Coordinator`.
    keys : mapping of str to list of str or None
        The key columns of each step, as for `JobPosition`.
    """

    def __init__(
        self,
        store: SnapshotStore,
        retention: Retention | None = None,
        keys: Mapping[str, list[str] | None] = MappingProxyType({}),
    ) -> None:
        super().__init__(store, retention)
        self._keys = dict(keys)

    def commit_cut(
        self, pending: PendingSnapshot, parts: Sequence[Part], outputs: EpochOutputs, counts: Counts
    ) -> CommittedEpoch | None:
        """Write the parts, and commit them with the counts of the cut.

        Returns the epoch to deliver; None if it has no outputs. When this returns or raises, no part is being written
        any more.
        """
        written = self._write(pending, parts, outputs.table())
        handles = [handle for handle, _ in written]
        metrics = counts | counts_of_written(handles, sum(seconds for _, seconds in written))
        position = JobPosition(parallelism=parts[0][1].parallelism, keys=self._keys)
        snapshot = self.commit(pending, handles, position, metrics)
        own = [stored for stored in snapshot.outputs() if stored.version == snapshot.version]
        if not own:
            outputs.close()
            return None
        (stored,) = own
        return CommittedEpoch(identity=stored.identity, tables=outputs.tables, close=outputs.close)

    def _write(self, pending: PendingSnapshot, parts: Sequence[Part], outputs: pa.Table) -> list[Written]:
        last = parts[-1][0]
        writers = DaemonPool(min(_WRITERS, len(parts)), "keygroups write")
        try:
            writing = [
                writers.submit(_write_part, pending, name, part, outputs if name == last else None)
                for name, part in parts
            ]
            return [future.result() for future in writing]
        finally:
            writers.shutdown(wait=True, cancel_futures=True)


def _write_part(pending: PendingSnapshot, name: str, part: SubtaskSnapshot, outputs: pa.Table | None) -> Written:
    """Write one part. The first part of the last step has all outputs of the epoch, in the order in which they came."""
    if outputs is not None and part.subtask_index:
        outputs = OUTPUT_SCHEMA.empty_table()
    started = time.monotonic()
    handle = pending.write_subtask(part, outputs, step=name)
    return handle, time.monotonic() - started
