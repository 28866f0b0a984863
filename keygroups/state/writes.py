"""The buffered writes of one invocation, which are applied all at once or never."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from keygroups.state.backend import KeyedStateBackend, StateTable
from keygroups.state.identity import identity_of


class Writes:
    """The writes of one invocation to the state of its key. Nobody else sees them until the invocation completes.

    Only the thread that owns the operator may call it.

    Attributes
    ----------
    writes : dict of StateTable to object
        The new value of the key, for states of one value.
    overlays : dict of StateTable to Overlay, or None
        The changed entries of the key, for states of many entries.
    """

    __slots__ = ("backend", "closed", "identity", "key", "key_group", "overlays", "writes")

    def __init__(self, backend: KeyedStateBackend, key: Hashable, key_group: int) -> None:
        self.backend = backend
        self.key = key
        self.identity = key if type(key) is str or type(key) is int else identity_of(key)
        self.key_group = key_group
        self.writes: dict[StateTable, object] = {}
        self.overlays: dict[StateTable, Any] | None = None
        self.closed = False

    def commit(self) -> None:
        """Apply all writes and end the transaction."""
        self.closed = True
        writes, overlays = self.writes, self.overlays
        if overlays is not None or len(writes) > 1:
            for table in (*writes, *(overlays or ())):
                # A damaged key group must fail before the first write, not between two writes.
                table.load(self.key_group)
        for table, value in writes.items():
            table.put(self.key_group, self.identity, value)
        if overlays is not None:
            for table, overlay in overlays.items():
                overlay.apply(table, self.key_group, self.identity)

    def abandon(self) -> None:
        """Discard all writes and end the transaction."""
        self.closed = True
        self.writes.clear()
        self.overlays = None
