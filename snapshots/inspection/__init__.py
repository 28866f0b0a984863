"""Inspection of snapshots: activity, sizes, keys, elements in flight, history, differences, operators, export."""

from __future__ import annotations

from snapshots.inspection.activity import Activity, ChildActivity, Commit, Pace
from snapshots.inspection.difference import (
    Difference,
    InFlightDifference,
    KeyGroupChange,
    RowChange,
    StateDifference,
    compare,
)
from snapshots.inspection.estimates import Size, StepSummary, SubtaskShare, shares_of, size_of, steps_of
from snapshots.inspection.export import export
from snapshots.inspection.one_key import KeyContent, KeyRow, StateOfKey, find_key
from snapshots.inspection.operator_states import (
    OperatorStateDifference,
    OperatorStateSize,
    operator_state_sizes,
)
from snapshots.inspection.operators import (
    Operators,
    OperatorSummary,
    RecentVersions,
    VersionSummary,
    history,
    operators_in,
)
from snapshots.inspection.sizes import (
    InFlightSummary,
    KeyGroupSizes,
    LargeKey,
    in_flight_summary,
    key_group_sizes,
    largest_keys,
)

__all__ = [
    "Activity",
    "ChildActivity",
    "Commit",
    "Difference",
    "InFlightDifference",
    "InFlightSummary",
    "KeyContent",
    "KeyGroupChange",
    "KeyGroupSizes",
    "KeyRow",
    "LargeKey",
    "OperatorStateDifference",
    "OperatorStateSize",
    "OperatorSummary",
    "Operators",
    "Pace",
    "RecentVersions",
    "RowChange",
    "Size",
    "StateDifference",
    "StateOfKey",
    "StepSummary",
    "SubtaskShare",
    "VersionSummary",
    "compare",
    "export",
    "find_key",
    "history",
    "in_flight_summary",
    "key_group_sizes",
    "largest_keys",
    "operator_state_sizes",
    "operators_in",
    "shares_of",
    "size_of",
    "steps_of",
]
