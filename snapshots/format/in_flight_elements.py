"""Merges in-flight elements into the queue of a restored subtask."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from keygroups.ranges import KeyGroupRange
from snapshots.format.subtask import NO_KEY_GROUP, InFlightElement


@dataclass(frozen=True, slots=True)
class RestoredQueue:
    """The queue with which a restored subtask starts.

    Attributes
    ----------
    elements : tuple of InFlightElement
        The elements, in an order that keeps the order of each channel; watermarks belong to the merged channels.
    watermark : int or None
        The watermark that the subtask has already emitted: the minimum over its channels.
    """

    elements: tuple[InFlightElement, ...]
    watermark: int | None


def merge_channels(elements: Iterable[InFlightElement], watermarks: Mapping[int, int | None]) -> RestoredQueue:
    """Merge the queues of old subtasks into one, as if each of them were an input channel.

    The channel with the lowest watermark advances first, because only it can raise the minimum.

    Parameters
    ----------
    elements : iterable of InFlightElement
        The elements of all channels, in any order.
    watermarks : mapping of int to (int or None)
        The newest emitted watermark by channel, for every channel that feeds this subtask.
    """
    queues = {channel: deque[InFlightElement]() for channel in watermarks}
    for element in sorted(elements, key=lambda element: (element.channel, element.sequence)):
        queues[element.channel].append(element)
    current = dict(watermarks)
    start = newest = _minimum(current.values())
    merged: list[InFlightElement] = []
    while open_channels := [channel for channel in sorted(queues) if queues[channel]]:
        channel = min(open_channels, key=lambda channel: _order(current[channel]))
        _move_to_watermark(channel, queues[channel], current, merged)
        minimum = _minimum(current.values())
        if _order(minimum) > _order(newest):
            newest = minimum
            merged.append(InFlightElement(channel=channel, sequence=0, is_watermark=True, timestamp=minimum))
    return RestoredQueue(tuple(element._replace(sequence=n) for n, element in enumerate(merged)), start)


def deal(counts: Sequence[int], parallelism: int, subtask_index: int) -> dict[int, tuple[int, int]]:
    """Return a subtask's share of the elements without a key: contiguous runs; the first ones are longer by one.

    Parameters
    ----------
    counts : sequence of int
        How many elements each channel has.
    parallelism, subtask_index : int
        The number of subtasks, and the index of this one.

    Returns
    -------
    dict of int to (int, int)
        For each channel, the start and the end (exclusive) of the run.

    Examples
    --------
    >>> deal([3, 4], 3, 0), deal([3, 4], 3, 2)
    ({0: (0, 3)}, {1: (2, 4)})
    """
    base, rest = divmod(sum(counts), parallelism)
    start = subtask_index * base + min(subtask_index, rest)
    end = start + base + (subtask_index < rest)
    share: dict[int, tuple[int, int]] = {}
    for channel, count in enumerate(counts):
        if start < count and end > 0 and start < end:
            share[channel] = max(start, 0), min(end, count)
        start -= count
        end -= count
    return share


def key_groups_of_elements(elements: Iterable[InFlightElement], owned: KeyGroupRange) -> KeyGroupRange:
    """Return the smallest range with the owned key groups and the key groups of all elements."""
    key_groups = {element.key_group for element in elements if element.key_group != NO_KEY_GROUP}
    return KeyGroupRange(min(key_groups | {owned.start}), max(key_groups | {owned.end}))


def _move_to_watermark(
    channel: int, queue: deque[InFlightElement], current: dict[int, int | None], merged: list[InFlightElement]
) -> None:
    while queue:
        element = queue.popleft()
        if element.is_watermark:
            current[channel] = element.timestamp
            return
        merged.append(element)


def _minimum(watermarks: Iterable[int | None]) -> int | None:
    return min(watermarks, key=_order, default=None)


def _order(watermark: int | None) -> float:
    return float("-inf") if watermark is None else watermark
