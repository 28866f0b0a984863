"""The operator states of a subtask when its operator is opened: empty, or its share of a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from async_op.threads.own_thread import on_own_thread
from keygroups.descriptors import OperatorMapState, OperatorStateDescriptor
from keygroups.state import OperatorStates
from snapshots import IncompatibleSnapshot, SubtaskRestore


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
    _check_declared(declared, restore)
    if not declared:
        return OperatorStates()
    return OperatorStates(declared, await on_own_thread(_read, declared, restore), restore.own_items)


def _check_declared(declared: Iterable[OperatorStateDescriptor], restore: SubtaskRestore) -> None:
    modes = {descriptor.name: descriptor.mode for descriptor in declared}
    for state in restore.manifest.operator_states:
        if state.name not in modes:
            next_step = (
                "declare it in the function's operator_states (for keygroups_budget_…, pass the Budget); if its items "
                "are no longer needed, drop it with `keygroups edit`, because the operator's next snapshot would be "
                "without it"
            )
            raise IncompatibleSnapshot("an operator state", sorted(modes), state.name, next_step)
        if state.mode != modes[state.name]:
            next_step = "declare it as it was written, and give the state with the other mode a name of its own"
            raise IncompatibleSnapshot(
                f"the mode of operator state {state.name!r}", modes[state.name], state.mode, next_step
            )


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
