"""A cut of an operator: its state and what is in flight, taken in one step of the event loop."""

from __future__ import annotations

from dataclasses import replace

from async_op.operator.assembly import Parts
from keygroups.state import OperatorStates
from snapshots import OperatorStateCut, SubtaskSnapshot


def cut_of(parts: Parts, hash_name: str) -> SubtaskSnapshot:
    """Return the current state and in-flight elements of an operator."""
    runtime, in_flight, clock = parts.runtime, parts.in_flight, parts.scope.clock
    cut = SubtaskSnapshot(
        subtask_index=runtime.subtask_index,
        parallelism=runtime.parallelism,
        max_parallelism=runtime.max_parallelism,
        hash=hash_name,
        states=parts.scope.backend.cut(),
        in_flight=in_flight.capture(parts.keys, clock.time()),
        watermark=in_flight.watermark,
        emitted=in_flight.emitted,
        wall_time=clock.wall_time(),
        lineage=parts.keys.identity.lineage,
    )
    return replace(cut, operator_states=_operator_states(runtime.operator_states, cut.cut_id))


def _operator_states(states: OperatorStates, cut_id: str) -> tuple[OperatorStateCut, ...]:
    items = states.cut(cut_id)
    return tuple(OperatorStateCut(one.name, one.mode, items[one.name]) for one in states.declared)
