"""What the driver tells of epochs: records of those that have ended, and looks at one that takes long."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from async_op.epochs.long_waits import LongWait
from async_op.hosting.messages import Status
from async_op.spark.epoch.fleet import Fleet
from async_op.spark.epoch.scaling import Scaling
from async_op.spark.progress import EpochProgress, measurement_of
from keygroups.context_managers import contextmanager
from keygroups.events import Event, publish
from keygroups.ttl import wall_time
from snapshots import SnapshotStore
from snapshots.format.epoch_under_way import EpochUnderWay, Phase, note_under_way
from snapshots.format.manifest import named_by_unit

_log = logging.getLogger(__package__)

_PROGRESS_MAX = 1000
"""How many epochs are remembered."""

_NO_NUMBERS = frozenset({"scaling", "hosts", "spent"})
"""Fields that are no attributes of events; what calls have cost is one for each unit."""

_LOOK_SECONDS = 3.0
"""Time between two looks. Most epochs end before the first one, so hosts are not asked and nothing is written."""


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
        found = {"operator_id": self._operator_id, **numbers, **named_by_unit(progress.spent)}
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


class EpochWatch:
    """Looks at one epoch after the other, on a thread beside it. Any thread may read `under_way`.

    Parameters
    ----------
    store : SnapshotStore
        The snapshots of the operator; each look leaves a note in its folder.
    fleet : Fleet
        Returns the status of each host that can be asked.

    Attributes
    ----------
    under_way : EpochUnderWay or None
        What the last look at the epoch under way has shown; None between epochs.
    """

    def __init__(self, store: SnapshotStore, fleet: Fleet) -> None:
        self._store = store
        self._fleet = fleet
        self._lock = threading.Lock()
        self._phase: Phase = "subtasks"
        self.under_way: EpochUnderWay | None = None

    @contextmanager
    def epoch(self, version: int, parallelism: int) -> Iterator[None]:
        """Watch an epoch that is going to commit a version."""
        self._phase = "subtasks"
        ended = threading.Event()
        look = _Look(version, parallelism, time.monotonic())
        threading.Thread(target=self._watch, args=(look, ended), name="keygroups watch", daemon=True).start()
        try:
            yield
        finally:
            ended.set()
            with self._lock:
                noted, self.under_way = self.under_way, None
                if noted is not None:
                    self._note(None)

    def enter(self, phase: Phase) -> None:
        """Note how far the epoch is."""
        self._phase = phase

    def _watch(self, look: _Look, ended: threading.Event) -> None:
        while not ended.wait(_LOOK_SECONDS):
            try:
                found = look.at(self._fleet.look(), self._phase, time.monotonic())
            except Exception:  # noqa: BLE001 - an epoch needs no look at it
                _log.exception("the hosts of epoch %d could not be asked how they are", look.version)
                continue
            with self._lock:
                if ended.is_set():
                    return
                self.under_way = found
                self._note(found)
            if found.seconds >= look.wait.tell_at_seconds:
                _log.warning("%s: %s", self._store.operator_id, found)
                look.wait.told(found.seconds)

    def _note(self, found: EpochUnderWay | None) -> None:
        with suppress(OSError):  # what fails here fails the commit, too, and is told there
            note_under_way(self._store.folder, found)


class _Look:
    """What is remembered from look to look at one epoch."""

    def __init__(self, version: int, parallelism: int, started: float) -> None:
        self.version = version
        self._parallelism = parallelism
        self._started = self._looked = started
        self._calls: int | None = None
        self.wait = LongWait()

    def at(self, statuses: Sequence[Status], phase: Phase, now: float) -> EpochUnderWay:
        """Return what the statuses of the hosts say."""
        calls = sum(status.calls for status in statuses)
        begun = 0 if self._calls is None else max(0, calls - self._calls)
        rate = begun / (now - self._looked) if now > self._looked else 0.0
        self._calls, self._looked = calls, now
        return EpochUnderWay(
            epoch=self.version,
            at=wall_time() / 1000,
            seconds=round(now - self._started, 1),
            phase=phase,
            parallelism=self._parallelism,
            hosts=len(statuses),
            in_flight=sum(status.in_flight for status in statuses),
            waiting=sum(status.waiting for status in statuses),
            oldest_call_seconds=round(max((status.oldest_call_seconds for status in statuses), default=0.0), 1),
            calls=calls,
            calls_per_second=round(rate, 1),
        )
