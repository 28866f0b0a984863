"""The operator states of a subtask when its operator is opened: empty, or its share of a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from async_op.threads.own_thread import on_own_thread
from keygroups.descriptors import OperatorMapState, OperatorStateDescriptor
from keygroups.state import OperatorStates
from snapshots import IncompatibleSnapshot, SubtaskRestore
from snapshots.restore.declared import check_operator_states


async def restored_operator_states(
    declared: Sequence[OperatorStateDescriptor], restore: SubtaskRestore | None
) -> OperatorStates:
    """Return the operator states of a subtask; a thread reads their items.

    Raises
    ------
    IncompatibleSnapshot
        The snapshot has a state that is not declared, or that is declared with another mode.
    """
    if restore is None:
        return OperatorStates(declared)
    check_operator_states(restore.manifest, declared, restore.folder.uri)
    if not declared:
        return OperatorStates()
    return OperatorStates(declared, await on_own_thread(_read, declared, restore), restore.own_items)


def _read(declared: Iterable[OperatorStateDescriptor], restore: SubtaskRestore) -> dict[str, list[object]]:
    items = {descriptor.name: restore.operator_state(descriptor.name) for descriptor in declared}
    for descriptor in declared:
        if isinstance(descriptor, OperatorMapState):
            _check_entries(descriptor.name, items[descriptor.name])
    return items


def _check_entries(name: str, items: Iterable[object]) -> None:
    for item in items:
        if type(item) is not tuple or len(item) != 2:
            what = f"an item of operator state {name!r}"
            next_step = "only a map's entries fit an OperatorMapState; give the map a name of its own"
            raise IncompatibleSnapshot(what, "a pair of key and value", item, next_step)
