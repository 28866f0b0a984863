"""What has expired of a state with a time to live, as rows and as the gaps that they leave in a list."""

from __future__ import annotations

import pyarrow as pa

from keygroups.codec import UnreadableValue
from keygroups.state import HOLE, SharedList
from snapshots import compute as pc
from snapshots.schemas import EXPIRES_AT

LIST_HOLES_MAX = 2**24
"""So many expired elements may be missing in a list, or its positions are taken for damage."""


def unexpired(table: pa.Table, now: int) -> pa.Table:
    """Return the rows that live at a time (milliseconds since the epoch)."""
    if EXPIRES_AT not in table.schema.names:
        return table
    return table.filter(pc.fill_null(pc.greater(table.column(EXPIRES_AT), now), True))


def list_of(held: dict[int, object], *, stored_with_ttl: bool, has_ttl: bool) -> SharedList:
    """Return a list by the positions of its elements.

    Parameters
    ----------
    held : dict of int to object
        The elements that are stored.
    stored_with_ttl : bool
        Whether others may have expired; if not, none may be missing.
    has_ttl : bool
        Whether it has a time to live now: then each keeps its position.

    Raises
    ------
    UnreadableValue
        Elements are missing that cannot have expired.
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
