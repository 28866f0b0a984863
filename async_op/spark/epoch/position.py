"""The source position that a manifest stores for its epoch; only this module knows the stored form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from async_op.spark.epoch.times import EpochTimes
from async_op.spark.progress import Kind
from async_op.spark.rows.keys import KeyColumn
from snapshots import Snapshot
from snapshots.inputs import FINISHED


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key column as a manifest stores it.

    Attributes
    ----------
    column : str
        The name of the column.
    type : str
        The type as which it is hashed.
    """

    column: str
    type: str

    def __str__(self) -> str:
        return f"{self.column} {self.type}"


@dataclass(frozen=True, slots=True)
class EpochRef:
    """Names one committed epoch of an operator.

    Attributes
    ----------
    epoch : int
        Its number; 0 stands for the beginning, before the first epoch.
    attempt : str
        Which attempt at it was committed; attempts with the same number differ in it.
    """

    epoch: int
    attempt: str


BEGINNING = EpochRef(0, "")


@dataclass(frozen=True, slots=True)
class RunPosition:
    """How far a bounded run has come.

    Attributes
    ----------
    run_id : str
        The run.
    input_id : str
        Its stored input.
    done : int
        How many chunks are in the state.
    chunks : int
        How many chunks there are.
    """

    run_id: str
    input_id: str
    done: int
    chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """How much of the input is in the state, and what an epoch leaves to the next. What a manifest lacks is None.

    Manifests of earlier releases lack some fields. A manifest that no epoch committed, such as that of a bootstrapped
    snapshot, may lack all of them or have others.

    Attributes
    ----------
    query_id : str or None
        The id of the streaming query.
    batch_id : int or None
        The query's newest micro-batch whose rows are in the state.
    kind : {"batch", "chunk", "upstream", "drain"} or None
        What the epoch's input was: that micro-batch, a chunk of a bounded run, an epoch of the pipeline before, or
        nothing.
    epoch : int or None
        The number under which the sink gets the outputs.
    attempt : str or None
        Which attempt at the epoch was committed: attempts with the same epoch number differ in it.
    keys : tuple of StoredKey or None
        The key columns.
    times : EpochTimes or None
        The watermark and the first timers.
    previous : EpochRef or None
        The operator's epoch before this one; by it a next pipeline finds the epochs that it has missed.
    upstream : EpochRef or None
        In a chain, the newest epoch of the pipeline before whose outputs are in the state.
    run : RunPosition or None
        A bounded run that has begun and not finished.
    finished_runs : tuple of str
        The newest bounded runs that have finished.
    """

    query_id: str | None = None
    batch_id: int | None = None
    kind: Kind | None = None
    epoch: int | None = None
    attempt: str | None = None
    keys: tuple[StoredKey, ...] | None = None
    times: EpochTimes | None = None
    previous: EpochRef | None = None
    upstream: EpochRef | None = None
    run: RunPosition | None = None
    finished_runs: tuple[str, ...] = ()

    @classmethod
    def of(cls, snapshot: Snapshot | None) -> SourcePosition:
        """Return the position in a snapshot's manifest; all fields are None without a snapshot."""
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
            previous=None if stored.get("previous") is None else EpochRef(**stored["previous"]),
            upstream=None if stored.get("upstream") is None else EpochRef(**stored["upstream"]),
            run=None if stored.get("run") is None else RunPosition(**stored["run"]),
            finished_runs=tuple(stored.get(FINISHED, ())),
        )

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest stores; fields that are None are left out, except `query_id` and `batch_id`."""
        keys = None if self.keys is None else [asdict(key) for key in self.keys]
        stored = {**asdict(self), "keys": keys, FINISHED: list(self.finished_runs) or None}
        return {name: value for name, value in stored.items() if value is not None or name in ("query_id", "batch_id")}

    @property
    def ref(self) -> EpochRef:
        """The operator's newest epoch; `BEGINNING` before the first."""
        # A manifest without an attempt is from a release that wrote no marks.
        return BEGINNING if self.epoch is None else EpochRef(self.epoch, self.attempt or "")


def stored_keys(keys: Sequence[KeyColumn]) -> tuple[StoredKey, ...]:
    """Return key columns as a source position stores them."""
    return tuple(StoredKey(key.name, key.type) for key in keys)
