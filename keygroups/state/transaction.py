"""The state that one invocation sees: what is committed plus its own writes, applied all at once or never."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from keygroups.descriptors import StateDescriptor
from keygroups.state.backend import KeyedStateBackend, StateTable
from keygroups.state.errors import StateNotDeclared, WrongStateKind
from keygroups.state.handles import HANDLES
from keygroups.state.identity import identity_of
from keygroups.state.ttl import EXPIRING_HANDLES


class Transaction:
    """Reads and writes of one invocation: until it completes, nobody else sees them.

    Only the thread that owns the operator may call it.

    Attributes
    ----------
    writes : dict of StateTable to object
        The new value of the key in states of one value.
    overlays : dict of StateTable to Overlay, or None
        What becomes of the key's entries in states of many.
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

    def state(self, descriptor: StateDescriptor) -> Any:
        """Return the handle of a declared state for this invocation's key.

        Raises
        ------
        StateNotDeclared, WrongStateKind
            No state of this name is declared, or it is of another kind.
        """
        table = self.backend.tables.get(descriptor.name)
        if table is None:
            raise StateNotDeclared(descriptor.name, tuple(self.backend.tables))
        kind = type(descriptor)
        if kind is not type(table.descriptor):
            raise WrongStateKind(descriptor.name, descriptor.kind, table.descriptor.kind)
        handle = (HANDLES if table.descriptor.ttl is None else EXPIRING_HANDLES)[kind]()
        handle.transaction, handle.table = self, table
        return handle

    def commit(self) -> None:
        """Apply all writes and end the transaction."""
        self.closed = True
        writes, overlays = self.writes, self.overlays
        if overlays is not None or len(writes) > 1:
            for table in (*writes, *(overlays or ())):
                # A key group that is damaged must fail before the first write, not between two.
                table.load(self.key_group)
        for table, value in writes.items():
            table.put(self.key_group, self.identity, value)
        if overlays is not None:
            for table, overlay in overlays.items():
                overlay.apply(table, self.key_group, self.identity)

    def abandon(self) -> None:
        """Forget all writes and end the transaction."""
        self.closed = True
        self.writes.clear()
        self.overlays = None
