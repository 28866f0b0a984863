"""Whether a checkpoint and the snapshots belong together, and which of the two counts if they do not."""

from __future__ import annotations

from typing import Literal

from async_op.changed_keys import check_columns
from async_op.spark.epoch.checkpoint import Checkpoint
from async_op.spark.epoch.position import SourcePosition, stored_keys
from async_op.spark.errors import UnrelatedHistories
from async_op.spark.rows.routing import Routing
from keygroups.errors import ConfigError
from snapshots import IncompatibleSnapshot, Snapshot, SnapshotStore
from snapshots.inputs import remove_input
from snapshots.surroundings import newest_or_empty
from snapshots.upkeep.adoption import begin_anew, move_source

Adopt = Literal["state", "checkpoint"]

_OF_A_SOURCE = ("query_id", "batch_id", "upstream", "run")
"""The fields of a position that another source does not take over."""

_ADOPT_STATE = "keep the state and let rows count twice or not at all: start(..., adopt='state')"
_ADOPT_CHECKPOINT = "begin with empty state where the checkpoint stands: start(..., adopt='checkpoint')"


def join_histories(
    store: SnapshotStore, checkpoint: Checkpoint, routing: Routing, adopt: Adopt | None, *, parallelism: int
) -> None:
    """Make sure that the snapshots and the checkpoint belong together.

    Each epoch is committed before Spark counts its batch as done. So the newest snapshot is that of the checkpoint's
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
    if adopted(store, routing, adopt, position, parallelism=parallelism):
        if run is not None:
            remove_input(store.folder, run.run_id)  # it is given up
    else:
        ways = [_ADOPT_CHECKPOINT] if latest is None else [_ADOPT_STATE, _ADOPT_CHECKPOINT]
        raise UnrelatedHistories(store.uri, checkpoint.location, reason, ways)


def adopted(
    store: SnapshotStore, routing: Routing, adopt: Adopt | None, position: SourcePosition, *, parallelism: int
) -> bool:
    """Move the state to another position of its source, or begin anew there; returns whether `adopt` says which."""
    if adopt == "checkpoint":
        sizes = {"parallelism": parallelism, "max_parallelism": routing.max_parallelism}
        begin_anew(store.begin(), **sizes, hash=routing.hash, source_position=position.to_json())
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
    wanted, found = stored_keys(routing.keys), SourcePosition.of(latest).keys
    # Snapshots of earlier releases do not name their keys.
    if found is not None:
        check_columns("key columns", [str(key) for key in wanted], [str(key) for key in found], "operator_id")


def check_fits(store: SnapshotStore, routing: Routing, parallelism: int) -> None:
    """Check what is fixed with the first snapshot.

    Raises
    ------
    IncompatibleSnapshot
        The newest snapshot has another max parallelism or hash.
    """
    latest = newest_or_empty(store.folder)
    if latest is None:
        return
    found = latest.manifest
    for what, expected, stored, option in (
        ("max parallelism", routing.max_parallelism, found.max_parallelism, "--max-parallelism"),
        ("hash", routing.hash, found.hash, "--hash"),
    ):
        if expected != stored:
            rewrite = f"keygroups repartition {store.uri} --rewrite --parallelism {parallelism} {option} {expected}"
            raise IncompatibleSnapshot(what, expected, stored, f"pass the snapshot's, or rewrite it first: {rewrite}")


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
        whose = "is new" if checkpoint.query_id is None else f"is that of query {checkpoint.query_id}"
        stands = f"{uri} has the state of query {query_id} after batch {batch_id}"
        return f"{stands}, but {checkpoint.location} {whose}: rows that are in the state would count again"
    if batch_id < checkpoint.committed:
        return f"{done}, but {uri} ends with batch {batch_id}: the rows after it would be missing from the state"
    if batch_id > checkpoint.begun:
        ends = f"{uri} has batch {batch_id}, but {checkpoint.location} ends before it"
        return f"{ends}: the rows that come next would be dropped"
    return None
