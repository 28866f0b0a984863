"""The features that a reader must support to read a manifest, beyond the base of its format version."""

from __future__ import annotations

from collections.abc import Iterable

from keygroups.names import split_step
from keygroups.state.timers import TIMER_STATES
from snapshots.format.manifest import Channel, DataFile, StateInfo


def features_of(files: Iterable[DataFile], states: Iterable[StateInfo], channels: Iterable[Channel]) -> tuple[str, ...]:
    """Return the features that a reader of these files, keyed states and channels must support."""
    kinds = {file.kind for file in files}
    states = tuple(states)
    has_steps = any(channel.step is not None for channel in channels)
    names = (split_step(state.name)[1] if has_steps else state.name for state in states)
    has_entries = any(state.kind in {"list", "map"} for state in states)
    named = {
        "codecs": any(state.codecs for state in states),
        "delta": "delta" in kinds,
        "entries": has_entries,
        "operator_state": "operator" in kinds,
        "steps": has_steps,
        "timers": any(name in TIMER_STATES for name in names),
        "ttl": any("expires_at" in state.field_ids for state in states),
    }
    return tuple(feature for feature, is_needed in named.items() if is_needed)
