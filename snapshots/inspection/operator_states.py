"""The operator states of a snapshot, counted, and compared with another version's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from snapshots.format.manifest import Manifest
from snapshots.format.manifest_schema import OperatorStateMode
from snapshots.restore.snapshot import Snapshot
from snapshots.restore.tables import item_files, item_tables


@dataclass(frozen=True, slots=True)
class OperatorStateSize:
    """How much an operator state holds; of a broadcast state one copy is counted.

    Attributes
    ----------
    name : str
        The state.
    mode : {"split", "union", "broadcast"}
        How a restore redistributes its items.
    items, bytes : int
        Its items, and the size of the files that hold them.
    """

    name: str
    mode: OperatorStateMode
    items: int
    bytes: int


@dataclass(frozen=True, slots=True)
class OperatorStateDifference:
    """The differences between two versions of an operator state; which subtask holds an item makes none.

    Attributes
    ----------
    name : str
        The state.
    in_old, in_new : bool
        Whether each version has the state.
    added, removed : int
        How many items only the new version has, and only the old one.
    """

    name: str
    in_old: bool
    in_new: bool
    added: int
    removed: int


def operator_state_sizes(manifest: Manifest) -> tuple[OperatorStateSize, ...]:
    """Return the size of each operator state; this reads nothing."""
    found = []
    for state in manifest.operator_states:
        files = item_files(manifest, state)
        size = sum(file.rows for file in files), sum(file.bytes for file in files)
        found.append(OperatorStateSize(state.name, state.mode, *size))
    return tuple(found)


def compare_operator_states(old: Snapshot, new: Snapshot) -> tuple[OperatorStateDifference, ...]:
    """Compare the operator states of two versions; the items of one state at a time are in memory."""
    names = dict.fromkeys([*old.operator_state_names, *new.operator_state_names])
    return tuple(_compare(old, new, name) for name in names)


def _compare(old: Snapshot, new: Snapshot, name: str) -> OperatorStateDifference:
    before, after = _items_of(old, name), _items_of(new, name)
    return OperatorStateDifference(
        name,
        name in old.operator_state_names,
        name in new.operator_state_names,
        (after - before).total(),
        (before - after).total(),
    )


def _items_of(snapshot: Snapshot, name: str) -> Counter[bytes]:
    found = Counter[bytes]()
    state = snapshot.manifest.operator_state(name)
    for table in () if state is None else item_tables(snapshot.folder, snapshot.manifest, state):
        found.update(table.column("item").to_pylist())
    return found
