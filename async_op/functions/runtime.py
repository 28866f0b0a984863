"""Where a function runs: its subtask, the parallelism and the key groups, and the state that belongs to the subtask."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, overload

from keygroups.descriptors import OperatorListState, OperatorMapState, OperatorStateDescriptor
from keygroups.ranges import KeyGroupRange
from keygroups.state import OperatorListHandle, OperatorMapHandle, OperatorStates


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where a function runs.

    Attributes
    ----------
    subtask_index, parallelism, max_parallelism : int
        Which subtask it is, of how many, over how many key groups.
    key_groups : KeyGroupRange
        The key groups that the subtask owns.
    restored : bool
        Whether the operator was opened with a snapshot; if not, all of its state is empty.
    operator_states : OperatorStates
        The operator states of the subtask; functions use `operator_state`.
    """

    subtask_index: int
    parallelism: int
    max_parallelism: int
    key_groups: KeyGroupRange
    restored: bool = False
    operator_states: OperatorStates = field(default_factory=OperatorStates, repr=False, compare=False)

    @overload
    def operator_state(self, descriptor: OperatorListState) -> OperatorListHandle: ...
    @overload
    def operator_state(self, descriptor: OperatorMapState) -> OperatorMapHandle: ...
    def operator_state(self, descriptor: OperatorStateDescriptor) -> Any:
        """Return the handle of an operator state, which can be used as long as the operator is open.

        Its writes count at once, also if the invocation fails or is repeated later. The list has `get()`,
        `add(value)` and `update(values)`, for the thread of the event loop. The map is a mapping that only `open` may
        write to; any thread may read it.

        Raises
        ------
        OperatorStateNotDeclared, WrongStateKind
            The function's `operator_states` do not list it, or list it with another kind or mode.
        """
        return self.operator_states.handle(descriptor)
