"""The place of an operator among its subtasks, and the check that a snapshot fits it."""

from __future__ import annotations

from dataclasses import dataclass

from async_op.runtime import Runtime
from keygroups.arguments import check_integer
from keygroups.ranges import check_parallelism, default_max_parallelism, range_of
from snapshots import IncompatibleSnapshot, SubtaskRestore


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which subtask an operator is.

    Attributes
    ----------
    parallelism, subtask_index : int
        The number of subtasks, and the index of this one.
    max_parallelism : int or None
        The number of key groups. None means that of the restored snapshot, or a default derived from the parallelism.

    Raises
    ------
    ConfigError
        The index is not below the parallelism, or a number is invalid.
    """

    parallelism: int = 1
    subtask_index: int = 0
    max_parallelism: int | None = None

    def __post_init__(self) -> None:
        groups = default_max_parallelism(self.parallelism) if self.max_parallelism is None else self.max_parallelism
        check_parallelism(self.parallelism, groups)
        last = self.parallelism - 1
        check_integer("subtask_index", self.subtask_index, 0, last, reason=f"there are subtasks 0 to {last}")

    def runtime(self, hash_name: str, restore: SubtaskRestore | None) -> Runtime:
        """Return the function's `Runtime`, with the number of key groups of the restored snapshot.

        Raises
        ------
        IncompatibleSnapshot
            The restored share is for another subtask, parallelism, number of key groups or hash, or it has operator
            state.
        """
        groups = self.max_parallelism
        if groups is None:
            groups = default_max_parallelism(self.parallelism) if restore is None else restore.manifest.max_parallelism
        if restore is not None:
            restore.check_fits(self.subtask_index, self.parallelism, groups, hash_name)
            _check_operator_states(restore)
        owned = range_of(self.subtask_index, self.parallelism, groups)
        return Runtime(self.subtask_index, self.parallelism, groups, owned)


def _check_operator_states(restore: SubtaskRestore) -> None:
    """Refuse operator state, because the next snapshot would lose it."""
    for state in restore.manifest.operator_states:
        next_step = (
            "the operator's next snapshot would be without it: read its items with `restore.operator_state`, and open "
            "the operator with a snapshot that has none"
        )
        raise IncompatibleSnapshot("an operator state", [], state.name, next_step)
