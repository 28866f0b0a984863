"""Redistribution of the state that belongs to a subtask rather than to a key.

Operator state is a list of items per subtask. A rescale redistributes it in one of three ways:
split (each item goes to one subtask), union (each item goes to every subtask) or broadcast (every
subtask already holds a copy of the same list). Items keep their order in all three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TypeVar

from keygroups.errors import ConfigError
from keygroups.ranges import MAX_KEY_GROUPS, check_parallelism

Item = TypeVar("Item")


def split(states: Mapping[str, Sequence[Sequence[Item]]], parallelism: int) -> dict[str, list[list[Item]]]:
    """Distribute the items of each state evenly over the new subtasks, each item to exactly one.

    Items are taken in the order of the old subtasks and distributed in contiguous runs. The extra items of a
    state go to the subtasks after those that got the extra items of the previous state, so the totals over all
    states also differ by at most one between subtasks. States are visited by name, so the order of the mapping
    has no effect. A state whose parallelism is unchanged stays as it is, however uneven.

    Parameters
    ----------
    states : mapping of str to list of lists
        The items of each old subtask, by the name of the state.
    parallelism : int
        The number of new subtasks.

    Returns
    -------
    dict of str to list of lists
        The items of each new subtask, by the name of the state.

    Raises
    ------
    ConfigError
        ``0 < parallelism <= 32768`` does not hold.

    Examples
    --------
    >>> split({"a": [[1, 2, 3], [4, 5, 6, 7]], "b": [[1, 2], [3, 4, 5]]}, 3)
    {'a': [[1, 2, 3], [4, 5], [6, 7]], 'b': [[5], [1, 2], [3, 4]]}
    """
    check_parallelism(parallelism, MAX_KEY_GROUPS)
    first = 0
    result = {}
    for name in sorted(states):
        old = states[name]
        if len(old) == parallelism:
            result[name] = [list(items) for items in old]
            continue
        items = list(chain.from_iterable(old))
        result[name] = _deal(items, parallelism, first)
        first = (first + len(items) % parallelism) % parallelism
    return result


def union(state: Sequence[Sequence[Item]], parallelism: int) -> list[list[Item]]:
    """Give every new subtask the items of all old subtasks.

    Parameters
    ----------
    state : list of lists
        The items of each old subtask.
    parallelism : int
        The number of new subtasks.

    Raises
    ------
    ConfigError
        ``0 < parallelism <= 32768`` does not hold.

    Examples
    --------
    >>> union([[1], [2, 3]], 3)
    [[1, 2, 3], [1, 2, 3], [1, 2, 3]]
    """
    check_parallelism(parallelism, MAX_KEY_GROUPS)
    return [list(chain.from_iterable(state)) for _ in range(parallelism)]


def broadcast(state: Sequence[Sequence[Item]], parallelism: int) -> list[list[Item]]:
    """Give each new subtask one of the old copies, evenly spread so that every copy is read.

    Parameters
    ----------
    state : list of lists
        The copy of each old subtask; there must be at least one.
    parallelism : int
        The number of new subtasks.

    Raises
    ------
    ConfigError
        There is no copy, or ``0 < parallelism <= 32768`` does not hold.

    Examples
    --------
    >>> broadcast([["rule"], ["rule"]], 3)
    [['rule'], ['rule'], ['rule']]
    """
    check_parallelism(parallelism, MAX_KEY_GROUPS)
    if not state:
        raise ConfigError("state", state, "a broadcast state needs the copy of at least one old subtask")
    return [list(state[subtask % len(state)]) for subtask in range(parallelism)]


def _deal(items: list[Item], parallelism: int, first: int) -> list[list[Item]]:
    base, extra = divmod(len(items), parallelism)
    dealt: list[list[Item]] = [[] for _ in range(parallelism)]
    start = 0
    for turn in range(parallelism):
        end = start + base + (turn < extra)
        dealt[(first + turn) % parallelism] = items[start:end]
        start = end
    return dealt
