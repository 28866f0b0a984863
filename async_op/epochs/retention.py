"""Removes old versions while a pipeline or job runs, in the background, often enough to keep their number bounded."""

from __future__ import annotations

import atexit
import logging
import math
import threading
from dataclasses import dataclass
from itertools import chain

from keygroups.arguments import Duration, seconds_of
from keygroups.representation import counted
from snapshots.filesystem import Folder
from snapshots.upkeep.retention import check_retention, collect_garbage

_log = logging.getLogger(__name__)

_COLLECTIONS_PER_AGE = 10
"""How many collections fall into a `min_age`: ten, so that at most a tenth more files stay than must."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which versions a running pipeline or job keeps; the newest version and pinned versions always stay.

    Parameters
    ----------
    keep_last : int
        How many of the newest versions stay.
    min_age : float or timedelta
        Seconds for which a file stays after it was written, even if no version names it: another writer, such as a
        rewrite, may be at work. It does not protect a reader of an older version, or a slow restore of one: pin that
        version (`SnapshotStore.pin`).

    Raises
    ------
    ConfigError
        `keep_last` is no integer or less than one, or `min_age` is no duration.

    Examples
    --------
    >>> Retention(keep_last=100)
    Retention(keep_last=100, min_age=3600.0)
    """

    keep_last: int = 10
    min_age: Duration = 3600.0

    def __post_init__(self) -> None:
        check_retention(self.keep_last, self.min_age)


_END_SECONDS = 30.0
"""How long the end of a run or of a program waits for a collection."""


class GarbageCollector:
    """Collects an operator's garbage beside its epochs, one collection at a time.

    The thread that runs an epoch calls `epoch_begins` and `epoch_ended`, one epoch at a time; neither waits for a
    collection. Any thread may call `join`.

    Parameters
    ----------
    retention : Retention
        Which versions stay.

    Attributes
    ----------
    failures : int
        How many collections have failed since the last one that succeeded.
    """

    def __init__(self, retention: Retention) -> None:
        self.failures = 0
        self._retention = retention
        self._due = -math.inf
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()  # until it has been started, a thread cannot be joined
        self._under_way: list[str] = []
        self._kept: tuple[str, ...] = ()

    def epoch_begins(self, attempts_prefix: str) -> None:
        """Protect the files of an epoch from collections until it has ended, however long its calls take."""
        if not self._is_running():
            self._under_way.clear()
        self._under_way.append(f"data/{attempts_prefix}")

    def keep(self, prefix: str) -> None:
        """Protect the files whose names begin with a prefix, which are in use as long as this collector is."""
        self._kept += (prefix,)

    def epoch_ended(self, folder: Folder, now: float) -> None:
        """Begin a collection, if one is due by a clock that never goes back, and none is running."""
        if now < self._due or self._is_running():
            return
        self._due = now + seconds_of(self._retention.min_age) / _COLLECTIONS_PER_AGE
        # A daemon, because a storage that hangs must keep no process alive. A program that ends after a few epochs
        # waits for it a while, or it would never finish a collection.
        thread = threading.Thread(target=self._collect, args=(folder,), name="keygroups retention", daemon=True)
        atexit.register(thread.join, _END_SECONDS)
        with self._starting:
            self._thread = thread
            thread.start()

    def join(self) -> None:
        """Wait for the running collection, if there is one, but not for a storage that does not answer."""
        with self._starting:
            thread = self._thread
        if thread is not None:
            thread.join(_END_SECONDS)

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _collect(self, folder: Folder) -> None:
        keep_last, min_age = self._retention.keep_last, self._retention.min_age
        try:
            # Lazy, because an epoch may begin after this.
            begun = chain(self._kept, self._under_way)
            report = collect_garbage(folder, keep_last=keep_last, min_age=min_age, dry_run=False, under_way=begun)
        except Exception:  # noqa: BLE001 - logged and counted: no epoch fails because a file stays
            self.failures += 1
            _log.exception("garbage in %s was not collected (failure %d in a row)", folder.uri, self.failures)
        else:
            self.failures = 0
            found = counted(len(report.expired), "version"), counted(len(report.files), "file"), report.bytes
            _log.info("retention in %s: removed %s, %s, %d bytes", folder.uri, *found)
        atexit.unregister(threading.current_thread().join)
