"""The state that one invocation sees: what is committed, and its own writes, which are applied all at once or never."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from typing import Any, Final, NamedTuple, Protocol

from keygroups.descriptors import StateDescriptor
from keygroups.errors import ConfigError, in_message
from keygroups.state.backend import KeyedStateBackend, StateTable
from keygroups.state.detached import detached
from keygroups.state.errors import StateAccessOutsideInvocation, StateNotDeclared, WrongStateKind
from keygroups.state.key_identity import identity_of
from keygroups.state.storable import check_storable


class _Unchanged(enum.Enum):
    UNCHANGED = "unchanged"


UNCHANGED: Final = _Unchanged.UNCHANGED
"""Stands for the write of an invocation that has written nothing."""


class KeyPlace(Protocol):
    """A key with what a table needs to find it."""

    @property
    def key(self) -> Hashable:
        """The key."""
        ...

    @property
    def identity(self) -> Hashable:
        """What stands for the key in the dicts of state; see `identity_of`."""
        ...

    @property
    def key_group(self) -> Any:
        """The key group, an int; an element without a key has none, but no state is declared for it."""
        ...


class StateUser(Protocol):
    """What has used state: the newest of its handles, from which all are reached; None before the first."""

    handles: Handle | None


class Handle:
    """What one invocation reads of one state of its key, and what it writes. `ctx.state` returns it.

    Other invocations see the writes once this one completes. Only the thread that owns the operator may call it.
    It has no `__init__`, because one would double the time to create a handle: see `state_of`.

    Attributes
    ----------
    backend : KeyedStateBackend
        The states of the subtask.
    table : StateTable
        The state.
    place : KeyPlace
        The key of the invocation.
    change : object
        What the invocation has written, as `apply` takes it; or `UNCHANGED`.
    closed : bool
        Whether the invocation has ended.
    following : Handle or None
        The next handle of the same invocation. That takes less time than a list.
    """

    __slots__ = ("backend", "change", "closed", "following", "place", "table")

    backend: KeyedStateBackend
    table: StateTable
    place: KeyPlace
    change: Any
    closed: bool
    following: Handle | None

    def apply(self) -> None:
        """Write the change to the table."""
        place = self.place
        self.table.put(place.key_group, place.identity, self.change)

    def _check_open(self) -> None:
        if self.closed:
            raise StateAccessOutsideInvocation(self.place.key)

    def _storable(self, value: Any) -> Any:
        """Return the object to store for a value, to which there is no other reference."""
        if self.table.is_plain(value):
            return value
        descriptor = self.table.descriptor
        check_storable(value, descriptor.value_type, self._where())
        return detached(value)

    def _where(self) -> str:
        return f"state {self.table.descriptor.name!r} of key {in_message(self.place.key)}"


def state_of(invocation: StateUser, backend: KeyedStateBackend, place: KeyPlace, descriptor: StateDescriptor) -> Any:
    """Return the handle of a declared state for an invocation, which has the key `place`; always the same one.

    Raises
    ------
    StateNotDeclared, WrongStateKind
        No state of this name is declared, or it is declared with another kind.
    ConfigError
        The argument is not a descriptor.
    """
    try:
        table = backend.tables[descriptor.name]
    except KeyError:
        raise StateNotDeclared(descriptor.name, tuple(backend.tables)) from None
    except AttributeError:
        reason = "pass the descriptor itself, as the function's `states` list it"
        raise ConfigError("descriptor", descriptor, reason) from None
    if descriptor is not table.descriptor and type(descriptor) is not type(table.descriptor):
        raise WrongStateKind(descriptor.name, descriptor.kind, table.descriptor.kind)
    first = handle = invocation.handles
    while handle is not None:
        if handle.table is table:
            return handle
        handle = handle.following
    invocation.handles = handle = table.handle()
    handle.backend = backend
    handle.table = table
    handle.place = place
    handle.change = UNCHANGED
    handle.closed = False
    handle.following = first
    return handle


def commit(handles: Handle | None) -> None:
    """Apply all writes of an invocation, and end it."""
    if handles is None:
        return
    if handles.following is None:  # as a rule there is one state
        handles.closed = True
        if handles.change is not UNCHANGED:
            handles.apply()
        return
    written = []
    handle: Handle | None = handles
    while handle is not None:
        handle.closed = True
        if handle.change is not UNCHANGED:
            written.append(handle)
        handle = handle.following
    for handle in written:
        # A damaged key group must fail before the first write, not between two writes.
        handle.table.load(handle.place.key_group)
    for handle in written:
        handle.apply()


def abandon(handles: Handle | None) -> None:
    """Discard all writes of an invocation, and end it."""
    while handles is not None:
        handles.closed = True
        handles.change = UNCHANGED
        handles = handles.following


class _KeyAlone(NamedTuple):
    """The key of a transaction. It is not the transaction itself, for then a handle would keep itself alive."""

    key: Hashable
    identity: Hashable
    key_group: int


class Transaction:
    """The reads and writes of one invocation that is not an operator's.

    Parameters
    ----------
    backend : KeyedStateBackend
        The keyed state.
    key : key
        The key of the invocation.
    key_group : int
        The key group of the key.
    """

    __slots__ = ("_backend", "_closed", "_place", "handles")

    def __init__(self, backend: KeyedStateBackend, key: Hashable, key_group: int) -> None:
        self._backend = backend
        self._place = _KeyAlone(key, identity_of(key), key_group)
        self.handles: Handle | None = None
        self._closed = False

    def state(self, descriptor: StateDescriptor) -> Any:
        """Return the handle of a declared state for this invocation's key.

        Raises
        ------
        StateNotDeclared, WrongStateKind, ConfigError
            As in `state_of`.
        StateAccessOutsideInvocation
            The transaction has ended.
        """
        if self._closed:
            raise StateAccessOutsideInvocation(self._place.key)
        return state_of(self, self._backend, self._place, descriptor)

    def commit(self) -> None:
        """Apply all writes and end the transaction."""
        self._closed = True
        commit(self.handles)

    def abandon(self) -> None:
        """Discard all writes and end the transaction."""
        self._closed = True
        abandon(self.handles)
