"""Plans a change of parallelism: which key groups move between which subtasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from keygroups.ranges import KeyGroupRange, check_parallelism, range_of, subtask_of
from keygroups.representation import fields_repr, html_table


@dataclass(frozen=True, slots=True)
class Move:
    """A range of key groups with its owners before and after the rescale."""

    source_subtask: int
    target_subtask: int
    """Equal to the source if the key groups stay."""
    key_groups: KeyGroupRange


@dataclass(frozen=True, slots=True)
class RescalePlan:
    """The moves of a rescale in ascending order; together they cover every key group exactly once."""

    old_parallelism: int
    new_parallelism: int
    max_parallelism: int
    moves: tuple[Move, ...]

    __repr__ = fields_repr

    def _repr_html_(self) -> str:
        title = f"from parallelism {self.old_parallelism} to {self.new_parallelism}, {self.max_parallelism} key groups"
        rows = [
            (move.source_subtask, move.target_subtask, move.key_groups.start, move.key_groups.end)
            for move in self.moves
        ]
        return html_table(title, ("from subtask", "to subtask", "first", "last"), rows)

    @property
    def moved_key_groups(self) -> int:
        """The number of key groups whose subtask changes."""
        return sum(len(move.key_groups) for move in self.moves if move.source_subtask != move.target_subtask)


def plan_rescale(old_parallelism: int, new_parallelism: int, max_parallelism: int) -> RescalePlan:
    """Plan the change from one parallelism to another, with the same key groups.

    Parameters
    ----------
    old_parallelism : int
        The number of subtasks before the rescale.
    new_parallelism : int
        The number of subtasks after the rescale.
    max_parallelism : int
        The number of key groups, which a rescale keeps.

    Raises
    ------
    ConfigError
        One of the parallelisms does not fit the number of key groups.

    Examples
    --------
    >>> plan = plan_rescale(2, 3, 128)
    >>> plan.moved_key_groups
    63
    >>> for move in plan.moves:
    ...     print(move.source_subtask, "->", move.target_subtask, move.key_groups)
    0 -> 0 KeyGroupRange(start=0, end=42)
    0 -> 1 KeyGroupRange(start=43, end=63)
    1 -> 1 KeyGroupRange(start=64, end=85)
    1 -> 2 KeyGroupRange(start=86, end=127)
    """
    check_parallelism(old_parallelism, max_parallelism, "old_parallelism")
    check_parallelism(new_parallelism, max_parallelism, "new_parallelism")
    moves = tuple(_moves(old_parallelism, new_parallelism, max_parallelism))
    return RescalePlan(old_parallelism, new_parallelism, max_parallelism, moves)


def _moves(old_parallelism: int, new_parallelism: int, max_parallelism: int) -> Iterator[Move]:
    start = 0
    while start < max_parallelism:
        source = subtask_of(start, old_parallelism, max_parallelism)
        target = subtask_of(start, new_parallelism, max_parallelism)
        source_end = range_of(source, old_parallelism, max_parallelism).end
        target_end = range_of(target, new_parallelism, max_parallelism).end
        end = min(source_end, target_end)
        yield Move(source, target, KeyGroupRange(start, end))
        start = end + 1
