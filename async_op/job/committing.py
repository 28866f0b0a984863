"""Writes the parts of a cut and commits them; the job's manifest is the only commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import pyarrow as pa

from async_op.epochs.coordinator import Coordinator
from async_op.epochs.position import JobPosition
from async_op.epochs.retention import Retention
from async_op.job.counters import Counts, added_up, counts_by_child, counts_of_written
from async_op.job.delivery import CommittedEpoch, tables_in
from async_op.job.outputs import OUTPUT_SCHEMA, EpochOutputs
from snapshots import PendingSnapshot, SnapshotStore, SubtaskHandle, SubtaskSnapshot
from snapshots.daemon_threads import DaemonPool
from snapshots.format.delivered import WrittenEpochs
from snapshots.restore.outputs import StoredOutputs

_WRITERS = 8
"""How many parts are written at the same time: on remote storage, most of the time is waiting."""

Part = tuple[str, SubtaskSnapshot]
"""The name of a step, and what one of its subtasks had at the cut."""

Written = tuple[SubtaskHandle, float]
"""A part that was written, and how many seconds that took."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What another process has written of a cut.

    Attributes
    ----------
    written : list of (SubtaskHandle, float)
        Its parts.
    counts : mapping of str to int
        What it has counted since the cut before.
    process : mapping of str to int
        Its process id, the subtasks that it has, and its processor time since the cut before.
    table : pyarrow.Table or None
        The outputs that its parts have; None if they are too many to be sent, and have to be read back.
    """

    written: Sequence[Written]
    counts: Counts
    process: Counts
    table: pa.Table | None


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
        self,
        pending: PendingSnapshot,
        parts: Sequence[Part],
        outputs: EpochOutputs,
        counts: Counts,
        others: Sequence[Contribution] = (),
        written_epochs: WrittenEpochs = MappingProxyType({}),
    ) -> CommittedEpoch | None:
        """Write the parts, and commit them with the parts of other processes, with the counts of the cut.

        Returns the epoch to deliver; None if it has no outputs. When this returns or raises, no part is being written
        any more.
        """
        written = write_parts(pending, parts, None if others else outputs.table())
        written += [one for other in others for one in other.written]
        handles = [handle for handle, _ in written]
        counts = added_up([counts, *(other.counts for other in others)])
        metrics = counts | counts_of_written(handles, sum(seconds for _, seconds in written))
        metrics |= counts_by_child([other.counts | other.process for other in others])
        position = JobPosition(
            epoch=pending.version,
            parallelism=parts[0][1].parallelism,
            keys=self._keys,
            written=dict(written_epochs),
        )
        snapshot = self.commit(pending, handles, position, metrics)
        own = [stored for stored in snapshot.outputs() if stored.version == snapshot.version]
        if not own:
            outputs.close()
            return None
        (stored,) = own
        tables = outputs.tables if not others else _tables_of(others, stored)
        return CommittedEpoch(identity=stored.identity, tables=tables, close=outputs.close)


def _tables_of(others: Sequence[Contribution], stored: StoredOutputs) -> Callable[[], Iterable[pa.Table]]:
    """Return the outputs of other processes, or read them back where they are too many to be sent."""
    tables = [other.table for other in others if other.table is not None]
    return (lambda: tables) if len(tables) == len(others) else partial(tables_in, stored)


def write_parts(pending: PendingSnapshot, parts: Sequence[Part], outputs: pa.Table | None) -> list[Written]:
    """Write parts of a cut at the same time; when this returns or raises, none is being written any more.

    The first part of the last step has all outputs, in the order in which they came.
    """
    if not parts:
        return []
    last = parts[-1][0]
    first = next(part for name, part in parts if name == last)
    writers = DaemonPool(min(_WRITERS, len(parts)), "keygroups write")
    try:
        writing = []
        for name, part in parts:
            own = outputs if name == last else None
            if own is not None and part is not first:
                own = OUTPUT_SCHEMA.empty_table()
            writing.append(writers.submit(_write_part, pending, name, part, own))
        return [future.result() for future in writing]
    finally:
        writers.shutdown(wait=True, cancel_futures=True)


def _write_part(pending: PendingSnapshot, name: str, part: SubtaskSnapshot, outputs: pa.Table | None) -> Written:
    started = time.monotonic()
    handle = pending.write_subtask(part, outputs, step=name)
    return handle, time.monotonic() - started
