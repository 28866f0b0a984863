"""Inspection of snapshots: activity, sizes and skew, largest keys, elements in flight, history, differences, export."""

from __future__ import annotations

from snapshots.inspection.activity import Activity, Commit, Pace
from snapshots.inspection.difference import (
    Difference,
    InFlightDifference,
    KeyGroupChange,
    RowChange,
    StateDifference,
    compare,
)
from snapshots.inspection.elements import InFlightSummary, in_flight_summary
from snapshots.inspection.estimates import Size, SubtaskShare, shares_of, size_of
from snapshots.inspection.export import export
from snapshots.inspection.history import VersionSummary, history
from snapshots.inspection.largest import LargeKey, largest_keys
from snapshots.inspection.recent import RecentVersions
from snapshots.inspection.sizes import KeyGroupSizes, key_group_sizes

__all__ = [
    "Activity",
    "Commit",
    "Difference",
    "InFlightDifference",
    "InFlightSummary",
    "KeyGroupChange",
    "KeyGroupSizes",
    "LargeKey",
    "Pace",
    "RecentVersions",
    "RowChange",
    "Size",
    "StateDifference",
    "SubtaskShare",
    "VersionSummary",
    "compare",
    "export",
    "history",
    "in_flight_summary",
    "key_group_sizes",
    "largest_keys",
    "shares_of",
    "size_of",
]
