"""Where a function runs: its subtask, the parallelism and the key groups."""

from __future__ import annotations

from dataclasses import dataclass

from keygroups.ranges import KeyGroupRange


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where a function runs.

    Attributes
    ----------
    subtask_index, parallelism, max_parallelism : int
        Which subtask it is, of how many, over how many key groups.
    key_groups : KeyGroupRange
        The key groups that the subtask owns.
    """

    subtask_index: int
    parallelism: int
    max_parallelism: int
    key_groups: KeyGroupRange
