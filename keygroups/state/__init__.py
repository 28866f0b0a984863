"""Keyed state: the backend protocol, the backend in memory, the handles and the transaction of one invocation."""

from __future__ import annotations

from keygroups.state.backend import (
    MISSING,
    KeyedStateBackend,
    LazyGroup,
    StateCut,
    StateRows,
    StateTable,
    StreamedGroup,
)
from keygroups.state.collections import Entries, SharedList, entries_of, entry_of
from keygroups.state.disk import DiskBackend, DiskStateBackend
from keygroups.state.errors import StateAccessOutsideInvocation, StateNotDeclared, WrongStateKind
from keygroups.state.handles import AggregatingHandle, ListHandle, MapHandle, ReducingHandle, ValueHandle
from keygroups.state.identity import TypedKey, identity_of, original_of
from keygroups.state.layered import LayeredGroup
from keygroups.state.memory import MemoryBackend
from keygroups.state.transaction import Transaction
from keygroups.state.ttl import HOLE, Expiring

__all__ = [
    "HOLE",
    "MISSING",
    "AggregatingHandle",
    "DiskBackend",
    "DiskStateBackend",
    "Entries",
    "Expiring",
    "KeyedStateBackend",
    "LayeredGroup",
    "LazyGroup",
    "ListHandle",
    "MapHandle",
    "MemoryBackend",
    "ReducingHandle",
    "SharedList",
    "StateAccessOutsideInvocation",
    "StateCut",
    "StateNotDeclared",
    "StateRows",
    "StateTable",
    "StreamedGroup",
    "Transaction",
    "TypedKey",
    "ValueHandle",
    "WrongStateKind",
    "entries_of",
    "entry_of",
    "identity_of",
    "original_of",
]
