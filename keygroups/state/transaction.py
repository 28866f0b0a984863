"""The state that one invocation sees: what is committed plus its own writes, applied all at once or never."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from keygroups.descriptors import ValueState
from keygroups.errors import KeyGroupsError
from keygroups.state.backend import MISSING, KeyedStateBackend, StateTable
from keygroups.state.identity import identity_of


class StateNotDeclared(KeyGroupsError, LookupError):
    """A function asked for a state that its `states` do not list.

    Attributes
    ----------
    state : str
        The name that was asked for.
    declared : tuple of str
        The names that the function declares.
    """

    def __init__(self, state: str, declared: tuple[str, ...]) -> None:
        self.state = state
        self.declared = declared
        super().__init__(
            f"state {state!r} is not declared (declared: {', '.join(declared) or 'none'}); "
            "list its descriptor in the function's `states`"
        )


class StateAccessOutsideInvocation(KeyGroupsError, RuntimeError):
    """A state handle was used after the invocation that it belongs to had ended.

    Attributes
    ----------
    key : object
        The key of that invocation.
    """

    def __init__(self, key: object) -> None:
        self.key = key
        super().__init__(
            f"the invocation for key {key!r} has ended, so its state can be neither read nor written; "
            "use the state before the function returns, and await every task that it started"
        )


class Transaction:
    """Reads and writes of one invocation: until it completes, nobody else sees them.

    Only the thread that owns the operator may call it.
    """

    __slots__ = ("backend", "closed", "identity", "key", "key_group", "writes")

    def __init__(self, backend: KeyedStateBackend, key: Hashable, key_group: int) -> None:
        self.backend = backend
        self.key = key
        self.identity = identity_of(key)
        self.key_group = key_group
        self.writes: dict[StateTable, object] = {}
        self.closed = False

    def state(self, descriptor: ValueState) -> ValueHandle:
        """Return the handle of a declared state for this invocation's key."""
        table = self.backend.tables.get(descriptor.name)
        if table is None:
            raise StateNotDeclared(descriptor.name, tuple(self.backend.tables))
        return ValueHandle(self, table)

    def commit(self) -> None:
        """Apply all writes and end the transaction."""
        self.closed = True
        for table in self.writes:
            # Loads the group: one that is damaged must fail before the first write, not between two.
            table.get(self.key_group, self.identity)
        for table, value in self.writes.items():
            table.put(self.key_group, self.identity, value)

    def abandon(self) -> None:
        """Forget all writes and end the transaction."""
        self.closed = True
        self.writes.clear()


class ValueHandle:
    """A `ValueState` as one invocation sees it.

    A value that was read or written must not be changed in place: store a new one with `update`.
    """

    __slots__ = ("_table", "_transaction")

    def __init__(self, transaction: Transaction, table: StateTable) -> None:
        self._transaction = transaction
        self._table = table

    def value(self) -> Any:
        """Return the key's value, or the descriptor's default where it has none."""
        transaction = self._transaction
        if transaction.closed:
            raise StateAccessOutsideInvocation(transaction.key)
        if self._table in transaction.writes:
            value = transaction.writes[self._table]
        else:
            value = self._table.get(transaction.key_group, transaction.identity)
        return self._table.descriptor.default if value is MISSING else value

    def update(self, value: object) -> None:
        """Set the key's value once the invocation completes."""
        if self._transaction.closed:
            raise StateAccessOutsideInvocation(self._transaction.key)
        self._transaction.writes[self._table] = value

    def clear(self) -> None:
        """Remove the key's value once the invocation completes."""
        self.update(MISSING)
