"""Whether a pipeline's state belongs to its source, a checkpoint or the pipeline before, and what counts if not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from async_op.epochs.position import BEGINNING, EpochRef, SourcePosition
from async_op.operator.key_compatibility import check_columns
from async_op.spark.epoch.checkpoint import Checkpoint
from async_op.spark.errors import UnrelatedHistories, UnrelatedPipelines
from async_op.spark.rows.routing import Routing
from keygroups.errors import ConfigError
from snapshots import Snapshot, SnapshotNotFound, SnapshotStore
from snapshots.folder_hints import newest_or_empty
from snapshots.inputs import remove_input
from snapshots.upkeep.bootstrap import move_source, start_empty

Adopt = Literal["state", "checkpoint"]

_OF_A_SOURCE = ("query_id", "batch_id", "upstream", "run")
"""The fields of a position that another source does not take over."""

_KEEP = "keep the state: start(..., adopt='state')"
_BEGIN = "begin with empty state: start(..., adopt='checkpoint')"
_ADOPT_STATE = "keep the state and let rows count twice or not at all: start(..., adopt='state')"
_ADOPT_CHECKPOINT = "begin with empty state where the checkpoint stands: start(..., adopt='checkpoint')"


def join_histories(
    store: SnapshotStore, checkpoint: Checkpoint, routing: Routing, adopt: Adopt | None, *, parallelism: int
) -> None:
    """Make sure that the snapshots and the checkpoint belong together.

    Each epoch is committed before Spark counts its batch as done. So the newest snapshot belongs to the checkpoint's
    newest committed batch, or of the batch after it. If it is not, the start is refused unless `adopt` says which of
    the two counts. This happens before the operator is claimed, so that a refused start stops no other query.

    Raises
    ------
    IncompatibleSnapshot
        The newest snapshot has other key columns, or other types of them: rows would not find their state.
    UnrelatedHistories
        They do not belong together, and `adopt` is None or names what does not exist.
    """
    if adopt not in (None, "state", "checkpoint"):
        raise ConfigError("adopt", adopt, "use one of None, 'state', 'checkpoint'")
    latest = newest_or_empty(store.folder)
    check_keys(latest, routing)
    reason = _reason(store.uri, SourcePosition.of(latest), checkpoint)
    if reason is None:
        return
    position = SourcePosition(query_id=checkpoint.query_id, batch_id=checkpoint.committed)
    run = SourcePosition.of(latest).run
    if not _adopted(store, routing, adopt, position, parallelism=parallelism):
        ways = [_ADOPT_CHECKPOINT] if latest is None else [_ADOPT_STATE, _ADOPT_CHECKPOINT]
        if run is not None:
            ways.insert(0, f"finish the run: run(…, run_id={run.run_id!r})")
        raise UnrelatedHistories(store.uri, checkpoint.location, reason, ways)
    if run is not None:
        remove_input(store.folder, run.run_id)  # it is given up


def _adopted(
    store: SnapshotStore, routing: Routing, adopt: Adopt | None, position: SourcePosition, *, parallelism: int
) -> bool:
    """Move the state to another position of its source, or start empty there; returns whether `adopt` says which."""
    if adopt == "checkpoint":
        sizes = {"parallelism": parallelism, "max_parallelism": routing.max_parallelism}
        start_empty(store.begin(), **sizes, hash=routing.hash, source_position=position.to_json())
        return True
    latest = newest_or_empty(store.folder)
    if adopt != "state" or latest is None:
        return False
    stored = {name: value for name, value in (latest.source_position or {}).items() if name not in _OF_A_SOURCE}
    move_source(latest, {**stored, **position.to_json()})
    return True


def check_keys(latest: Snapshot | None, routing: Routing) -> None:
    """Check that rows find their state.

    Raises
    ------
    IncompatibleSnapshot
        The newest snapshot has other key columns, or other types of them.
    """
    wanted, found = routing.stored_keys, SourcePosition.of(latest).keys
    # A snapshot that no epoch committed, such as a bootstrapped one, does not name its keys.
    if found is not None:
        check_columns("key columns", [str(key) for key in wanted], [str(key) for key in found], "operator_id")


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
    if not _adopted(store, routing, adopt, newest, parallelism=parallelism):
        ways = [_BEGIN] if latest is None else [_KEEP, _BEGIN]
        raise UnrelatedPipelines(store.uri, upstream.uri, reason, ways)


def _reason(uri: str, position: SourcePosition, checkpoint: Checkpoint) -> str | None:
    """Return why the two do not belong together; None if they do."""
    query_id, batch_id, run = position.query_id, position.batch_id, position.run
    if run is not None:
        return f"{uri} has {run.done} of {run.chunks} chunks of run {run.run_id!r}, which has not finished"
    if position.upstream is not None:
        return f"{uri} has the state of a later pipeline of a chain: it would miss the outputs of the one before"
    done = f"{checkpoint.location} has completed batch {checkpoint.committed}"
    if query_id is None or batch_id is None:
        if checkpoint.committed < 0:
            return None
        return f"{done}, but {uri} has no state of its query: all rows so far would be missing from the state"
    if query_id != checkpoint.query_id:
        whose = "is new" if checkpoint.query_id is None else f"belongs to query {checkpoint.query_id}"
        stands = f"{uri} has the state of query {query_id} after batch {batch_id}"
        return f"{stands}, but {checkpoint.location} {whose}: rows that are in the state would count again"
    if batch_id < checkpoint.committed:
        return f"{done}, but {uri} ends with batch {batch_id}: the rows after it would be missing from the state"
    if batch_id > checkpoint.begun:
        ends = f"{uri} has batch {batch_id}, but {checkpoint.location} ends before it"
        return f"{ends}: the rows that come next would be dropped"
    return None
