"""The state that one invocation sees: the committed state plus its own writes."""

from __future__ import annotations

from typing import Any

from keygroups.descriptors import StateDescriptor
from keygroups.errors import ConfigError
from keygroups.state.errors import StateNotDeclared, WrongStateKind
from keygroups.state.handles import HANDLES
from keygroups.state.ttl import EXPIRING_HANDLES
from keygroups.state.writes import Writes


class Transaction(Writes):
    """The reads and writes of one invocation. Only the thread that owns the operator may call it."""

    __slots__ = ()

    def state(self, descriptor: StateDescriptor) -> Any:
        """Return the handle of a declared state for this invocation's key.

        Raises
        ------
        StateNotDeclared, WrongStateKind
            No state of this name is declared, or it is declared with another kind.
        ConfigError
            The argument is not a descriptor.
        """
        try:
            table = self.backend.tables.get(descriptor.name)
        except AttributeError:
            reason = "pass the descriptor itself, as the function's `states` list it"
            raise ConfigError("descriptor", descriptor, reason) from None
        if table is None:
            raise StateNotDeclared(descriptor.name, tuple(self.backend.tables))
        kind = type(descriptor)
        if kind is not type(table.descriptor):
            raise WrongStateKind(descriptor.name, descriptor.kind, table.descriptor.kind)
        handle = (HANDLES if table.descriptor.ttl is None else EXPIRING_HANDLES)[kind]()
        handle.transaction, handle.table = self, table
        return handle
