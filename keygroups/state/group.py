"""The protocol of a key group, wherever its rows are: in memory, in a store on disk, or in the files of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

ENTRY_KINDS = frozenset({"list", "map"})
"""The kinds of states with many entries per key."""


class StateRows(NamedTuple):
    """Some rows of a key group.

    Attributes
    ----------
    keys : list
        The identity of the key of each row.
    entries : list or None
        In a state of many entries per key, the position or the identity of the map key. `MISSING` marks a row which
        says that all previous entries of the key are gone.
    values : list
        The values; `MISSING` for a value that was removed.
    """

    keys: list[Any]
    entries: list[Any] | None
    values: list[Any]


TakeRows: TypeAlias = Callable[[int], StateRows]
"""Returns at most the given number of next rows; no rows mean the end."""


class LazyGroup(Protocol):
    """A key group whose content can be loaded into memory."""

    def load(self) -> dict[Hashable, object]:
        """Load the values by the identity of their key.

        Any thread may call it, even several at the same time: each call returns a new dict.
        """
        ...


class KeyGroupContent(LazyGroup, Protocol):
    """The immutable content of a key group, from a cut or a restored snapshot. Any thread may call it."""

    def in_memory(self) -> dict[Hashable, object] | None:
        """Return the values by the identity of their key if they are in memory, else None.

        The dict does not change as long as the caller holds this key group. The caller must not modify it.
        """
        ...

    def kinds(self, column: str, keys_max: int | None = None) -> Collection[type]:
        """Return the types of all keys ("key") or map keys ("map_key"); `object` stands for unknown types.

        Parameters
        ----------
        column : str
            "key" or "map_key".
        keys_max : int, optional
            Inspect at most this many, if the types can only be found key by key.
        """
        ...

    def rows(self, changed: Collection[Any] | None = None) -> TakeRows:
        """Return a function that returns the next rows.

        Parameters
        ----------
        changed : collection, optional
            Return only these rows, taken from `changed` of the same cut, with `MISSING` for removed values.
        """
        ...

    def stored(self) -> pa.Table | None:
        """Return the rows in the encoding of snapshots, or None if they have to be encoded first."""
        ...
