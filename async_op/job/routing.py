"""To which subtask of the next step an element goes."""

from __future__ import annotations

from typing import Any

from async_op.options import OperatorOptions
from keygroups.hashing import key_hasher
from keygroups.ranges import subtask_of
from snapshots import IncompatibleSnapshot


class Route:
    """The way to the subtasks of a step.

    An element without a usable key stays on its subtask, where the step's error policy applies to it.

    Parameters
    ----------
    options : OperatorOptions
        The options of the step that receives the elements.
    parallelism, max_parallelism : int
        The number of subtasks and of key groups.
    """

    __slots__ = ("_hash", "_key_by", "_max_parallelism", "_parallelism")

    def __init__(self, options: OperatorOptions, parallelism: int, max_parallelism: int) -> None:
        self._key_by = options.key_by
        self._hash = key_hasher(options.hash)
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism

    def reached_from(self, subtask: int) -> range:
        """Return the subtasks that elements of a subtask may go to."""
        return range(subtask, subtask + 1) if self._key_by is None else range(self._parallelism)

    def reaching(self, subtask: int) -> range:
        """Return the subtasks whose elements may come to a subtask."""
        return self.reached_from(subtask)  # forward or everywhere, so it is the same from both ends

    def target(self, value: Any, subtask: int) -> int:
        """Return the subtask that gets a value which comes from a subtask."""
        if self._key_by is None:
            return subtask
        try:
            key_group = self._hash(self._key_by(value)) % self._max_parallelism
        except IncompatibleSnapshot:
            raise  # no element may come in: the state is of other keys
        except Exception:  # noqa: BLE001 - raised again, or handled, by the operator that gets it
            return subtask
        return subtask_of(key_group, self._parallelism, self._max_parallelism)
