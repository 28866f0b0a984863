"""Whether an operator declares the states of a snapshot as they were written."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from keygroups.descriptors import OperatorStateDescriptor, StateDescriptor
from keygroups.names import in_step
from snapshots.errors import IncompatibleSnapshot
from snapshots.format.manifest import Manifest, StateInfo
from snapshots.format.schemas import widens


def check_states(manifest: Manifest, declared: Iterable[StateDescriptor], uri: str, step: str | None = None) -> None:
    """Check that an operator declares the keyed states of its snapshot.

    Parameters
    ----------
    manifest : Manifest
        What the snapshot says of the operator.
    declared : iterable of StateDescriptor
        What the operator declares.
    uri : str
        The folder of the snapshot, for the command that changes it.
    step : str, optional
        The step of a job.

    Raises
    ------
    IncompatibleSnapshot
        A state is not declared, or with another kind, or with a type to which the stored type does not widen.
    """
    by_name = {one.name: one for one in declared}
    stored = [info.name for info in manifest.states]
    for info in manifest.states:
        if info.name not in by_name:
            new = [name for name in by_name if name not in stored]
            raise IncompatibleSnapshot(
                "a state", sorted(by_name), info.name, _edit("states", info.name, new, uri, step)
            )
        _check_state(by_name[info.name], info)


def check_operator_states(
    manifest: Manifest, declared: Iterable[OperatorStateDescriptor], uri: str, step: str | None = None
) -> None:
    """Check that an operator declares the operator states of its snapshot, with the parameters of `check_states`.

    Raises
    ------
    IncompatibleSnapshot
        A state is not declared, or with another mode.
    """
    modes = {one.name: one.mode for one in declared}
    stored = [state.name for state in manifest.operator_states]
    for state in manifest.operator_states:
        if state.name not in modes:
            new = [name for name in modes if name not in stored]
            advice = _edit("operator_states", state.name, new, uri, step)
            budget = " (for keygroups_budget_…, pass the Budget)" if state.name.startswith("keygroups_budget_") else ""
            raise IncompatibleSnapshot("an operator state", sorted(modes), state.name, advice + budget)
        if state.mode != modes[state.name]:
            what = f"the mode of operator state {state.name!r}"
            next_step = "declare it as it was written, and give the state with the other mode a name of its own"
            raise IncompatibleSnapshot(what, modes[state.name], state.mode, next_step)


def _check_state(descriptor: StateDescriptor, info: StateInfo) -> None:
    if descriptor.kind != info.kind or not widens(info.arrow_type, descriptor.value_type):
        declared = (descriptor.kind, None if descriptor.value_type is None else str(descriptor.value_type))
        next_step = "declare it as it was written, or with a type that holds all values of that one"
        raise IncompatibleSnapshot(f"state {info.name!r}", declared, (info.kind, info.type), next_step)


def _edit(attribute: str, name: str, new: Collection[str], uri: str, step: str | None) -> str:
    """Return what to do about a state that is not declared any more."""
    stored, *others = (one if step is None else in_step(step, one) for one in (name, *new))
    rename = f"; if it has a new name, run `keygroups edit {uri} --rename {stored}={others[0]}`" if others else ""
    drop = f"; if it is no longer needed, run `keygroups edit {uri} --drop {stored}`"
    return f"declare it in the function's {attribute}{rename}{drop}"
