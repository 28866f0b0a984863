"""Which key groups exist, and which subtask owns which of them."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NewType, cast

from keygroups.errors import ConfigError

KeyGroup = NewType("KeyGroup", int)
"""The atomic unit of state assignment: ``hash(key) mod max_parallelism``."""

MAX_KEY_GROUPS = 32768
"""The largest max parallelism; key groups fit in a 16 bit integer and range arithmetic in 32 bits."""

_MIN_DEFAULT_KEY_GROUPS = 128


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """A contiguous, non-empty range of key groups; both ends belong to it.

    Parameters
    ----------
    start : int
        The first key group, ``0 <= start <= end``.
    end : int
        The last key group, ``end < 32768``.

    Raises
    ------
    ConfigError
        If the range is empty or reaches outside the key groups that can exist.

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
        start = _integer("start", self.start)
        end = _integer("end", self.end)
        if not 0 <= start < MAX_KEY_GROUPS:
            raise ConfigError("start", start, f"must be between 0 and {MAX_KEY_GROUPS - 1}")
        if not start <= end < MAX_KEY_GROUPS:
            raise ConfigError("end", end, f"must be between start={start} and {MAX_KEY_GROUPS - 1}")

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __iter__(self) -> Iterator[KeyGroup]:
        return cast("Iterator[KeyGroup]", iter(range(self.start, self.end + 1)))

    def __contains__(self, key_group: int) -> bool:
        return self.start <= key_group <= self.end

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange | None:
        """Return the key groups in both ranges, or None if there are none.

        Parameters
        ----------
        other : KeyGroupRange
            The other range.
        """
        start = max(self.start, other.start)
        end = min(self.end, other.end)
        return KeyGroupRange(start, end) if start <= end else None


def check_max_parallelism(max_parallelism: int) -> None:
    """Refuse a number of key groups that can never work.

    Parameters
    ----------
    max_parallelism : int
        The number of key groups.

    Raises
    ------
    ConfigError
        Unless ``0 < max_parallelism <= 32768``.
    """
    if not 0 < _integer("max_parallelism", max_parallelism) <= MAX_KEY_GROUPS:
        raise ConfigError("max_parallelism", max_parallelism, f"must be between 1 and {MAX_KEY_GROUPS}")


def check_parallelism(parallelism: int, max_parallelism: int) -> None:
    """Refuse a parallelism that the key groups cannot be divided among.

    Parameters
    ----------
    parallelism : int
        The number of subtasks.
    max_parallelism : int
        The number of key groups.

    Raises
    ------
    ConfigError
        Unless ``0 < parallelism <= max_parallelism <= 32768``.

    Examples
    --------
    >>> check_parallelism(4, 128)
    """
    check_max_parallelism(max_parallelism)
    if not 0 < _integer("parallelism", parallelism) <= max_parallelism:
        reason = f"must be between 1 and max_parallelism={max_parallelism}, because each subtask owns a key group"
        raise ConfigError("parallelism", parallelism, reason)


def range_of(subtask_index: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """Return the key groups that a subtask owns.

    Parameters
    ----------
    subtask_index : int
        The subtask, counted from 0.
    parallelism : int
        The number of subtasks.
    max_parallelism : int
        The number of key groups.

    Raises
    ------
    ConfigError
        If there is no such subtask or no such parallelism.

    Examples
    --------
    >>> [range_of(subtask, 3, 128) for subtask in range(3)]  # doctest: +NORMALIZE_WHITESPACE
    [KeyGroupRange(start=0, end=42), KeyGroupRange(start=43, end=85), KeyGroupRange(start=86, end=127)]
    """
    check_parallelism(parallelism, max_parallelism)
    if not 0 <= _integer("subtask_index", subtask_index) < parallelism:
        raise ConfigError("subtask_index", subtask_index, f"must be between 0 and {parallelism - 1}")
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
        If there is no such key group or no such parallelism.

    Examples
    --------
    >>> subtask_of(85, 3, 128), subtask_of(86, 3, 128)
    (1, 2)
    """
    check_parallelism(parallelism, max_parallelism)
    group = _integer("key_group", key_group)
    if not 0 <= group < max_parallelism:
        raise ConfigError("key_group", key_group, f"must be between 0 and {max_parallelism - 1}")
    return group * parallelism // max_parallelism


def default_max_parallelism(parallelism: int) -> int:
    """Return the number of key groups for a job that starts with a parallelism.

    It leaves room to grow by half and is a power of two from 128 to 32768. Store it: the key
    groups of existing state are bound to it.

    Parameters
    ----------
    parallelism : int
        The number of subtasks.

    Raises
    ------
    ConfigError
        Unless ``0 < parallelism <= 32768``.

    Examples
    --------
    >>> [default_max_parallelism(parallelism) for parallelism in (1, 85, 86, 1000)]
    [128, 128, 256, 2048]
    """
    check_parallelism(parallelism, MAX_KEY_GROUPS)
    with_room = parallelism + parallelism // 2
    next_power_of_two = 1 << (with_room - 1).bit_length()
    return min(max(next_power_of_two, _MIN_DEFAULT_KEY_GROUPS), MAX_KEY_GROUPS)


def _integer(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError(name, value, "must be an integer") from None
