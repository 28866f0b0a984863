"""What the reader of a source yields, sorted out: items as columns, records that cannot be decoded, and positions.

There is no Python loop over items that are as they should be: a job spends as much on them as in its operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from async_op.connectors.source import Reached, Undecodable
from async_op.elements import TIMESTAMP_MAX, check_timestamp
from keygroups.errors import ConfigError


class Items(NamedTuple):
    """Items of a source as columns; `timestamps` is None if none of them has one."""

    values: Sequence[Any]
    timestamps: Sequence[int | None] | None
    positions: Sequence[Any]

    def part(self, begin: int, end: int) -> Items:
        """Return some of them."""
        timestamps = None if self.timestamps is None else self.timestamps[begin:end]
        return Items(self.values[begin:end], timestamps, self.positions[begin:end])

    def newest(self) -> int | None:
        """Return the largest timestamp."""
        return max((one for one in self.timestamps or () if one is not None), default=None)


class NoItem(Exception):
    """A reader has yielded something else."""

    def __init__(self, found: object) -> None:
        self.found = found
        super().__init__(found)


Sorted: TypeAlias = Items | Undecodable | Reached
"""One of the things that a reader yields."""


def sorted_out(pieces: list[Any]) -> Iterator[Sorted]:
    """Yield what a reader has yielded in a row, in its order.

    Raises
    ------
    NoItem
        Something is none of what a reader may yield.
    """
    if set(map(type, pieces)) == {tuple}:
        yield from _sorted_items(pieces)
        return
    items: list[Any] = []
    for piece in pieces:
        if type(piece) is tuple or not isinstance(piece, Items | Reached | list):
            items.append(piece)  # single items stay together
            continue
        yield from _sorted_items(items)
        items = []
        yield from _sorted_items(piece) if isinstance(piece, list) else (piece,)
    yield from _sorted_items(items)


def _sorted_items(items: list[Any]) -> Iterator[Sorted]:
    if not items:
        return
    found = _columns_of(items) if set(map(type, items)) == {tuple} else None
    if found is None:
        yield from _one_by_one(items)
    else:
        yield found


def _columns_of(items: list[Any]) -> Items | None:
    """Return items as columns; None if one of them has to be looked at by itself."""
    try:
        values, timestamps, positions = zip(*items, strict=True)
    except ValueError:
        return None
    kinds = set(map(type, timestamps))
    if kinds == {type(None)}:
        return Items(values, None, positions)
    if kinds == {int} and min(timestamps) >= 0 and max(timestamps) <= TIMESTAMP_MAX:
        return Items(values, timestamps, positions)
    return None


def _one_by_one(items: list[Any]) -> Iterator[Items | Undecodable]:
    good: list[tuple[Any, int | None, Any]] = []
    for item in items:
        found = _looked_at(item)
        if isinstance(found, Undecodable):
            if good:
                yield Items(*zip(*good, strict=True))
            good = []
            yield found
        else:
            good.append(found)
    if good:
        yield Items(*zip(*good, strict=True))


def _looked_at(item: Any) -> tuple[Any, int | None, Any] | Undecodable:
    if isinstance(item, Undecodable):
        return item
    try:
        value, timestamp, position = item
    except (TypeError, ValueError):
        raise NoItem(item) from None
    try:
        return value, None if timestamp is None else check_timestamp(timestamp), position
    except ConfigError as error:
        return Undecodable(value, position, error)
