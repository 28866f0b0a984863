"""Counts the in-flight elements of a snapshot by key group, attempt and age."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from keygroups.ranges import KeyGroupRange
from keygroups.representation import fields_repr
from snapshots.format.parquet import KEY_GROUP
from snapshots.restore.snapshot import Snapshot
from snapshots.restore.tables import element_tables

AGES = (
    (1.0, "under 1 s"),
    (10.0, "1 s to 10 s"),
    (60.0, "10 s to 1 min"),
    (600.0, "1 min to 10 min"),
    (3600.0, "10 min to 1 h"),
    (86400.0, "1 h to 1 day"),
    (float("inf"), "over 1 day"),
)
"""The upper bound of each age in seconds, and its name."""

NO_AGE = "without a timestamp"


@dataclass(frozen=True, slots=True)
class InFlightSummary:
    """The counts of a snapshot's in-flight elements.

    Attributes
    ----------
    pending, completed : int
        Records whose call has not returned, and records whose call has.
    watermarks : int
        Watermarks between the records.
    by_key_group : numpy.ndarray
        Elements with a key, by key group.
    by_attempt : mapping of int to int
        Pending records by the number of the attempt that runs or is due.
    by_age : mapping of str to int
        Records by the time from their timestamp to the snapshot, from young to old; it contains every age.
    """

    pending: int
    completed: int
    watermarks: int
    by_key_group: NDArray[np.int64]
    by_attempt: Mapping[int, int]
    by_age: Mapping[str, int]

    __repr__ = fields_repr

    def count_in(self, key_groups: KeyGroupRange) -> int:
        """Return how many elements have a key in the range."""
        return int(self.by_key_group[key_groups.start : key_groups.end + 1].sum())


def in_flight_summary(snapshot: Snapshot) -> InFlightSummary:
    """Count the in-flight elements of a snapshot; one channel's are in memory at a time.

    The age of an element is the time from its timestamp to the creation of the snapshot. If timestamps are arrival
    times, the age shows how long the element has waited; otherwise it shows how late its event is.

    Raises
    ------
    SnapshotCorrupted
        A file is damaged.
    """
    manifest = snapshot.manifest
    pending = completed = watermarks = 0
    by_key_group = np.zeros(manifest.max_parallelism, np.int64)
    by_attempt, by_age = Counter[int](), Counter[str]()
    for elements in element_tables(snapshot.folder, manifest):
        records = elements.filter(pc.equal(elements.column("kind"), "record"))
        waiting = records.filter(pc.invert(records.column("completed")))
        watermarks += elements.num_rows - records.num_rows
        pending += waiting.num_rows
        completed += records.num_rows - waiting.num_rows
        key_groups = records.column(KEY_GROUP).to_numpy()
        by_key_group += np.bincount(key_groups[key_groups >= 0], minlength=manifest.max_parallelism)
        by_attempt.update(waiting.column("attempt").to_pylist())
        by_age.update(_ages(records, manifest.created_at))
    ages = {name: by_age[name] for name in (*(name for _, name in AGES), NO_AGE)}
    return InFlightSummary(pending, completed, watermarks, by_key_group, dict(sorted(by_attempt.items())), ages)


def _ages(records: pa.Table, created_at: str) -> list[str]:
    created = dt.datetime.fromisoformat(created_at).timestamp()
    timestamps = records.column("timestamp").to_pylist()
    return [NO_AGE if at is None else _age_named(created - at / 1000) for at in timestamps]


def _age_named(seconds: float) -> str:
    return next(name for limit, name in AGES if seconds < limit)
