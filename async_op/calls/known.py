"""Outputs that a function knows without a call, such as an answer that is in its state already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from async_op.context import InvocationContext, Scope
from async_op.functions import Function
from async_op.in_flight.entries import Entry, is_timer
from async_op.outputs import checked
from keygroups.state import commit


class KnownOutputs:
    """Asks a function whether it needs a call. Only the thread of the event loop may use it.

    Parameters
    ----------
    function : Function
        One that defines `known_outputs`.
    scope : Scope
        What all invocations share.
    """

    __slots__ = ("_known_outputs", "_scope")

    def __init__(self, function: Function, scope: Scope) -> None:
        self._known_outputs = function.known_outputs
        self._scope = scope

    def of(self, entry: Entry) -> Sequence[Any] | None:
        """Return the outputs for an entry that holds its key, or None if it needs a call.

        Raises what the function does. What it writes counts only if it returns outputs.
        """
        if is_timer(entry):
            return None
        invocation = self._begin(entry)
        try:
            found = self._known_outputs(entry.value, invocation)
            outputs = None if found is None else checked(found)
        except BaseException:
            invocation.abandon()
            raise
        if outputs is None:
            invocation.abandon()
            return None
        entry.invocation = None
        commit(invocation.handles)
        return outputs

    def _begin(self, entry: Entry) -> InvocationContext:
        entry.invocation = invocation = InvocationContext()
        invocation.entry = entry
        invocation.scope = self._scope
        invocation.handles = None
        return invocation
