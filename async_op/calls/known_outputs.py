"""Outputs that a function knows without a call, such as an answer that is in its state already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from async_op.calls.isolation import CallContexts
from async_op.functions.base import Function
from async_op.functions.context import InvocationContext, Scope
from async_op.in_flight.entries import Entry, is_timer
from async_op.outputs import checked
from keygroups.state import commit
from keygroups.state.detached import own_copy


class KnownOutputs:
    """Asks a function whether it needs a call. Only the thread of the event loop may use it.

    Parameters
    ----------
    function : Function
        One that defines `known_outputs`.
    scope : Scope
        What all invocations share.
    contexts : CallContexts
        The context variables that the function sees.
    """

    __slots__ = ("_contexts", "_known_outputs", "_scope")

    def __init__(self, function: Function, scope: Scope, contexts: CallContexts) -> None:
        self._known_outputs = function.known_outputs
        self._scope = scope
        self._contexts = contexts

    def of(self, entry: Entry) -> Sequence[Any] | None:
        """Return the outputs for an entry that holds its key, or None if it needs a call.

        Raises what the function does. What it writes counts only if it returns outputs.
        """
        if is_timer(entry):
            return None
        invocation = self._begin(entry)
        try:
            outputs = self._contexts.run(self._ask, entry, invocation)
        except BaseException:
            invocation.abandon()
            raise
        if outputs is None:
            invocation.abandon()
            return None
        entry.invocation = None
        commit(invocation.handles)
        return outputs

    def _ask(self, entry: Entry, invocation: InvocationContext) -> Sequence[Any] | None:
        found = self._known_outputs(own_copy(entry.value), invocation)
        return None if found is None else checked(found)

    def _begin(self, entry: Entry) -> InvocationContext:
        entry.invocation = invocation = InvocationContext()
        invocation.entry = entry
        invocation.scope = self._scope
        invocation.handles = None
        return invocation
