"""The place of an operator among its subtasks, and the check that a snapshot fits it."""

from __future__ import annotations

from dataclasses import dataclass

from async_op.calls.value_checks import Vet
from async_op.functions.runtime import Runtime
from async_op.in_flight.idempotency_keys import Identity
from async_op.resilience import SharedLimits
from async_op.resilience.lending import Allowance
from keygroups.arguments import check_count
from keygroups.errors import ConfigError
from keygroups.ranges import check_parallelism, default_max_parallelism, range_of
from keygroups.state import OperatorStates
from snapshots import Snapshot, SubtaskRestore
from snapshots.format.subtask import UNKNOWN_TYPES, ElementTypes


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskInfo:
    """Which subtask an operator is.

    Attributes
    ----------
    parallelism, subtask_index : int
        The number of subtasks, and the index of this one.
    max_parallelism : int or None
        The number of key groups. None means the restored snapshot's, or a default derived from the parallelism.
    is_in_chain : bool
        Whether it is a step of a job, which goes on to a cut after the failure of an element.
    limits : SharedLimits or None
        The limits that it shares with the other subtasks in this process. None gives it a share of them.
    identity : Identity or None
        What all its idempotency keys have in common; None if its caller names the elements, and the snapshot or the run
        has the lineage of its timers.
    allowance : mapping of str to Allowed or None
        What the driver allows it of its limits; None if its share stays as it is.
    element_types : ElementTypes
        The types of its elements, as far as they are known.
    vet : Vet or None
        Refuses values that cannot be used or stored before any call is made for them. None takes all values.

    Raises
    ------
    ConfigError
        The index is not below the parallelism, or a number is invalid.
    """

    parallelism: int = 1
    subtask_index: int = 0
    max_parallelism: int | None = None
    is_in_chain: bool = False
    limits: SharedLimits | None = None
    identity: Identity | None = None
    allowance: Allowance | None = None
    element_types: ElementTypes = UNKNOWN_TYPES
    vet: Vet | None = None

    def __post_init__(self) -> None:
        groups = default_max_parallelism(self.parallelism) if self.max_parallelism is None else self.max_parallelism
        check_parallelism(self.parallelism, groups)
        last = self.parallelism - 1
        check_count("subtask_index", self.subtask_index, 0, last)

    def __str__(self) -> str:
        return f"{self.subtask_index} of {self.parallelism}"

    def check_fits(self, hash_name: str, restore: SubtaskRestore | Snapshot | None) -> None:
        """Check that a restored share was made for this place.

        Raises
        ------
        IncompatibleSnapshot
            It is for another subtask, parallelism, number of key groups or hash.
        ConfigError
            It is a whole snapshot.
        """
        if restore is None:
            return
        if isinstance(restore, Snapshot):
            share = f"snapshot.restore({self.subtask_index}, {self.parallelism})"
            reason = f"pass snapshot.restore(subtask_index, parallelism), here {share}: the share of this subtask"
            raise ConfigError("restore", restore, reason)
        restore.check_fits(self.subtask_index, self.parallelism, self._key_groups(restore), hash_name)

    def runtime(self, restore: SubtaskRestore | None, operator_states: OperatorStates) -> Runtime:
        """Return the function's `Runtime`, with the number of key groups of the restored snapshot."""
        groups = self._key_groups(restore)
        owned = range_of(self.subtask_index, self.parallelism, groups)
        return Runtime(self.subtask_index, self.parallelism, groups, owned, restore is not None, operator_states)

    def _key_groups(self, restore: SubtaskRestore | None) -> int:
        if self.max_parallelism is not None:
            return self.max_parallelism
        return default_max_parallelism(self.parallelism) if restore is None else restore.manifest.max_parallelism
