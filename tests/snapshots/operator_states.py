"""Snapshots with operator states of every mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keygroups import OperatorListState, OperatorMapState
from snapshots import OperatorStateCut, Snapshot, SnapshotStore
from tests.snapshot_kit import new_store, parts, words

OFFSETS = OperatorListState("offsets")
SEEN = OperatorListState("seen", mode="union")
RULES = OperatorMapState("rules")
CONTENT = {"count": {key: len(key) for key in words(50)}, "profile": {}}


def cuts(subtask: int, rules: Any = (("a", 1), ("b", {"n": 2}))) -> tuple[OperatorStateCut, ...]:
    return (
        OperatorStateCut("offsets", "split", tuple((f"partition {subtask}", n) for n in range(subtask + 1))),
        OperatorStateCut("seen", "union", (subtask,)),
        OperatorStateCut("rules", "broadcast", tuple(rules)),
    )


def written(parallelism: int = 2, store: SnapshotStore | None = None) -> tuple[SnapshotStore, Snapshot]:
    store = store or new_store()
    made = parts(CONTENT, parallelism=parallelism)
    return store, store.write([replace(one, operator_states=cuts(n)) for n, one in enumerate(made)])


def held(snapshot: Snapshot, parallelism: int = 1) -> dict[str, list[object]]:
    """Return the items that the subtasks of a restore get, those of all split states together."""
    shares = [snapshot.restore(index, parallelism) for index in range(parallelism)]
    found: dict[str, list[object]] = {}
    for state in snapshot.manifest.operator_states:
        lists = [share.operator_state(state.name) for share in shares]
        if state.mode == "split":
            found[state.name] = sorted((item for items in lists for item in items), key=repr)
        else:
            assert all(items == lists[0] for items in lists)
            found[state.name] = lists[0]
    return found
