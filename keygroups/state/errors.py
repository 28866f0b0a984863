"""Errors in the use of state, and of the store that holds it; each says what to do next."""

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


class StoreNotInstalled(KeyGroupsError, ImportError):
    """The disk backend needs a store that is not installed."""

    package: str
    """The missing package."""

    _template = "state on disk needs {package}; install it with: pip install 'keygroups[disk]'"


class StateDirectoryNotLocked(KeyGroupsError, OSError):
    """No directory for the state could be locked, so other processes would take it for a left-over."""

    parent: str
    """The directory in which it was tried."""

    _template = (
        "no file in {parent} can be locked, as on some network file systems; choose a directory on a local disk with "
        "DiskStateBackend(directory=…)"
    )


class StateDirectoryRefused(KeyGroupsError, OSError):
    """No directory for the state could be made: it may not be written to, or something else is in its place."""

    parent: str
    """The directory in which it was tried."""
    reason: str
    """The system's own message."""

    _template = (
        "no state can be kept in {parent} ({reason}); let this process write there, or choose another directory on a "
        "local disk with DiskStateBackend(directory=…)"
    )


class StateStoreFailed(KeyGroupsError, OSError):
    """The local store could not read or write. Committed state is safe, because it is in the snapshots."""

    directory: str
    """The directory of the state."""
    reason: str
    """The store's own message."""

    _template = "the state in {directory} cannot be used ({reason}); restore the operator from its newest snapshot"


class StateDiskFull(KeyGroupsError, OSError):
    """The local disk has no room for the state. Committed state is safe, because it is in the snapshots."""

    directory: str
    """The directory of the state."""

    _template = (
        "no space is left for the state in {directory}; free some, or choose a larger disk with "
        "DiskStateBackend(directory=…), and restore the operator from its newest snapshot"
    )
