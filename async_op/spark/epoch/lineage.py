"""Which epochs of a pipeline the next one in a chain has missed, and whether the two belong together."""

from __future__ import annotations

from dataclasses import dataclass

from async_op.spark.epoch.history import Adopt, adopted, check_keys
from async_op.spark.epoch.position import BEGINNING, EpochRef, SourcePosition
from async_op.spark.errors import UnrelatedPipelines
from async_op.spark.rows.routing import Routing
from snapshots import Snapshot, SnapshotNotFound, SnapshotStore
from snapshots.surroundings import newest_or_empty

_ADOPT_STATE = "keep the state: start(..., adopt='state')"
_ADOPT_CHECKPOINT = "begin with empty state: start(..., adopt='checkpoint')"


@dataclass(frozen=True, slots=True)
class Missed:
    """What the next pipeline has missed.

    Attributes
    ----------
    epochs : tuple of Snapshot
        The snapshots whose outputs it must have, oldest first.
    reason : str or None
        Why it cannot have them; None if it can.
    """

    epochs: tuple[Snapshot, ...] = ()
    reason: str | None = None


def missed_epochs(upstream: SnapshotStore, seen: EpochRef) -> Missed:
    """Return the epochs after one that the next pipeline has seen, by going back from the newest.

    Each epoch names the one before it. So versions between them, such as claims, do not matter, and neither does that
    of an epoch which has been seen.
    """
    snapshot = newest_or_empty(upstream.folder)
    epochs: list[Snapshot] = []
    while (ref := SourcePosition.of(snapshot).ref) != seen:
        assert snapshot is not None or ref == BEGINNING, "without a snapshot there is no epoch"
        if snapshot is None or ref.epoch <= seen.epoch:
            return Missed(reason=f"{upstream.uri} has no epoch {seen.epoch} of attempt {seen.attempt!r}")
        epochs.insert(0, snapshot)
        previous = SourcePosition.of(snapshot).previous
        if previous == seen:
            break
        gone = Missed(reason=f"the outputs of {upstream.uri} before epoch {ref.epoch} have been removed")
        if previous is None:
            return gone
        try:
            snapshot = None if previous == BEGINNING else upstream.load(previous.epoch)
        except SnapshotNotFound:
            return gone
        if SourcePosition.of(snapshot).ref != previous:
            return gone
    return Missed(tuple(epochs))


def join_pipelines(
    upstream: SnapshotStore, store: SnapshotStore, routing: Routing, adopt: Adopt | None, *, parallelism: int
) -> None:
    """Make sure that the state of a pipeline belongs to the snapshots of the one before it.

    Raises
    ------
    IncompatibleSnapshot
        The newest snapshot has other key columns, or other types of them.
    UnrelatedPipelines
        They do not belong together, and `adopt` is None or names what does not exist.
    """
    latest = newest_or_empty(store.folder)
    check_keys(latest, routing)
    position = SourcePosition.of(latest)
    reason = missed_epochs(upstream, position.upstream or BEGINNING).reason
    if position.query_id is not None:
        reason = f"{store.uri} has the state of query {position.query_id}, not of a chain"
    if position.run is not None:
        reason = f"{store.uri} has a part of run {position.run.run_id!r}, which has not finished"
    if reason is None:
        return
    newest = SourcePosition(upstream=SourcePosition.of(newest_or_empty(upstream.folder)).ref)
    if not adopted(store, routing, adopt, newest, parallelism=parallelism):
        ways = [_ADOPT_CHECKPOINT] if latest is None else [_ADOPT_STATE, _ADOPT_CHECKPOINT]
        raise UnrelatedPipelines(store.uri, upstream.uri, reason, ways)
