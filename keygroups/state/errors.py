"""Errors of the use of keyed state, named after the situation."""

from __future__ import annotations

from keygroups.errors import KeyGroupsError


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


class WrongStateKind(KeyGroupsError, TypeError):
    """A function asked for a state as another kind than it declares.

    Attributes
    ----------
    state : str
        Its name.
    asked, declared : str
        The kind of the descriptor that was passed, and of the declared one.
    """

    def __init__(self, state: str, asked: str, declared: str) -> None:
        self.state = state
        self.asked = asked
        self.declared = declared
        super().__init__(
            f"state {state!r} is declared as a {declared} state, not as a {asked} state; "
            "pass the descriptor that the function's `states` list, or give the other state a name of its own"
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
