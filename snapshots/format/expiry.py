"""Expired values of states with a time to live: filters their rows, and fills the gaps that they leave in lists."""

from __future__ import annotations

import pyarrow as pa

from keygroups.codec import UnreadableValue
from keygroups.state import HOLE, SharedList
from snapshots.format import compute as pc
from snapshots.format.schemas import EXPIRES_AT

LIST_HOLES_MAX = 2**24
"""The most expired elements that may be missing from a list; more count as damage."""


def unexpired(table: pa.Table, now: int) -> pa.Table:
    """Return the rows that are live at a time (milliseconds since the epoch)."""
    if EXPIRES_AT not in table.schema.names:
        return table
    return table.filter(pc.fill_null(pc.greater(table.column(EXPIRES_AT), now), True))


def list_of(held: dict[int, object], *, stored_with_ttl: bool, has_ttl: bool) -> SharedList:
    """Build a list from its elements by position.

    Parameters
    ----------
    held : dict of int to object
        The stored elements.
    stored_with_ttl : bool
        Whether elements may have expired; if not, none may be missing.
    has_ttl : bool
        Whether the state has a time to live now; if so, every element keeps its position.

    Raises
    ------
    UnreadableValue
        Elements are missing although they cannot have expired.
    """
    positions = range(len(held))
    if not stored_with_ttl:
        if held.keys() != set(positions):
            raise UnreadableValue("an element of a list is missing")
    elif not has_ttl:
        return SharedList([held[position] for position in sorted(held)])
    else:
        positions = range(max(held) + 1)
        if len(positions) > len(held) + LIST_HOLES_MAX:
            raise UnreadableValue(f"of {len(positions)} elements of a list {len(held)} are left")
    return SharedList([held.get(position, HOLE) for position in positions])
