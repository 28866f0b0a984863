"""What an operator has been doing lately, as its newest manifests tell it; no storage is touched here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from keygroups.ranges import KeyGroupRange
from keygroups.representation import fields_repr
from snapshots.format.manifest import Manifest, spent_by_unit
from snapshots.inspection.estimates import Size, SubtaskShare, shares_of, size_of
from snapshots.inspection.for_people import seconds_of
from snapshots.inspection.sizes import skew_of

SPAN_SECONDS_MAX = 600.0
"""Rates cover the newest epochs: the last ten minutes before the newest one."""

COUNTED = (
    *("rows", "outputs", "calls", "retries", "timeouts", "skipped", "dead_letters"),
    *("cache_hits", "cache_misses", "shared", "rate_limited", "circuit_opened", "circuit_refused"),
    "budget_refused",
)
"""What a pipeline counts in each epoch, and a job from cut to cut, and stores in `metrics`, by these names."""


_CHILD = re.compile(r"child_([1-9]\d{0,8})_pid")
"""The metric by which a child process of a job is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What is kept of a version once its manifest has been read; it is small, because many are kept.

    Attributes
    ----------
    version, parallelism : int
        As in the manifest.
    snapshot_id : str
        The id of the snapshot.
    created_at, operation : str
        When and why it was committed.
    metrics : mapping of str to number
        The counters of its epoch; empty if it is not one of a pipeline or a job.
    """

    version: int
    snapshot_id: str
    created_at: str
    operation: str
    parallelism: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    __repr__ = fields_repr

    @classmethod
    def of(cls, manifest: Manifest) -> Commit:
        """Return what is kept of a manifest."""
        return cls(
            version=manifest.version,
            snapshot_id=manifest.snapshot_id,
            created_at=manifest.created_at,
            operation=manifest.operation,
            parallelism=manifest.parallelism,
            metrics=manifest.metrics,
        )

    @property
    def is_epoch(self) -> bool:
        """Whether a running operator has committed it: no rescale, compaction, claim or the like."""
        return self.operation == "write"

    @property
    def seconds(self) -> float | None:
        """When it was committed, in seconds since 1970; None if the text cannot be read, which is only for people."""
        return seconds_of(self.created_at)

    def age(self, now: float) -> float | None:
        """Return the seconds since the commit; negative if this machine's clock is behind the writer's."""
        return None if self.seconds is None else now - self.seconds

    def count(self, name: str) -> int | None:
        """Return one of the counters, at least 0; None if the version has none of that name."""
        value = self.metrics.get(name)
        return None if value is None else max(int(value), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the newest epochs of one run have done, and how fast.

    Attributes
    ----------
    epochs : int
        How many there are.
    seconds : float or None
        The time that they took, from the version before the first of them to the last; None if there are none.
    counts : dict of str to int or None
        Their counters added up; None if no epoch has a counter of that name.
    spent : dict of str to float
        What their calls have cost, by unit; empty without limits of costs.
    """

    epochs: int
    seconds: float | None
    counts: dict[str, int | None]
    spent: dict[str, float]

    __repr__ = fields_repr

    @classmethod
    def of(cls, commits: Iterable[Commit]) -> Pace:
        """Measure the newest epochs among some versions, in any order."""
        run = _newest_run(commits)
        epochs = run[:-1]
        return cls(
            epochs=len(epochs),
            seconds=_between(run[-1], run[0]) if epochs else None,
            counts={name: _sum(epochs, name) for name in COUNTED},
            spent=spent_by_unit(epoch.metrics for epoch in epochs),
        )

    @property
    def epochs_per_minute(self) -> float | None:
        """The epochs of a minute; None if no time has passed."""
        return 60 * self.epochs / self.seconds if self.seconds else None

    def per_second(self, name: str) -> float | None:
        """Return the rate of a counter; None if it was not counted or no time has passed."""
        count = self.counts[name]
        return count / self.seconds if self.seconds and count is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildActivity:
    """What a child process of a job did in the newest epochs; `ChildProgress` tells the same of a whole run.

    Attributes
    ----------
    number, pid : int
        Which child it is, counted from 1, and its process.
    subtasks, in_flight : int
        Its subtasks of each step, and its in-flight elements, in the newest epoch.
    outputs, dead_letters : int
        How many the newest epochs have got from it; a dead letter is an output, too.
    processor_seconds : float
        The processor time that it has used in these epochs.
    """

    number: int
    pid: int
    subtasks: int
    in_flight: int
    outputs: int
    dead_letters: int
    processor_seconds: float

    @classmethod
    def of(cls, number: int, epochs: Sequence[Commit]) -> ChildActivity:
        """Describe a child by epochs of one run, the newest first."""

        def newest(name: str) -> int:
            return epochs[0].count(f"child_{number}_{name}") or 0

        def total(name: str) -> int:
            return _sum(epochs, f"child_{number}_{name}") or 0

        return cls(
            number=number,
            pid=newest("pid"),
            subtasks=newest("subtasks"),
            in_flight=newest("in_flight"),
            outputs=total("outputs"),
            dead_letters=total("dead_letters"),
            processor_seconds=total("processor_milliseconds") / 1000,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What an operator has been doing lately.

    Attributes
    ----------
    operator_id : str
        The operator.
    newest : Commit
        Its newest version.
    epoch : Commit or None
        The newest version among `recent` that a running operator has committed.
    now : float
        The time to which ages are counted, in seconds since 1970.
    max_parallelism, in_flight, files : int
        The key groups, in-flight elements (watermarks included) and files of the newest version.
    state : Size
        The keyed state of the newest version.
    subtasks : tuple of SubtaskShare
        Its share of each subtask.
    pace : Pace
        What the newest epochs have done.
    children : tuple of ChildActivity
        The child processes of a job with `processes`.
    recent : tuple of Commit
        The newest versions, the oldest first.
    """

    operator_id: str
    newest: Commit
    epoch: Commit | None
    now: float
    max_parallelism: int
    in_flight: int
    files: int
    state: Size
    subtasks: tuple[SubtaskShare, ...]
    pace: Pace
    children: tuple[ChildActivity, ...]
    recent: tuple[Commit, ...]

    __repr__ = fields_repr

    @classmethod
    def of(cls, newest: Manifest, commits: Sequence[Commit], now: float) -> Activity:
        """Describe the newest manifest and the versions up to it, in any order.

        Parameters
        ----------
        newest : Manifest
            The manifest of the newest version.
        commits : sequence of Commit
            The newest versions, that one among them.
        now : float
            The time in seconds since 1970.
        """
        recent = tuple(sorted(commits, key=lambda commit: commit.version))
        everything = KeyGroupRange(0, newest.max_parallelism - 1)
        return cls(
            operator_id=newest.operator_id,
            newest=Commit.of(newest),
            epoch=next((commit for commit in reversed(recent) if commit.is_epoch), None),
            now=now,
            max_parallelism=newest.max_parallelism,
            in_flight=newest.in_flight_count,
            files=len(newest.whole_files),
            state=size_of(newest.files_of("keyed", "delta"), everything),
            subtasks=shares_of(newest),
            pace=Pace.of(recent),
            children=_children_of(_newest_run(recent)),
            recent=recent,
        )

    @property
    def in_flight_skew(self) -> float:
        """The in-flight elements of the subtask with the most, divided by the average."""
        return skew_of(np.array([share.in_flight.rows for share in self.subtasks]))

    @property
    def state_skew(self) -> float:
        """The rows of keyed state of the subtask with the most, divided by the average."""
        return skew_of(np.array([share.state.rows for share in self.subtasks]))


def _children_of(run: Sequence[Commit]) -> tuple[ChildActivity, ...]:
    epochs = run[:-1] or run  # the very first epoch has no version before it
    names = epochs[0].metrics if epochs else ()
    numbers = sorted(int(found[1]) for name in names if (found := _CHILD.fullmatch(name)))
    return tuple(ChildActivity.of(number, epochs) for number in numbers)


def _newest_run(commits: Iterable[Commit]) -> list[Commit]:
    """Return the newest epochs of one run, the newest first, and last the version from which their time counts.

    A version that is no epoch begins a run: with a claim a pipeline starts, and all others are committed while it is
    stopped. Where time runs backwards, another machine with another clock has taken over.
    """
    found: list[Commit] = []
    for commit in sorted(commits, key=lambda commit: commit.version, reverse=True):
        if commit.seconds is None or (found and _between(commit, found[-1]) < 0):
            break
        if len(found) > 1 and _between(commit, found[0]) > SPAN_SECONDS_MAX:
            break
        found.append(commit)
        if not commit.is_epoch:
            break
    return found


def _between(earlier: Commit, later: Commit) -> float:
    assert earlier.seconds is not None
    assert later.seconds is not None
    return later.seconds - earlier.seconds


def _sum(epochs: Iterable[Commit], name: str) -> int | None:
    counts = [count for epoch in epochs if (count := epoch.count(name)) is not None]
    return sum(counts) if counts else None
