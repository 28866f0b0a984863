"""The source position that a manifest keeps of its epoch: the one place that knows how it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from async_op.spark.epoch.times import EpochTimes
from async_op.spark.progress import Kind
from async_op.spark.rows.keys import KeyColumn
from snapshots import Snapshot


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key column, as a manifest names it.

    Attributes
    ----------
    column : str
        Its name.
    type : str
        What it is hashed as.
    """

    column: str
    type: str

    def __str__(self) -> str:
        return f"{self.column} {self.type}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """How far the input is in the state, and what an epoch leaves to the next. None is what a manifest does not tell.

    Manifests of earlier releases do not tell everything, and those that no epoch has committed, such as that of a
    bootstrapped snapshot, nothing at all or something of their own.

    Attributes
    ----------
    query_id : str or None
        The streaming query.
    batch_id : int or None
        Its newest micro-batch whose rows are in the state.
    kind : {"batch", "drain"} or None
        Whether that was this epoch's, or one before it.
    epoch : int or None
        The number under which the sink gets the outputs.
    attempt : str or None
        Which of the attempts at the epoch was committed.
    keys : tuple of StoredKey or None
        The key columns.
    times : EpochTimes or None
        The watermark and the first timers.
    """

    query_id: str | None = None
    batch_id: int | None = None
    kind: Kind | None = None
    epoch: int | None = None
    attempt: str | None = None
    keys: tuple[StoredKey, ...] | None = None
    times: EpochTimes | None = None

    @classmethod
    def of(cls, snapshot: Snapshot | None) -> SourcePosition:
        """Return what a snapshot's manifest tells."""
        stored = {} if snapshot is None else snapshot.source_position or {}
        keys, times = stored.get("keys"), stored.get("times")
        return cls(
            query_id=stored.get("query_id"),
            batch_id=stored.get("batch_id"),
            kind=stored.get("kind"),
            epoch=stored.get("epoch"),
            attempt=stored.get("attempt"),
            keys=None if keys is None else tuple(StoredKey(**key) for key in keys),
            times=None if times is None else EpochTimes(**times),
        )

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest stores: what it does not tell is left out, but for the place in the input."""
        keys = None if self.keys is None else [asdict(key) for key in self.keys]
        stored = {**asdict(self), "keys": keys}
        return {name: value for name, value in stored.items() if value is not None or name in ("query_id", "batch_id")}

    def has_passed(self, query_id: str, batch_id: int) -> bool:
        """Tell whether the rows of a micro-batch are in the state."""
        return self.query_id == query_id and self.batch_id is not None and batch_id <= self.batch_id


def stored_keys(keys: Sequence[KeyColumn]) -> tuple[StoredKey, ...]:
    """Return key columns as a source position has them."""
    return tuple(StoredKey(key.name, key.type) for key in keys)
