"""Records what epochs did, for `progress`, events, the log and the autoscaler."""

from __future__ import annotations

import json
import logging
from collections import deque
from dataclasses import asdict, replace

from async_op.spark.epoch.scaling import Scaling
from async_op.spark.progress import EpochProgress, measurement_of
from keygroups.events import Event, publish

_log = logging.getLogger(__package__)

_PROGRESS_MAX = 1000
"""How many epochs are remembered."""

_NO_NUMBERS = frozenset({"scaling", "hosts"})
"""Fields that events of epochs leave out."""


class EpochLog:
    """Remembers epochs, publishes and logs them. One thread at a time may add, any may read.

    Parameters
    ----------
    operator_id : str
        The operator that runs the epochs.
    scaling : Scaling, optional
        Decides on the parallelism after each micro-batch.

    Attributes
    ----------
    progress : deque of EpochProgress
        The newest epochs, oldest first.
    """

    def __init__(self, operator_id: str, scaling: Scaling | None) -> None:
        self.progress: deque[EpochProgress] = deque(maxlen=_PROGRESS_MAX)
        self._operator_id = operator_id
        self._scaling = scaling
        self._has_told_of_flight = False

    def add(self, progress: EpochProgress, carried_over: int, parallelism: int) -> int | None:
        """Remember an epoch; returns the parallelism of the next one if the autoscaler has decided on it.

        Parameters
        ----------
        progress : EpochProgress
            What it did.
        carried_over : int
            Elements in flight before it.
        parallelism : int
            The parallelism that the next epoch would have.
        """
        decided = None
        if self._scaling is not None and progress.kind != "drain":
            progress, decided = self._scale(self._scaling, progress, carried_over, parallelism)
        self.progress.append(progress)
        self._warn_of_waiting(progress)
        self._tell_of_flight(progress)
        fields = asdict(progress)
        numbers = {name: value for name, value in fields.items() if name not in _NO_NUMBERS}
        found = {"operator_id": self._operator_id, **numbers}
        publish(Event("epoch", progress.seconds, found))
        _log.info("epoch of %s: %s", self._operator_id, json.dumps(fields), extra={"event": "epoch", **found})
        return decided

    def _warn_of_waiting(self, progress: EpochProgress) -> None:
        if not progress.waited_for_calls or sum(one.waited_for_calls for one in self.progress) > 1:
            return
        waited = progress.overtime_milliseconds / 1000
        advice = "if calls take longer than micro-batches, make these or barrier_timeout longer"
        _log.warning("epoch %d waited %.1f s for calls that it took over: %s", progress.epoch, waited, advice)

    def _tell_of_flight(self, progress: EpochProgress) -> None:
        """Say once why outputs are missing: the default barrier ends an epoch before calls that take a second."""
        if not progress.in_flight or self._has_told_of_flight:
            return
        self._has_told_of_flight = True
        _log.info(
            "epoch %d of %s has ended with %d elements in flight, the oldest for %.1f s: an epoch waits for calls no "
            "longer than barrier_timeout; these go on, and a later epoch delivers their outputs",
            progress.epoch,
            self._operator_id,
            progress.in_flight,
            progress.oldest_call_milliseconds / 1000,
        )

    def _scale(
        self, scaling: Scaling, progress: EpochProgress, carried_over: int, parallelism: int
    ) -> tuple[EpochProgress, int | None]:
        """Decide on the parallelism of the next epoch, and report the decision with this epoch."""
        decision = scaling.after(measurement_of(progress, carried_over), parallelism)
        _log.log(
            logging.DEBUG if decision.parallelism == parallelism else logging.INFO,
            "parallelism of %s: %d to %d%s, because %s",
            self._operator_id,
            parallelism,
            decision.parallelism,
            " (dry run)" if scaling.policy.dry_run else "",
            decision.reason,
        )
        return replace(progress, scaling=decision), None if scaling.policy.dry_run else decision.parallelism
