"""Thresholds of the library that are small in some seeds, so that a small run meets what they are for.

A threshold is a constant of the module that reads it, and of no other: then to set it there is to set it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import keygroups.state.disk.change_tracking
import keygroups.state.disk.store
import keygroups.state.memory.table
import keygroups.state.timers
import snapshots.commit.part_writer
import snapshots.commit.stored_lists
import snapshots.filesystem.retry
import snapshots.format.columns
import snapshots.format.compression
import snapshots.format.files
import snapshots.upkeep.buckets
import snapshots.upkeep.retention
import snapshots.versions


class Threshold(NamedTuple):
    """A constant, and the values that it takes beside its own."""

    module: ModuleType
    name: str
    values: tuple[Any, ...]


THRESHOLDS = (
    Threshold(snapshots.commit.part_writer, "DELTAS_MAX", (1, 2)),
    Threshold(snapshots.commit.part_writer, "DELTA_SHARE_MAX", (0.0, float("inf"))),
    Threshold(snapshots.commit.part_writer, "KEYS_LOOKED_AT", (1,)),
    Threshold(snapshots.format.columns, "PIECE_ROWS_MAX", (1, 2)),
    Threshold(snapshots.format.files, "FILE_BYTES", (1, 2000)),
    Threshold(snapshots.format.files, "ROW_GROUP_ROWS_MIN", (1, 4)),
    Threshold(snapshots.format.files, "ROW_GROUP_BYTES", (200,)),
    Threshold(snapshots.format.compression, "COMPRESSED_FROM_BYTES", (0,)),
    Threshold(snapshots.upkeep.buckets, "BUCKET_BYTES", (1000,)),
    Threshold(snapshots.upkeep.buckets, "FLUSH_BYTES", (1,)),
    Threshold(snapshots.upkeep.retention, "_DELETED_AT_ONCE", (1,)),
    Threshold(snapshots.versions, "PROBES_MAX", (1, 2)),
    Threshold(snapshots.filesystem.retry, "ATTEMPTS_MAX", (2,)),
    Threshold(keygroups.state.memory.table, "CHANGED_KEYS_MIN", (1,)),
    Threshold(keygroups.state.timers, "STALE_MIN", (0, 1)),
    Threshold(keygroups.state.disk.change_tracking, "NOTES_MAX", (1, 4)),
    Threshold(keygroups.state.disk.change_tracking, "PENDING_MAX", (1,)),
    Threshold(keygroups.state.disk.store, "DIRTY_ROWS_MAX", (1, 8)),
    Threshold(snapshots.commit.stored_lists, "INLINE_MAX", (0, 1, 4)),
    Threshold(snapshots.commit.stored_lists, "LIST_ENTRIES_MAX", (1, 3)),
    Threshold(snapshots.commit.stored_lists, "RUN_GROWTH", (0, 1)),
)


@contextmanager
def buggified(draw: random.Random, thresholds: Iterable[Threshold] = THRESHOLDS) -> Iterator[None]:
    """Let about a third of the thresholds take another value."""
    with ExitStack() as patches:
        for threshold in thresholds:
            if draw.random() < 0.3:
                patches.enter_context(mock.patch.object(*threshold[:2], draw.choice(threshold.values)))
        yield
