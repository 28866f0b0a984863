"""Old versions go while a pipeline runs: in the background, and often enough for their number to stay bounded."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from snapshots.filesystem import Folder
from snapshots.upkeep.retention import check_retention, collect_garbage

_log = logging.getLogger(__name__)

_COLLECTIONS_PER_AGE = 10
"""How often garbage is collected while a file grows old enough: so there is at most a tenth more than there must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which versions a running pipeline keeps; the newest one and those that are pinned stay in any case.

    Parameters
    ----------
    keep_last : int
        How many of the newest versions.
    min_age : float
        Seconds that a file is kept after it was written, also if no version names it: others may be at work, such as a
        rewrite. Who reads a version that is not among the newest pins it (`SnapshotStore.pin`).

    Raises
    ------
    ConfigError
        Less than one version, or a negative age.

    Examples
    --------
    >>> Retention(keep_last=100)
    Retention(keep_last=100, min_age=3600.0)
    """

    keep_last: int = 10
    min_age: float = 3600.0

    def __post_init__(self) -> None:
        check_retention(self.keep_last, self.min_age)


class Collector:
    """Collects an operator's garbage beside its epochs, one collection at a time.

    The thread that runs an epoch calls `epoch_begins` and `epoch_ended`, one epoch at a time; neither waits for a
    collection.

    Parameters
    ----------
    retention : Retention
        What stays.
    clock : callable
        Returns seconds; never goes back.

    Attributes
    ----------
    failures : int
        How many collections have failed since the last one that did not.
    """

    def __init__(self, retention: Retention, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0
        self._retention = retention
        self._clock = clock
        self._due = clock()
        self._thread: threading.Thread | None = None
        self._under_way: list[str] = []

    def epoch_begins(self, attempts_prefix: str) -> None:
        """Leave the files of an epoch alone until it has ended, however long its calls take."""
        if not self._is_running():
            self._under_way.clear()
        self._under_way.append(attempts_prefix)

    def epoch_ended(self, folder: Folder) -> None:
        """Begin a collection, if one is due."""
        now = self._clock()
        if now < self._due or self._is_running():
            return
        self._due = now + self._retention.min_age / _COLLECTIONS_PER_AGE
        # Not a daemon: a program that ends after a few epochs would never get a collection done.
        self._thread = threading.Thread(target=self._collect, args=(folder,), name="keygroups retention", daemon=False)
        self._thread.start()

    def join(self) -> None:
        """Wait for the collection that runs, if one does."""
        if self._thread is not None:
            self._thread.join()

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _collect(self, folder: Folder) -> None:
        keep_last, min_age = self._retention.keep_last, self._retention.min_age
        try:
            report = collect_garbage(
                folder, keep_last=keep_last, min_age=min_age, dry_run=False, under_way=self._under_way
            )
        except Exception:  # noqa: BLE001 - logged and counted: no epoch fails because a file was not removed
            self.failures += 1
            _log.exception("the garbage in %s was not collected, for the %d. time", folder.uri, self.failures)
        else:
            self.failures = 0
            found = len(report.expired), len(report.files), report.bytes
            _log.info("retention in %s: %d versions, %d files, %d bytes are gone", folder.uri, *found)
