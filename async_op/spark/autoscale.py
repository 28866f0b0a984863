"""Decides the parallelism of the next epoch from measurements of earlier epochs.

As in DS2 (Kalavri and others, "Three steps is all you need", OSDI 2018), one measurement of the work that subtasks
share shows how many subtasks are needed, whatever their number is now. Time that they do not share is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from keygroups.arguments import Duration, check_count, check_flag, check_positive_duration, seconds_of
from keygroups.ranges import MAX_KEY_GROUPS

UTILISATION = 0.8
"""Epochs are planned to take this share of the target, so that ordinary changes in load cause no rescale."""

GROW_AFTER_EPOCHS = 2
SHRINK_AFTER_EPOCHS = 5
"""This many epochs in succession must agree; the first after a rescale does not count, because it loads state."""

STEP_MAX = 2
"""One decision changes the parallelism at most by this factor: estimates far from the current one are uncertain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMeasurement:
    """What one micro-batch tells about the load.

    Attributes
    ----------
    parallelism : int
        The number of subtasks.
    rows : int
        Input rows.
    seconds : float
        How long the epoch took, its commit and its delivery included.
    work_seconds : float
        The work that subtasks share, summed over them: for each the time to take in its rows, or its processor time,
        whichever is more. The wait for the last calls is left out, because more subtasks do not shorten it.
    back_pressured_seconds : float
        Time without room for the next row, summed over the subtasks; a part of the work.
    backlog : int
        By how much the number of elements in flight has grown: their work is still to be done.
    """

    parallelism: int
    rows: int
    seconds: float
    work_seconds: float
    back_pressured_seconds: float
    backlog: int

    @property
    def unshared_seconds(self) -> float:
        """Seconds that the epoch takes at any parallelism."""
        return max(0.0, self.seconds - self.work_seconds / self.parallelism)

    @property
    def load_seconds(self) -> float:
        """Seconds of work for the rows that came, done or still to be done."""
        return self.work_seconds * (1 + max(self.backlog, 0) / max(self.rows, 1))

    def seconds_at(self, parallelism: int) -> float:
        """Return how many seconds such an epoch would take at a parallelism."""
        return self.unshared_seconds + self.load_seconds / parallelism


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """The parallelism for the next epoch, and why.

    Attributes
    ----------
    parallelism : int
        The parallelism of the next epoch.
    reason : str
        The reason, for people to read.
    """

    parallelism: int
    reason: str


@dataclass(frozen=True, slots=True)
class AutoscalePolicy:
    """Keeps the duration of micro-batches below a target, with as few subtasks as possible.

    Subtasks are added if two epochs in succession took longer than the target, and removed if five in succession could
    have done with fewer. Removal leaves a margin of a fifth of the target, so that noise does not make the parallelism
    flap.

    Parameters
    ----------
    min, max : int
        The bounds of the parallelism, inclusive.
    target_batch_duration : float or timedelta
        Seconds; well above the duration of an epoch without rows, which no parallelism shortens.
    dry_run : bool
        Whether to decide, log and report without changing the parallelism.

    Raises
    ------
    ConfigError
        The bounds or the target are invalid.

    Examples
    --------
    >>> policy = AutoscalePolicy(1, 8, target_batch_duration=10.0)
    >>> slow = EpochMeasurement(
    ...     parallelism=2, rows=1000, seconds=21.0, work_seconds=40.0, back_pressured_seconds=38.0, backlog=0)
    >>> policy.decide([slow] * 3, 2).parallelism
    4
    """

    min: int
    max: int
    target_batch_duration: Duration
    dry_run: bool = False

    def __post_init__(self) -> None:
        check_count("max", self.max, 1, MAX_KEY_GROUPS)
        check_count("min", self.min, 1, self.max, reason=f"max={self.max}")
        check_positive_duration("target_batch_duration", self.target_batch_duration)
        check_flag("dry_run", self.dry_run)

    def decide(self, history: Sequence[EpochMeasurement], parallelism: int) -> ScalingDecision:
        """Return the parallelism for the next epoch; depends on the arguments alone.

        Parameters
        ----------
        history : sequence of EpochMeasurement
            The newest micro-batches, the newest last.
        parallelism : int
            The parallelism that the next epoch would have.
        """
        bounded = self._bounded(parallelism)
        if bounded != parallelism:
            return ScalingDecision(bounded, f"{parallelism} is not between {self.min} and {self.max}")
        settled = _settled(history, parallelism)
        if len(settled) < GROW_AFTER_EPOCHS:
            return ScalingDecision(parallelism, f"measuring at {parallelism}")
        slow = settled[-GROW_AFTER_EPOCHS:]
        if all(one.seconds_at(parallelism) > self._target_seconds for one in slow):
            return self._grown(slow, parallelism)
        return self._shrunk(settled[-SHRINK_AFTER_EPOCHS:], parallelism)

    def _grown(self, slow: Sequence[EpochMeasurement], parallelism: int) -> ScalingDecision:
        newest = slow[-1]
        found = _described(newest, self._target_seconds)
        needed = [self._needed(one) for one in slow]
        # The smallest number counts, because both epochs must ask for it.
        known = [number for number in needed if number is not None]
        if not known:
            unshared = f"{newest.unshared_seconds:.1f} s of it are not shared by subtasks"
            return ScalingDecision(parallelism, f"{found}; more subtasks would not help, {unshared}")
        wanted = self._bounded(min(*known, STEP_MAX * parallelism))
        if wanted <= parallelism:
            return ScalingDecision(parallelism, f"{found}; {parallelism} is the most that is allowed or needed")
        return ScalingDecision(wanted, f"{found}; {newest.load_seconds:.1f} s of work for {wanted} instead")

    def _shrunk(self, settled: Sequence[EpochMeasurement], parallelism: int) -> ScalingDecision:
        found = _described(settled[-1], self._target_seconds)
        needed = [self._needed(one) or parallelism for one in settled]
        wanted = self._bounded(max(*needed, -(-parallelism // STEP_MAX)))
        if len(settled) < SHRINK_AFTER_EPOCHS or wanted >= parallelism:
            return ScalingDecision(parallelism, f"{found}; {parallelism} fit")
        return ScalingDecision(wanted, f"{found}; {wanted} would have done in the last {SHRINK_AFTER_EPOCHS} epochs")

    def _needed(self, one: EpochMeasurement) -> int | None:
        """Return the smallest number of subtasks that makes an epoch as short as planned; None if no number does."""
        share = UTILISATION * self._target_seconds - one.unshared_seconds
        if share <= 0:
            return None
        # Bounded, so that a tiny share does not give a huge number.
        return max(1, math.ceil(min(one.load_seconds / share, 2 * self.max)))

    @property
    def _target_seconds(self) -> float:
        return seconds_of(self.target_batch_duration)

    def _bounded(self, parallelism: int) -> int:
        return max(self.min, min(parallelism, self.max))


def _settled(history: Sequence[EpochMeasurement], parallelism: int) -> Sequence[EpochMeasurement]:
    """Return the newest epochs in succession at a parallelism, without the first of them."""
    start = len(history)
    while start and history[start - 1].parallelism == parallelism:
        start -= 1
    return history[start + 1 :]


def _described(one: EpochMeasurement, target_seconds: float) -> str:
    share = one.back_pressured_seconds / one.work_seconds if one.work_seconds else 0.0
    backlog = f", {one.backlog:,} more in flight" if one.backlog > 0 else ""
    return f"{one.seconds:.1f} s of {target_seconds:g} s, {share:.0%} of the work back-pressured{backlog}"
