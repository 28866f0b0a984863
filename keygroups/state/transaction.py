"""The state that one invocation sees: the committed state plus its own writes, which are applied all at once or never."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from typing import Any, Final

from keygroups.descriptors import StateDescriptor
from keygroups.errors import ConfigError, in_message
from keygroups.state.backend import KeyedStateBackend, StateTable
from keygroups.state.detached import detached
from keygroups.state.errors import StateAccessOutsideInvocation, StateNotDeclared, WrongStateKind
from keygroups.state.identity import identity_of
from keygroups.state.storable import check_storable


class _Sentinel(enum.Enum):
    UNCHANGED = "unchanged"


UNCHANGED: Final = _Sentinel.UNCHANGED
"""Stands for the write of an invocation that has written nothing."""


class Handle:
    """What one invocation reads of one state of its key, and what it writes. `ctx.state` returns it.

    It has no `__init__`, because one would double the time to create a handle.

    Attributes
    ----------
    table : StateTable
        The state.
    transaction : Transaction
        The invocation's reads and writes.
    following : Handle or None
        The next handle of the same transaction.
    change : object
        What the invocation has written, as `apply` takes it; or `UNCHANGED`.
    """

    __slots__ = ("change", "following", "table", "transaction")

    table: StateTable
    transaction: Transaction
    following: Handle | None
    change: Any

    def apply(self) -> None:
        """Write the change to the table."""
        transaction = self.transaction
        self.table.put(transaction.key_group, transaction.identity, self.change)

    def _check_open(self) -> None:
        if self.transaction.closed:
            raise StateAccessOutsideInvocation(self.transaction.key)

    def _storable(self, value: Any) -> Any:
        """Return the object to store for a value; nobody else has a reference to it."""
        if self.table.is_plain(value):
            return value
        descriptor = self.table.descriptor
        check_storable(value, descriptor.value_type, self._where())
        return detached(value)

    def _where(self) -> str:
        return f"state {self.table.descriptor.name!r} of key {in_message(self.transaction.key)}"


class Transaction:
    """The reads and writes of one invocation to the state of its key.

    Nobody else sees the writes until the invocation completes. Only the thread that owns the operator may call it.

    Parameters
    ----------
    backend : KeyedStateBackend
        The keyed state.
    key : key
        The key of the invocation.
    key_group : int
        The key group of the key.

    Attributes
    ----------
    closed : bool
        Whether the invocation has ended.
    """

    __slots__ = ("_handles", "backend", "closed", "identity", "key", "key_group")

    def __init__(self, backend: KeyedStateBackend, key: Hashable, key_group: int) -> None:
        self.begin(backend, key, key_group, identity_of(key))

    def begin(self, backend: KeyedStateBackend, key: Hashable, key_group: int, identity: Hashable) -> None:
        """Begin for a key whose identity is known already."""
        self.backend = backend
        self.key = key
        self.key_group = key_group
        self.identity = identity
        self._handles: Handle | None = None  # each has a reference to the next one, which takes less time than a list
        self.closed = False

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
        if type(descriptor) is not type(table.descriptor):
            raise WrongStateKind(descriptor.name, descriptor.kind, table.descriptor.kind)
        return self.handle(table, table.handle)

    def handle(self, table: StateTable, kind: type[Handle]) -> Any:
        """Return the handle of a state; all that is read and written through it goes through the same object."""
        handle = self._handles
        while handle is not None:
            if handle.table is table:
                return handle
            handle = handle.following
        handle = kind()
        handle.transaction, handle.table = self, table
        handle.change = UNCHANGED
        handle.following, self._handles = self._handles, handle
        return handle

    def commit(self) -> None:
        """Apply all writes and end the transaction."""
        self.closed = True
        handle, self._handles = self._handles, None  # the handles refer to this object, and so nothing goes in circles
        if handle is None:
            return
        if handle.following is None:
            if handle.change is not UNCHANGED:
                handle.apply()
            return
        written = _written(handle)
        for handle in written:
            # A damaged key group must fail before the first write, not between two writes.
            handle.table.load(self.key_group)
        for handle in written:
            handle.apply()

    def abandon(self) -> None:
        """Discard all writes and end the transaction."""
        self.closed = True
        self._handles = None


def _written(handle: Handle | None) -> list[Handle]:
    written = []
    while handle is not None:
        if handle.change is not UNCHANGED:
            written.append(handle)
        handle = handle.following
    return written
