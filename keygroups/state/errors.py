"""Errors in the use of state; each says what to do next."""

from __future__ import annotations

from keygroups.errors import KeyGroupsError, in_message


class StateNotDeclared(KeyGroupsError, LookupError):
    """A function asked for a state that its `states` do not list."""

    state: str
    """The requested name."""
    declared: tuple[str, ...]
    """The names that the function declares."""

    def _message(self) -> str:
        return (
            f"state {self.state!r} is not declared (declared: {', '.join(self.declared) or 'none'}); list its "
            "descriptor in the function's `states`"
        )


class WrongStateKind(KeyGroupsError, TypeError):
    """A function asked for a state with a different kind than it declares."""

    state: str
    """The name of the state."""
    asked: str
    """The kind of the descriptor that was passed."""
    declared: str
    """The declared kind."""

    _template = (
        "state {state!r} is declared as a {declared} state, not as a {asked} state; pass the descriptor that the "
        "function's `states` list, or give the other state its own name"
    )


class StateOfAnotherThread(KeyGroupsError, RuntimeError):
    """A state was used by a thread that does not own it."""

    thread: str
    """The name of the thread that used it."""
    owner: str
    """The name of the thread that owns it."""

    _template = (
        "thread {thread!r} used a state that belongs to thread {owner!r}; read and write it in the coroutine of the "
        "invocation itself, pass values to threads, or subclass BlockingFunction, whose calls may use state"
    )


class StateAccessOutsideInvocation(KeyGroupsError, RuntimeError):
    """A state handle was used after its invocation had ended."""

    key: object
    """The key of the invocation."""

    def _message(self) -> str:
        return (
            f"the invocation for key {in_message(self.key)} has ended, so its state can be neither read nor written; "
            "use the state before the function returns, and await every task that it started"
        )


class OperatorStateNotDeclared(StateNotDeclared):
    """A function asked for an operator state that its `operator_states` do not list."""

    def _message(self) -> str:
        return (
            f"operator state {self.state!r} is not declared (declared: {', '.join(self.declared) or 'none'}); "
            "list its descriptor in the function's `operator_states`"
        )


class OperatorStateOfAnotherThread(StateOfAnotherThread):
    """An operator's list state was used by a thread other than the operator's own."""

    _template = (
        "thread {thread!r} used an operator state that belongs to thread {owner!r}; in a call that runs on a thread, "
        "get the handle with `ctx.operator_state(descriptor)` in place of `runtime.operator_state`"
    )


class OperatorMapIsFinal(KeyGroupsError, RuntimeError):
    """A function wrote to an `OperatorMapState` after `open`."""

    state: str
    """The name of the state."""

    _template = (
        "operator state {state!r} can only be written in `open`, because all subtasks must hold the same copy; keep "
        "what changes later in an OperatorListState, or in keyed state"
    )
