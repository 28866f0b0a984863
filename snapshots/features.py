"""What a reader of a manifest must know beyond the beginnings of its format version."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from keygroups.state.timers import TIMER_STATES

if TYPE_CHECKING:
    from snapshots.manifest import DataFile, StateInfo

FEATURES = frozenset({"codecs", "delta", "entries", "operator_state", "timers", "ttl"})
"""What a manifest may require of its reader, in this release."""


def features_of(files: Iterable[DataFile], states: Iterable[StateInfo]) -> tuple[str, ...]:
    """Return what a reader of the files and of these keyed states must know."""
    kinds = {file.kind for file in files}
    states = tuple(states)
    has_entries = any(state.kind in {"list", "map"} for state in states)
    named = {
        "codecs": any(state.codecs for state in states),
        "delta": "delta" in kinds,
        "entries": has_entries,
        "operator_state": "operator" in kinds,
        "timers": any(state.name in TIMER_STATES for state in states),
        "ttl": any("expires_at" in state.field_ids for state in states),
    }
    return tuple(feature for feature, is_needed in named.items() if is_needed)
