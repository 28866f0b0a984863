"""Keyed state: the backend protocol, the backend in memory and the transaction of one invocation."""

from __future__ import annotations

from keygroups.state.backend import MISSING, KeyedStateBackend, LazyGroup, StateCut, StateTable
from keygroups.state.identity import TypedKey, identity_of, original_of
from keygroups.state.memory import MemoryBackend
from keygroups.state.transaction import StateAccessOutsideInvocation, StateNotDeclared, Transaction, ValueHandle

__all__ = [
    "MISSING",
    "KeyedStateBackend",
    "LazyGroup",
    "MemoryBackend",
    "StateAccessOutsideInvocation",
    "StateCut",
    "StateNotDeclared",
    "StateTable",
    "Transaction",
    "TypedKey",
    "ValueHandle",
    "identity_of",
    "original_of",
]
