"""Whether a checkpoint and the snapshots belong together, and which of the two counts if they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from async_op.spark.epoch.checkpoint import Checkpoint
from async_op.spark.epoch.position import SourcePosition, stored_keys
from async_op.spark.errors import UnrelatedHistories
from async_op.spark.rows.keys import KeyColumn
from keygroups.errors import ConfigError
from snapshots import IncompatibleSnapshot, Snapshot, SnapshotStore
from snapshots.upkeep.adoption import begin_anew, move_source

Adopt = Literal["state", "checkpoint"]

_ADOPT_STATE = "keep the state and let rows count twice or not at all: start(..., adopt='state')"
_ADOPT_CHECKPOINT = "begin with empty state where the checkpoint stands: start(..., adopt='checkpoint')"


def join_histories(
    store: SnapshotStore,
    checkpoint: Checkpoint,
    keys: Sequence[KeyColumn],
    adopt: Adopt | None,
    *,
    parallelism: int,
    max_parallelism: int,
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
    latest = store.latest()
    _check_keys(latest, keys)
    reason = _reason(store.uri, SourcePosition.of(latest), checkpoint)
    if reason is None:
        return
    position = SourcePosition(query_id=checkpoint.query_id, batch_id=checkpoint.committed).to_json()
    if adopt == "checkpoint":
        begin_anew(store.begin(), parallelism=parallelism, max_parallelism=max_parallelism, source_position=position)
    elif adopt == "state" and latest is not None:
        move_source(latest, {**(latest.source_position or {}), **position})
    else:
        ways = [_ADOPT_CHECKPOINT] if latest is None else [_ADOPT_STATE, _ADOPT_CHECKPOINT]
        raise UnrelatedHistories(store.uri, checkpoint.location, reason, ways)


def _check_keys(latest: Snapshot | None, keys: Sequence[KeyColumn]) -> None:
    wanted, found = stored_keys(keys), SourcePosition.of(latest).keys
    # Snapshots of earlier releases do not name their keys.
    if found is not None and found != wanted:
        advice = "state of other keys cannot be adopted: pass the snapshot's keys, or another operator_id for new state"
        raise IncompatibleSnapshot("key columns", ", ".join(map(str, wanted)), ", ".join(map(str, found)), advice)


def _reason(uri: str, position: SourcePosition, checkpoint: Checkpoint) -> str | None:
    """Return why the two do not belong together; None if they do."""
    query_id, batch_id = position.query_id, position.batch_id
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
