"""Key groups, and the ranges of them that subtasks own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NewType, cast

from keygroups.arguments import check_count, check_integer

KeyGroup = NewType("KeyGroup", int)
"""The atomic unit of state assignment: ``hash(key) mod max_parallelism``."""

MAX_KEY_GROUPS = 32768
"""The largest max parallelism: key groups fit into a 16-bit integer and range arithmetic into 32 bits."""

_MIN_DEFAULT_KEY_GROUPS = 128


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """A contiguous, non-empty range of key groups; both ends are inclusive.

    Parameters
    ----------
    start : int
        The first key group, ``0 <= start <= end``.
    end : int
        The last key group, ``end < 32768``.

    Raises
    ------
    ConfigError
        The range is empty or exceeds the possible key groups.

    Examples
    --------
    >>> owned = KeyGroupRange(43, 85)
    >>> len(owned), 85 in owned, 86 in owned
    (43, True, False)
    >>> owned.intersection(KeyGroupRange(80, 127))
    KeyGroupRange(start=80, end=85)
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        last = MAX_KEY_GROUPS - 1
        check_count("start", self.start, 0, last)
        check_count("end", self.end, self.start, last, reason=f"start={self.start}")

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __iter__(self) -> Iterator[KeyGroup]:
        return cast("Iterator[KeyGroup]", iter(range(self.start, self.end + 1)))

    def __contains__(self, key_group: int) -> bool:
        return self.start <= key_group <= self.end

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange | None:
        """Return the range of key groups in both ranges, or None if there are none.

        Parameters
        ----------
        other : KeyGroupRange
            The other range.
        """
        start = max(self.start, other.start)
        end = min(self.end, other.end)
        return KeyGroupRange(start, end) if start <= end else None


def check_max_parallelism(max_parallelism: int) -> None:
    """Check a number of key groups.

    Parameters
    ----------
    max_parallelism : int
        The number of key groups.

    Raises
    ------
    ConfigError
        ``0 < max_parallelism <= 32768`` does not hold.
    """
    check_count("max_parallelism", max_parallelism, 1, MAX_KEY_GROUPS)


def check_parallelism(parallelism: int, max_parallelism: int, name: str = "parallelism") -> None:
    """Check that every subtask can own at least one key group.

    Parameters
    ----------
    parallelism : int
        The number of subtasks.
    max_parallelism : int
        The number of key groups.
    name : str
        What errors call the parallelism.

    Raises
    ------
    ConfigError
        ``0 < parallelism <= max_parallelism <= 32768`` does not hold.

    Examples
    --------
    >>> check_parallelism(4, 128)
    """
    check_max_parallelism(max_parallelism)
    reason = f"{max_parallelism=}, and each subtask owns a key group"
    check_count(name, parallelism, 1, max_parallelism, reason=reason)


def range_of(subtask_index: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """Return the key groups that a subtask owns.

    Parameters
    ----------
    subtask_index : int
        The index of the subtask, from 0.
    parallelism : int
        The number of subtasks.
    max_parallelism : int
        The number of key groups.

    Raises
    ------
    ConfigError
        The subtask or the parallelism is out of bounds.

    Examples
    --------
    >>> [range_of(subtask, 3, 128) for subtask in range(3)]  # doctest: +NORMALIZE_WHITESPACE
    [KeyGroupRange(start=0, end=42), KeyGroupRange(start=43, end=85), KeyGroupRange(start=86, end=127)]
    """
    check_parallelism(parallelism, max_parallelism)
    last = parallelism - 1
    subtask_index = check_integer("subtask_index", subtask_index, 0, last)
    start = -(-subtask_index * max_parallelism // parallelism)
    end = ((subtask_index + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


def subtask_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """Return the subtask that owns a key group; the inverse of `range_of`.

    Parameters
    ----------
    key_group : int
        The key group.
    parallelism : int
        The number of subtasks.
    max_parallelism : int
        The number of key groups.

    Raises
    ------
    ConfigError
        The key group or the parallelism is out of bounds.

    Examples
    --------
    >>> subtask_of(85, 3, 128), subtask_of(86, 3, 128)
    (1, 2)
    """
    check_parallelism(parallelism, max_parallelism)
    last = max_parallelism - 1
    group = check_integer("key_group", key_group, 0, last)
    return group * parallelism // max_parallelism


def default_max_parallelism(parallelism: int) -> int:
    """Return a number of key groups for a job that starts with this parallelism.

    The result is a power of two from 128 to 32768, and leaves room for half as many subtasks again. Store it: the
    key groups of existing state depend on it.

    Parameters
    ----------
    parallelism : int
        The number of subtasks.

    Raises
    ------
    ConfigError
        ``0 < parallelism <= 32768`` does not hold.

    Examples
    --------
    >>> [default_max_parallelism(parallelism) for parallelism in (1, 85, 86, 1000)]
    [128, 128, 256, 2048]
    """
    check_parallelism(parallelism, MAX_KEY_GROUPS)
    with_room = parallelism + parallelism // 2
    next_power_of_two = 1 << (with_room - 1).bit_length()
    return min(max(next_power_of_two, _MIN_DEFAULT_KEY_GROUPS), MAX_KEY_GROUPS)
