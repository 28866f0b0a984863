"""What a reader of a manifest must know beyond the beginnings of its format version."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snapshots.manifest import DataFile, StateInfo

FEATURES = frozenset({"codecs", "delta", "entries", "operator_state"})
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
    }
    return tuple(feature for feature, is_needed in named.items() if is_needed)
