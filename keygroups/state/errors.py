"""Errors in the use of state; each says what to do next."""

from __future__ import annotations

from keygroups.errors import KeyGroupsError, in_message


class StateNotDeclared(KeyGroupsError, LookupError):
    """A function asked for a state that its `states` do not list.

    Attributes
    ----------
    state : str
        The requested name.
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


class WrongStateKind(KeyGroupsError, TypeError):
    """A function asked for a state with a different kind than it declares.

    Attributes
    ----------
    state : str
        The name of the state.
    asked, declared : str
        The kind of the descriptor that was passed, and the declared kind.
    """

    def __init__(self, state: str, asked: str, declared: str) -> None:
        self.state = state
        self.asked = asked
        self.declared = declared
        super().__init__(
            f"state {state!r} is declared as a {declared} state, not as a {asked} state; "
            "pass the descriptor that the function's `states` list, or give the other state its own name"
        )


class StateOfAnotherThread(KeyGroupsError, RuntimeError):
    """A state was used by a thread that does not own it.

    Attributes
    ----------
    thread : str
        The name of the thread that used it.
    owner : str
        The name of the thread that owns it.
    """

    def __init__(self, thread: str, owner: str) -> None:
        self.thread = thread
        self.owner = owner
        super().__init__(
            f"thread {thread!r} used a state that belongs to thread {owner!r}; read and write it in the coroutine of "
            "the invocation itself, pass values to threads, or subclass BlockingFunction, whose calls may use state"
        )


class StateAccessOutsideInvocation(KeyGroupsError, RuntimeError):
    """A state handle was used after its invocation had ended.

    Attributes
    ----------
    key : object
        The key of the invocation.
    """

    def __init__(self, key: object) -> None:
        self.key = key
        super().__init__(
            f"the invocation for key {in_message(key)} has ended, so its state can be neither read nor written; "
            "use the state before the function returns, and await every task that it started"
        )


class OperatorStateNotDeclared(StateNotDeclared):
    """A function asked for an operator state that its `operator_states` do not list.

    Attributes
    ----------
    state : str
        The requested name.
    declared : tuple of str
        The names that the function declares.
    """

    def __init__(self, state: str, declared: tuple[str, ...]) -> None:
        self.state = state
        self.declared = declared
        super(StateNotDeclared, self).__init__(
            f"operator state {state!r} is not declared (declared: {', '.join(declared) or 'none'}); "
            "list its descriptor in the function's `operator_states`"
        )


class OperatorStateOfAnotherThread(StateOfAnotherThread):
    """An operator's list state was used by a thread other than the operator's own.

    Attributes
    ----------
    thread : str
        The name of the thread that used it.
    owner : str
        The name of the thread that owns it.
    """

    def __init__(self, thread: str, owner: str) -> None:
        self.thread = thread
        self.owner = owner
        super(StateOfAnotherThread, self).__init__(
            f"thread {thread!r} used an operator state that belongs to thread {owner!r}; in a call that runs on a "
            "thread, get the handle with `ctx.operator_state(descriptor)` in place of `runtime.operator_state`"
        )


class OperatorMapIsFinal(KeyGroupsError, RuntimeError):
    """A function wrote to an `OperatorMapState` after `open`.

    Attributes
    ----------
    state : str
        The name of the state.
    """

    def __init__(self, state: str) -> None:
        self.state = state
        super().__init__(
            f"operator state {state!r} can only be written in `open`, because all subtasks must hold the same copy; "
            "keep what changes later in an OperatorListState, or in keyed state"
        )
