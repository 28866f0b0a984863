"""The source position that a manifest stores, of a pipeline and of a job; only this module knows the stored form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from snapshots import Snapshot
from snapshots.format.delivered import Delivered, WrittenEpochs, by_version, delivery_of, last_mark
from snapshots.inputs import FINISHED

Kind = Literal["batch", "chunk", "upstream", "drain"]


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
class SubtaskTimes:
    """The times that a subtask reports after an epoch, in milliseconds since the Unix epoch.

    Attributes
    ----------
    event_time : int or None
        The greatest timestamp of the epoch's rows; None if there was none.
    next_timer, next_event_timer : int or None
        When the first timer that the subtask keeps is to fire, by the clock and by the watermark; None without one.
    """

    event_time: int | None = None
    next_timer: int | None = None
    next_event_timer: int | None = None


@dataclass(frozen=True, slots=True)
class EpochTimes:
    """The times in a source position; a manifest stores them, so that the next epoch is the same whenever it runs.

    All times are milliseconds since the Unix epoch.

    Attributes
    ----------
    watermark : int or None
        The newest watermark that operators have had.
    next_watermark : int or None
        The watermark that follows from all rows so far; the next epoch begins with it.
    next_timer, next_event_timer : int or None
        When the first timers are to fire, by the clock and by the watermark.

    Examples
    --------
    >>> times = EpochTimes().after([SubtaskTimes(5000, next_event_timer=3000), SubtaskTimes(4000)], 1000)
    >>> times.next_watermark, times.next_event_timer, times.is_any_due(now=0)
    (4000, 3000, True)
    >>> times.after([SubtaskTimes(4500), SubtaskTimes()], 1000)
    EpochTimes(watermark=4000, next_watermark=4000, next_timer=None, next_event_timer=None)
    """

    watermark: int | None = None
    next_watermark: int | None = None
    next_timer: int | None = None
    next_event_timer: int | None = None

    @property
    def new_watermark(self) -> int | None:
        """The watermark that the next epoch begins with; None if operators have had it already."""
        return self.next_watermark if self.next_watermark != self.watermark else None

    def after(self, subtasks: Iterable[SubtaskTimes], delay_milliseconds: int) -> EpochTimes:
        """Return the times after an epoch; its watermark stays `delay_milliseconds` behind the rows."""
        subtasks = list(subtasks)
        event_times = [one.event_time for one in subtasks if one.event_time is not None]
        seen = [event_time - delay_milliseconds for event_time in event_times]
        before = [] if self.next_watermark is None else [self.next_watermark]
        return EpochTimes(
            watermark=self.next_watermark,
            next_watermark=max(seen + before, default=None),
            next_timer=_first(one.next_timer for one in subtasks),
            next_event_timer=_first(one.next_event_timer for one in subtasks),
        )

    def is_any_due(self, now: int) -> bool:
        """Tell whether an epoch without rows would fire a timer."""
        return _is_due(self.next_timer, now) or self.is_watermark_due()

    def is_watermark_due(self) -> bool:
        """Tell whether timers wait for the watermark that the next epoch begins with."""
        return _is_due(self.next_event_timer, self.new_watermark)


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
    """How much of a pipeline's input is in the state, and what an epoch leaves to the next; None is what is not stored.

    A manifest that no epoch committed, such as the manifest of a bootstrapped snapshot, may lack all of them or have
    others.

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
    is_in_run : bool or None
        True if the newest epoch with rows is a chunk: a drain after it belongs to the run.
    parallelism : int or None
        The parallelism of the epoch: the snapshot's own, unless it was changed since.
    written : mapping of str to (int, str)
        What was written to the sink, and to its sink of dead letters, when this epoch was committed.
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
    is_in_run: bool | None = None
    parallelism: int | None = None
    written: WrittenEpochs = field(default_factory=dict)

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
            is_in_run=stored.get("is_in_run"),
            parallelism=stored.get("parallelism"),
            written=_written_in(stored),
        )

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest stores; fields that are None are left out, except `query_id` and `batch_id`."""
        keys = None if self.keys is None else [asdict(key) for key in self.keys]
        stored = {**asdict(self), "keys": keys, FINISHED: list(self.finished_runs) or None}
        stored["written"] = _as_json(self.written) or None
        return {name: value for name, value in stored.items() if value is not None or name in ("query_id", "batch_id")}

    @property
    def ref(self) -> EpochRef:
        """The operator's newest epoch; `BEGINNING` before the first."""
        # A manifest without an attempt is from a release that wrote no marks.
        return BEGINNING if self.epoch is None else EpochRef(self.epoch, self.attempt or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPosition:
    """What a job notes beside its positions, which are operator state of its source.

    Attributes
    ----------
    epoch : int or None
        The version of the cut; claims, rescales and edits since have later ones. None is what is not stored.
    parallelism : int or None
        The parallelism of the cut: the snapshot's own, unless it was changed since.
    keys : mapping of str to list of str or None
        The names of the key columns of each step, and None for a step whose keys a function makes.
    written : mapping of str to (int, str)
        What was written to the sink, and to the sink of dead letters, when this cut was committed.
    """

    epoch: int | None = None
    parallelism: int | None = None
    keys: Mapping[str, list[str] | None] = field(default_factory=dict)
    written: WrittenEpochs = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot) -> JobPosition:
        """Return the position in a snapshot's manifest."""
        stored = (snapshot.source_position or {}).get("job", {})
        return cls(
            epoch=stored.get("epoch"),
            parallelism=stored.get("parallelism"),
            keys=stored.get("keys", {}),
            written=_written_in(stored),
        )

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest stores."""
        return {"job": {**asdict(self), "written": _as_json(self.written)}}


@dataclass(frozen=True, slots=True)
class SinkEpochs:
    """Which epochs the targets of the sinks have, by a snapshot of a job or a pipeline.

    Attributes
    ----------
    known : int or None
        The newest epoch that they may have; None if the snapshot does not say.
    written : mapping of str to (int, str)
        The newest epoch that each must have, and the digest of the target, by the name of the sink.
    """

    known: int | None = None
    written: WrittenEpochs = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot | None) -> SinkEpochs:
        """Return what a snapshot's manifest says, and the mark of what was delivered since; blocks."""
        if snapshot is None:
            return cls(known=0)
        stored = snapshot.source_position or {}
        stored = stored.get("job", stored)
        known, written = stored.get("epoch"), _written_in(stored)
        mark, marked = last_mark(snapshot.folder)
        # The mark of another history says nothing. Once the epoch of this one is no longer in the manifest, a later one
        # was committed after its delivery, and has it in its own position.
        epochs = [delivery_of(files) for files in by_version(snapshot.manifest.files)]
        is_ours = mark in epochs or mark == Delivered(known or 0, stored.get("attempt", ""))
        return cls(known=known, written={**written, **marked} if is_ours else written)


def _written_in(stored: Mapping[str, Any]) -> WrittenEpochs:
    return {sink: (epoch, target) for sink, (epoch, target) in stored.get("written", {}).items()}


def _as_json(written: WrittenEpochs) -> dict[str, list[int | str]]:
    return {sink: [*epoch_and_target] for sink, epoch_and_target in written.items()}


def _first(timers: Iterable[int | None]) -> int | None:
    return min((timer for timer in timers if timer is not None), default=None)


def _is_due(timer: int | None, until: int | None) -> bool:
    return timer is not None and until is not None and timer <= until
