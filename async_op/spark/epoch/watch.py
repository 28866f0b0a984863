"""Looks at an epoch that takes long: for `progress`, the status of the query, `keygroups top` and a line of the log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from async_op.hosting.messages import Status
from async_op.spark.epoch.fleet import Fleet
from keygroups.context_managers import contextmanager
from keygroups.ttl import wall_time
from snapshots import SnapshotStore
from snapshots.format.epoch_under_way import EpochUnderWay, Phase, note_under_way

_log = logging.getLogger(__package__)

_LOOK_SECONDS = 3.0
"""Time between two looks. Most epochs end before the first one, so hosts are not asked and nothing is written."""

LONG_SECONDS = 30.0
"""The log says once of each epoch that takes longer what it waits for."""


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
            if look.is_long_for_the_first_time(found):
                _log.warning("%s: %s", self._store.operator_id, found)

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
        self._was_long = False

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

    def is_long_for_the_first_time(self, found: EpochUnderWay) -> bool:
        if self._was_long or found.seconds < LONG_SECONDS:
            return False
        self._was_long = True
        return True
