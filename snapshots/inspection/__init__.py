"""Inspection of snapshots: sizes and skew, the largest keys, elements in flight, history, differences, export."""

from __future__ import annotations

from snapshots.inspection.difference import (
    Difference,
    InFlightDifference,
    KeyGroupChange,
    RowChange,
    StateDifference,
    compare,
)
from snapshots.inspection.elements import InFlightSummary, in_flight_summary
from snapshots.inspection.export import export
from snapshots.inspection.history import VersionSummary, history
from snapshots.inspection.largest import LargeKey, largest_keys
from snapshots.inspection.sizes import KeyGroupSizes, key_group_sizes

__all__ = [
    "Difference",
    "InFlightDifference",
    "InFlightSummary",
    "KeyGroupChange",
    "KeyGroupSizes",
    "LargeKey",
    "RowChange",
    "StateDifference",
    "VersionSummary",
    "compare",
    "export",
    "history",
    "in_flight_summary",
    "key_group_sizes",
    "largest_keys",
]
