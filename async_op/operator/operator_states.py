"""The operator states of a subtask: restored when its operator is opened, and given by its function at a cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from async_op.errors import ItemsNotGiven
from async_op.functions.base import Function
from async_op.threads.own_thread import on_own_thread
from keygroups.descriptors import OperatorListState, OperatorMapState, OperatorStateDescriptor
from keygroups.safe_text import described
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


def take_given_items(function: Function, states: OperatorStates) -> None:
    """Replace the items of operator lists by those that the function gives for the cut that is being made.

    Raises
    ------
    ItemsNotGiven
        It raised an error, or returned something else than a list of items that can be stored.
    """
    if not function.gives_items:
        return
    for descriptor in function.operator_states:
        if isinstance(descriptor, OperatorListState):
            _take_items_of(function, descriptor, states)


def _take_items_of(function: Function, descriptor: OperatorListState, states: OperatorStates) -> None:
    try:
        items: object = function.snapshot_state(descriptor)
        if isinstance(items, list | tuple):
            states.handle(descriptor).update(items)
    except Exception as error:  # whatever the user's code raises
        raise ItemsNotGiven(descriptor.name, described(error)) from error
    if items is not None and not isinstance(items, list | tuple):
        raise ItemsNotGiven(descriptor.name, f"it returned a {type(items).__qualname__}")


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
