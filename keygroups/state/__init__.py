"""State: the backends in memory and on disk, what one invocation sees of them, and state without a key."""

from __future__ import annotations

from keygroups.state.backend import MISSING, EntriesStateTable, KeyedStateBackend, StateCut, StateTable
from keygroups.state.collections import Entries, SharedList, entries_of, entry_of
from keygroups.state.disk import DiskBackend, DiskStateBackend
from keygroups.state.errors import (
    OperatorMapIsFinal,
    OperatorStateNotDeclared,
    OperatorStateOfAnotherThread,
    StateAccessOutsideInvocation,
    StateNotDeclared,
    StateOfAnotherThread,
    WrongStateKind,
)
from keygroups.state.expiring_values import HOLE, Expiring
from keygroups.state.group import ENTRY_KINDS, KeyGroupContent, LazyGroup, StateRows, TakeRows
from keygroups.state.handles import AggregatingHandle, EntriesHandle, ListHandle, MapHandle, ReducingHandle, ValueHandle
from keygroups.state.key_identity import TypedKey, identity_of, original_of
from keygroups.state.memory import MemoryBackend, MemoryGroup
from keygroups.state.operator_state import OperatorListHandle, OperatorMapHandle, OperatorStates
from keygroups.state.transaction import Handle, Transaction, abandon, commit, state_of

__all__ = [
    "ENTRY_KINDS",
    "HOLE",
    "MISSING",
    "AggregatingHandle",
    "DiskBackend",
    "DiskStateBackend",
    "Entries",
    "EntriesHandle",
    "EntriesStateTable",
    "Expiring",
    "Handle",
    "KeyGroupContent",
    "KeyedStateBackend",
    "LazyGroup",
    "ListHandle",
    "MapHandle",
    "MemoryBackend",
    "MemoryGroup",
    "OperatorListHandle",
    "OperatorMapHandle",
    "OperatorMapIsFinal",
    "OperatorStateNotDeclared",
    "OperatorStateOfAnotherThread",
    "OperatorStates",
    "ReducingHandle",
    "SharedList",
    "StateAccessOutsideInvocation",
    "StateCut",
    "StateNotDeclared",
    "StateOfAnotherThread",
    "StateRows",
    "StateTable",
    "TakeRows",
    "Transaction",
    "TypedKey",
    "ValueHandle",
    "WrongStateKind",
    "abandon",
    "commit",
    "entries_of",
    "entry_of",
    "identity_of",
    "original_of",
    "state_of",
]
